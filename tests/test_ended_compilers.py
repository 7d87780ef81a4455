"""Compilers that the signal to end has reached as well: nothing that they leave behind is a result."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import PTXASError

from convscope import failures
from convscope.cli.parser import command
from convscope.cli.signals import StopSignal
from convscope.errors import CONTINUE, CompilerEndedError
from convscope.failures import Failure
from convscope.kernels import autotune
from convscope.kernels.blocks import Blocks2d

CPU = torch.device("cpu")


def killed_compiler(number: signal.Signals) -> Exception:
    """Return what Triton raises when its assembler is ended by a signal."""
    code = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"
    try:
        try:
            subprocess.run([sys.executable, "-c", code, str(int(number))], check=True)
        except subprocess.CalledProcessError as error:
            raise PTXASError(f"`ptxas` failed with error code {error.returncode}")  # noqa: B904 - as Triton does
    except PTXASError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2"])
def test_a_compiler_that_the_signal_to_end_has_reached_is_no_row_and_no_refusal(name: str):
    error = killed_compiler(signal.Signals[f"SIG{name}"])
    assert not failures.is_kernel_refusal(error)
    said = f"^{Path(sys.executable).name} was ended by {name}: run the same command again to continue$"
    for classified in (failures.classify, lambda error: failures.of_cell(error, CPU)):
        with pytest.raises(CompilerEndedError, match=said):
            classified(error)


def test_a_compiler_that_was_killed_or_crashed_is_a_failed_row():
    for number in (signal.SIGKILL, signal.SIGSEGV):
        error = killed_compiler(number)
        assert failures.is_kernel_refusal(error)
        assert failures.classify(error) == Failure("failed", f"PTXAS error: `ptxas` failed with error code {-number}")


@pytest.mark.parametrize(("name", "code"), [("USR2", 85), ("TERM", 75)])
def test_a_command_whose_compiler_was_ended_ends_as_the_signal_says(
    name: str, code: int, capsys: pytest.CaptureFixture[str]
):
    def work(stop: StopSignal) -> int:
        signal.raise_signal(signal.Signals[f"SIG{name}"])
        raise CompilerEndedError(f"ptxas was ended by {name}: {CONTINUE}")

    assert command("run.py", work) == code
    assert capsys.readouterr().err == f"run.py: ptxas was ended by {name}: run the same command again to continue\n"


def test_no_blocks_are_chosen_while_some_could_not_be_compiled(tmp_path: Path):
    def launcher(blocks: Blocks2d) -> autotune.Launch:
        raise killed_compiler(signal.SIGTERM)

    path = tmp_path / "choices.json"
    with pytest.raises(PTXASError):
        autotune.BlockCache(path, Blocks2d).choose("a", [Blocks2d("plane", 64, 32, 16, 4, 2)], launcher)
    assert not path.exists()
