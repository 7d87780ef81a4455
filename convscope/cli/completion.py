"""Completion for shells: `convscope completion bash` prints a script; made from the commands' own parsers by shtab."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence

import shtab

from convscope.cli import programs
from convscope.cli.parser import OneLineParser

NAME = "convscope completion"


def main(arguments: Sequence[str], commands: Mapping[str, tuple[str, str]]) -> int:
    """Print the script; return 0. `commands` as `whole` takes them."""
    options = _parser().parse_args(arguments)
    print(shtab.complete(whole(commands), options.shell))
    return 0


def whole(commands: Mapping[str, tuple[str, str]]) -> argparse.ArgumentParser:
    """Return a parser of the whole command line, each command's own below it.

    Args:
        commands: the module of each, and what it does.
    """
    made = argparse.ArgumentParser(prog="convscope")
    made.add_argument("--version", action="store_true", help="print the version")
    below = made.add_subparsers(dest="command")
    for name, (module, what) in commands.items():
        own = below.add_parser(name, help=what, add_help=False)
        for action in _of(module)._actions:
            own._add_action(action)
    return made


def _of(module: str) -> argparse.ArgumentParser:
    """Return the parser of a command's module, or of the program of `run_*.py` that it stands for."""
    if module.startswith("run_"):
        found: argparse.ArgumentParser = programs.module(module).parser()
        return found
    made: argparse.ArgumentParser = importlib.import_module(f"convscope.{module}")._parser()
    return made


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=NAME,
        examples=("bash", "zsh"),
        description="A script that completes commands, options and their choices.",
        epilog='bash: eval "$(convscope completion bash)" in ~/.bashrc; zsh: _convscope in a folder of fpath.',
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="shell to complete in")
    return parser
