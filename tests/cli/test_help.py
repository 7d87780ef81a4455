"""Help texts: two examples behind the usage of every command, each of them a line that the command takes."""

from __future__ import annotations

import argparse
import importlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import run_dataset
import run_verify
from convscope import __main__ as program
from convscope.cli import programs
from convscope.cli.parser import OneLineParser, split_flags
from convscope.selection import command as selection


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


COMMANDS = [*program.COMMANDS]
LINE_MOST = 120


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        program.main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def examples_in(lines: list[str]) -> list[str]:
    """Return the examples of a help text, each with the name of its program."""
    at = lines.index("examples:")
    return [line.strip().removeprefix("./") for line in lines[at + 1 : lines.index("", at)]]


def program_parser(name: str) -> OneLineParser:
    """Return the parser of a command that is no program of `run_*.py`."""
    made: OneLineParser = importlib.import_module(f"convscope.{program.COMMANDS[name][0]}")._parser()
    return made


def parser_for(name: str, words: list[str]) -> tuple[OneLineParser, list[str]]:
    """Return the parser that a command takes these words by, and the words that it is given."""
    if (name, words[:1]) == ("dataset", ["collect"]):
        return run_dataset.parser(), words[1:]
    if (name, words[:1]) == ("select", ["evaluate"]):
        return selection._evaluation_parser(), words[1:]
    module = program.COMMANDS[name][0]
    if name in program.MEASURED and words[0].startswith("-"):
        module = program.MEASURED[name]
    if module.startswith("run_"):
        return programs.module(module).parser(), [*program.FLAGS.get(name, []), *words]
    return importlib.import_module(f"convscope.{module}")._parser(), split_flags(words)[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_two_examples_that_the_command_takes(name: str, capsys: pytest.CaptureFixture[str]):
    lines = help_of(capsys, name)
    assert lines.index("examples:") <= 6, "the usage is long"
    examples = examples_in(lines)
    assert len(examples) == 2
    for example in examples:
        assert len(example) + 2 <= LINE_MOST
        parser, words = parser_for(name, shlex.split(example)[len(parser_name(lines).split()) :])
        assert f"{example} ".startswith(f"{parser_name(lines)} ")
        parser.parse_args(words)


BELOW = [
    (name, each)
    for name in ("plans", "predict")
    for action in program_parser(name)._actions
    if isinstance(action, argparse._SubParsersAction)
    for each in action.choices
]


@pytest.mark.parametrize(("name", "below"), BELOW)
def test_help_of_a_subcommand_begins_with_two_examples_too(name: str, below: str, capsys: pytest.CaptureFixture[str]):
    examples = examples_in(help_of(capsys, name, below))
    assert len(examples) == 2
    for example in examples:
        first, *words = shlex.split(example)
        assert (first, words[:2]) == ("convscope", [name, below])
        program_parser(name).parse_args(words[1:])


def parser_name(lines: list[str]) -> str:
    """Return the name of the program in the first words of its help."""
    words = lines[0].removeprefix("usage: ").split()
    return " ".join(words[:2]) if words[0] == "convscope" else words[0]


HEAVY = ("torch", "pandas", "sklearn", "lightgbm", "altair")
HELP_OF_ALL = f"""
import contextlib, sys
from convscope import __main__ as program
for words in [*([name] for name in program.COMMANDS), ["dataset", "collect"], *{BELOW}]:
    with contextlib.suppress(SystemExit):
        program.main([*words, "--help"])
    for module in {HEAVY}:
        assert module not in sys.modules, f"convscope {{' '.join(words)}} --help imports {{module}}"
"""


def test_help_imports_nothing_that_takes_long():
    subprocess.run([sys.executable, "-c", HELP_OF_ALL], check=True, stdout=subprocess.DEVNULL)


def test_the_list_of_commands_has_a_space_behind_each_name(capsys: pytest.CaptureFixture[str]):
    assert program.main(["--help"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert dict(lines) == {name: text for name, (_, text) in program.COMMANDS.items()}


@pytest.mark.parametrize(
    "name",
    ["profile", "verify", "choice", "plans", "train", "infer", "conv3d", "compare", "report", "local", "dataset"],
)
def test_examples_have_the_name_by_which_the_program_was_started(name: str, capsys: pytest.CaptureFixture[str]):
    assert all(example.startswith(f"convscope {name} ") for example in examples_in(help_of(capsys, name)))


def test_the_help_of_an_atlas_has_examples_of_an_atlas(capsys: pytest.CaptureFixture[str]):
    examples = examples_in(help_of(capsys, "plans", "--model", "resnet50"))
    assert len(examples) == 2
    assert all(each.startswith("convscope plans --model ") for each in examples)
    for each in examples:
        run_verify.parser().parse_args(["--plans", *each.split()[2:]])


@pytest.mark.parametrize(
    "file", ["run_profile", "run_verify", "run_training", "run_inference", "run_conv3d", "run_dataset"]
)
def test_a_program_of_a_checkout_has_examples_with_its_own_name(file: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        programs.module(file).main(["--help"])
    assert all(each.startswith(f"python {file}.py ") for each in examples_in(capsys.readouterr().out.splitlines()))


def test_a_long_usage_is_what_must_be_given(capsys: pytest.CaptureFixture[str]):
    assert help_of(capsys, "profile")[0] == "usage: convscope profile [OPTION …]"
    assert help_of(capsys, "select")[0] == "usage: convscope select --input-size PX MODEL [OPTION …]"


@pytest.mark.parametrize(
    ("is_checkout", "first", "said"),
    [
        (True, "/somewhere/run_training.py", "run_profile.py"),
        (True, "/venv/bin/convscope", "convscope profile"),
        (False, "/venv/bin/convscope", "convscope profile"),
        (False, "/venv/lib/site-packages/convscope/__main__.py", "convscope profile"),
    ],
)
def test_advice_names_a_program_as_the_user_can_run_it(
    is_checkout: bool, first: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(programs, "IS_CHECKOUT", is_checkout)
    monkeypatch.setattr("sys.argv", [first])
    assert programs.called("run_profile") == said


def test_every_program_has_a_command_of_the_same_work():
    files = {path.stem for path in Path(run_dataset.__file__).parent.glob("run_*.py")}
    assert programs.COMMANDS.keys() == files
    for file, name in programs.COMMANDS.items():
        assert file in (program.COMMANDS[name][0], program.MEASURED.get(name))
