"""Shell blocks of documents: markers are read, commands run, and output is compared but for what is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.shell_blocks import Command, commands, difference, failure, marked, workplace

PAGE = """
<!-- run -->
```
$ echo one; echo two
one
two

$ printf '%s\\n' \\
    three   # a remark
three
```

```
not marked
```

<!-- run: commands 1 3, exit 0 2 -->
```
first   # a remark
second
third --option '#1'
```
"""


def test_the_commands_of_marked_blocks_are_found_with_their_outputs_and_exit_codes():
    one, two = marked(PAGE)
    assert one == [
        Command("echo one; echo two", output=("one", "two", "")),
        Command("printf '%s\\n'     three", output=("three",)),
    ]
    assert two == [Command("first"), Command("third --option '#1'", 2)]


def test_one_exit_code_is_that_of_the_last_command():
    assert [each.exit_code for each in commands("one\ntwo\n", "exit 2")] == [0, 2]


def test_output_may_be_left_out_of_the_comparison():
    text = "$ one\nprinted\n$ two\nprinted\n"
    assert commands(text, "output not compared") == [Command("one"), Command("two")]
    assert commands(text, "output of 1 not compared") == [Command("one"), Command("two", output=("printed",))]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<!-- run: quickly -->\n```\none\n```\n", "a marker of a block has no setting 'quickly'"),
        ("<!-- run: exit 0 2 -->\n```\none\n```\n", "2 exit codes for 1 commands"),
        ("<!-- run -->\n```\nprinted\n$ one\n```\n", "a block begins with output: printed"),
        ("<!-- run -->\n\n```\none\n```\n", "a marker is not directly above a block"),
        ("<!-- run -->\n```python\none\n```\n", "a marker is not directly above a block"),
    ],
)
def test_a_marker_that_cannot_be_followed_is_refused(page: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        marked(page)


SHOWN = """
…
size  mean ± std, ms   slowest, ms (% of the pass)
 64   11.976 ± 0.249   features.8 1.009 (8 %), features.6 0.778 (6 %)
work: matrix product 71 %, convolution 27 %
  body  ████████▎  3e-05
224  472.8136  18.9580  -96.0  -99.1 … -92.9  faster
layers: 1 slower, 7 ambiguous
energy  -
saved: …/results/alexnet_cpu
"""
PRINTED = """
command: it
versions: 1.2.3
size  mean ± std, ms  slowest, ms (% of the pass)
64    9.1 ± 0.10      features.10 2.1 (12 %), features.0 1,000.5 (3 %)
work: convolution 90 %, matrix product 7 %, copy 1 %
  body  ███  1.5
224  4.8  18.9  +1.0  +0.1 … +2.9  slower
layers: 5 faster
energy  12.5
saved: results/alexnet_cpu
"""


def test_numbers_bars_spaces_and_verdicts_about_times_may_differ():
    assert difference(SHOWN.splitlines(), PRINTED.splitlines()) == ""


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("slowest, ms", "fastest, ms"),
        ("energy  12.5", "energy  none"),
        ("alexnet_cpu", "vgg16_cpu"),
        ("  body  ███  1.5\n", ""),
        ("energy  12.5\n", "energy  12.5\nanother line\n"),
        ("layers: 5 faster", "layers: 5 failed"),
    ],
)
def test_a_changed_word_and_a_missing_or_another_line_are_seen(there: str, here: str):
    assert PRINTED.count(there) == 1
    assert "--- document" in difference(SHOWN.splitlines(), PRINTED.replace(there, here).splitlines())


def test_a_number_in_a_name_is_no_figure():
    assert difference(["vgg16 fp32"], ["vgg19 fp32"]) != ""


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command("echo one", output=("one",)), ""),
        (Command("echo one >&2", output=("one",)), ""),
        (Command("exit 3", 3), ""),
        (Command("exit 3"), "exit code 3, not 0"),
        (Command("false | cat"), "exit code 1, not 0"),
        (Command("true", 2), "exit code 0, not 2"),
        (Command("echo one", output=("two",)), "-two\n+one"),
        (Command("true", output=("one",)), "-one"),
    ],
)
def test_a_command_runs_and_is_compared(tmp_path: Path, command: Command, reason: str):
    variables, place = workplace(tmp_path), tmp_path / ".place"
    place.write_text(str(tmp_path))
    found = failure(command, tmp_path, variables, place)
    assert reason in found
    assert bool(reason) == bool(found)


def test_the_commands_of_a_block_share_a_folder(tmp_path: Path):
    variables, place = workplace(tmp_path), tmp_path / ".place"
    place.write_text(str(tmp_path))
    for line, output in (("mkdir inner && cd inner", ()), ("pwd", ("…/inner",)), ("test -e ../run_profile.py", ())):
        assert failure(Command(line, output=output), tmp_path, variables, place) == ""
