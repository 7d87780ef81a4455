"""All command lines of the project, fed with arguments by chance: exit 0 or 2, and for 2 one line that says why."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.strategies import more_examples
from hypothesis import given
from hypothesis import strategies as st

import convscope.__main__
import run_conv3d
import run_inference
import run_profile
import run_training
import run_verify

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
numbers = st.one_of(
    st.integers(-2, 300),
    st.integers(),
    st.floats(),
    st.sampled_from([0, 1, 10**12, 10**30, -1, "1e3", "0x10", "½", "٣"]),
).map(str)
NAMES = """alexnet AlexNet torchvision:squeezenet1_1 torchvision:vit_b_16 torchvision: direct smm torch gemm fft_tiling
    winograd cpu cuda cuda:7 cuda: auto h200 3_full failed tf32 fp32 error fallback skip 512MB 2GiB 1e9 -1
    ∞MB /dev/null / ."""
values = st.one_of(words, numbers, st.sampled_from(NAMES.split()))


def options_of(parser: object) -> list[str]:
    """Return the options of a parser, but for those whose work takes long, and one that reads the standard input."""
    every = [option for action in parser._actions for option in action.option_strings]
    return [
        option for option in every if option not in ("--list-combinations", "--check-cuda", "--check-stages", "--watch")
    ]


def lines(parser: object) -> st.SearchStrategy[list[str]]:
    """Draw command lines: an option with its values, a word, again and again."""
    option = st.sampled_from(options_of(parser))
    one = st.one_of(
        st.tuples(option),
        st.tuples(option, values),
        st.tuples(option, numbers),
        st.tuples(option, values, values),
        st.tuples(values),
    )
    return st.lists(one, max_size=8).map(lambda parts: [word for part in parts for word in part])


PROFILE, VERIFY = run_profile.parser(), run_verify.parser()
ASKED = ["--model", "alexnet", "--algorithm", "torch", "--device", "cpu"]


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the option that keeps every run from beginning: its folder lies below a file."""
    file = tmp_path_factory.mktemp("command") / "file"
    file.write_text("")
    return ["--output-dir", str(file / "run")]


def answers(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
    assert code in (0, 2), (arguments, err.getvalue())
    if code == 2:
        said = err.getvalue()
        assert said.endswith("\n"), arguments
        assert len(said.splitlines()) == 1, (arguments, said)


@more_examples(15)
@given(before=st.sampled_from([[], ASKED]), more=lines(PROFILE))
def test_run_profile(nowhere: list[str], before: list[str], more: list[str]):
    answers(run_profile.main, [*before, *more, *nowhere])


NUMBERS = """--num-sizes --batch-size --warmup --measure --seed --energy-warmup --energy-precision --energy-budget
    --max-workspace --input-range --device --gpu"""


@more_examples(5)
@given(more=st.lists(st.tuples(st.sampled_from(NUMBERS.split()), values), min_size=1, max_size=3), high=numbers)
def test_run_profile_with_one_thing_wrong(nowhere: list[str], more: list[tuple[str, str]], high: str):
    """Command lines that get past the parser and could run, with odd values in them."""
    asked = [word for name, value in more for word in (name, value, *([high] if name == "--input-range" else []))]
    answers(run_profile.main, [*ASKED, *asked, *nowhere])


@more_examples(5)
@given(more=lines(VERIFY))
def test_run_verify(more: list[str]):
    answers(run_verify.main, ["--device", "cpu", *more, "--algorithm", "gemm"])


@more_examples(5)
@given(more=lines(run_inference.parser()))
def test_run_inference(nowhere: list[str], more: list[str]):
    answers(run_inference.main, ["--device", "cpu", *more, "--gpus", "1", *nowhere])


@more_examples(5)
@given(more=lines(run_training.parser()))
def test_run_training(nowhere: list[str], more: list[str]):
    answers(run_training.main, ["--device", "cpu", *more, *nowhere])


@more_examples(5)
@given(more=lines(run_conv3d.parser()))
def test_run_conv3d(nowhere: list[str], more: list[str]):
    answers(run_conv3d.main, ["--device", "cpu", *more, *nowhere])


OPTIONS = "--stage 3_full --model --algorithm --gpu --state --json --into --most --dry-run -- --help --version"


@more_examples(5)
@given(
    command=st.sampled_from(["status", "matrix", ""]) | words,
    more=st.lists(values | st.sampled_from(OPTIONS.split()), max_size=6),
)
def test_convscope(command: str, more: list[str]):
    if command == "matrix":
        more = ["--dry-run", *more]
    answers(convscope.__main__.main, [command, *more])


def test_every_option_of_run_profile_is_drawn_from():
    assert len(options_of(PROFILE)) > 25
    assert Path(run_profile.__file__).exists()


@pytest.mark.parametrize("path", ["\0", "\ud800", "x" * 5000, "/dev/null/x", "/proc/x"])
def test_a_folder_that_cannot_be(path: str):
    answers(run_profile.main, [*ASKED, "--test", "--output-dir", path])
