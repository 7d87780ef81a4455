"""Completion of the command `convscope` by a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from convscope.__main__ import COMMANDS, main

BASH = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_convscope
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        printed: list[str] = []
        patched.setattr("builtins.print", lambda text: printed.append(text))
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "convscope.bash"
    path.write_text(printed[0])
    return path


def completed(script: Path, *words: str) -> set[str]:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", BASH, "bash", str(script), *words], capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


def test_every_command_is_completed(script: Path):
    assert completed(script, "convscope", "") == {*COMMANDS}
    assert completed(script, "convscope", "pro") == {"profile"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["profile", "--input-r"], {"--input-range"}),
        (["profile", "--layout", ""], {"nchw", "nhwc"}),
        (["verify", "--first-c"], {"--first-call"}),
        (["infer", "--input-s"], {"--input-size"}),
        (["predict", "app"], {"apply"}),
        (["report", "--pub"], {"--public"}),
        (["status", "--js"], {"--json"}),
    ],
)
def test_options_and_their_choices_are_completed(script: Path, words: list[str], expected: set[str]):
    assert completed(script, "convscope", *words) == expected


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", shell]) == 0
    assert "profile" in capsys.readouterr().out


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "cmd"])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
