"""A file of combinations: read, cut into arrays, without what is finished; and how such a file comes about."""

from __future__ import annotations

from pathlib import Path

import pytest

from convscope.cluster import matrix
from convscope.cluster.progress import Progress
from convscope.errors import InputError
from convscope.profiling import listing
from convscope.storage.paths import Combination

WHO = Combination("alexnet", "fft", "h200")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "matrix.tsv"
    path.write_text(text)
    return path


def test_a_line_is_model_algorithm_and_gpu_and_each_counts_once(tmp_path: Path):
    path = written(tmp_path, "# comment\n\nalexnet\tfft_tiling\th200\nalexnet\tfft tiling\th200\nvgg16\tgemm\n")
    assert matrix.read(path, "l40s") == [
        Combination("alexnet", "fft tiling", "h200"),
        Combination("vgg16", "gemm", "l40s"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alexnet\tfft\n", "line 1 names no GPU"),
        ("alexnet fft h200\n", "is not model, algorithm, GPU, separated by tabs"),
        ("$(touch x)\tfft\th200\n", "is not model, algorithm, GPU"),
        ("alexnet\tnone\th200\n", "none"),
        ("# nothing\n", "has no combination"),
    ],
)
def test_a_line_that_is_no_combination_is_named(tmp_path: Path, text: str, why: str):
    with pytest.raises(InputError, match=why.replace("(", r"\(")):
        matrix.read(written(tmp_path, text))


def test_parts_are_of_one_gpu_and_no_longer_than_the_site_allows():
    every = [Combination("alexnet", "fft", gpu) for gpu in ("a", "b", "a", "a", "b")]
    assert [[each.gpu for each in part] for part in matrix.slices(every, 2)] == [["a", "a"], ["a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ([], False),
        (["--num-sizes", "5"], True),
        (["--input-range", "224", "500"], True),
        (["--overwrite"], True),
    ],
)
def test_what_has_all_the_sizes_that_are_asked_for_is_finished(flags: list[str], left: bool):
    sizes = tuple(range(224, 224 + 32 * 10, 32))
    found = progress_of(*sizes[:-1], 512)
    assert matrix.requested_sizes("2_quick", flags).met_by(found) is not left


def progress_of(*sizes: int, **statuses: tuple[int, ...]) -> Progress:
    """Return the progress of a folder with these sizes, and these by another status than ok."""
    measured = dict.fromkeys(sizes, "ok") | {size: status for status, of in statuses.items() for size in of}
    return Progress(Path(), "2_quick", WHO, sizes, measured=measured)


TEN = tuple(224 + int(i * 288 / 9) for i in range(10))


def test_a_folder_that_has_more_sizes_than_are_asked_for_is_finished():
    assert matrix.requested_sizes("2_quick", []).met_by(progress_of(*TEN, 230, 600))


def test_a_folder_whose_last_start_asked_for_a_few_is_finished_where_all_are_there():
    folder = Progress(Path(), "2_quick", WHO, TEN[:2], measured=dict.fromkeys(TEN, "ok"))
    assert matrix.requested_sizes("2_quick", []).met_by(folder)


@pytest.mark.parametrize(("flags", "left"), [([], False), (["--retry"], True)])
@pytest.mark.parametrize("status", ["failed", "oom"])
def test_sizes_that_failed_are_there_unless_they_are_to_be_retried(flags: list[str], left: bool, status: str):
    folder = progress_of(*TEN, **{status: TEN[-1:]})
    assert matrix.requested_sizes("2_quick", flags).met_by(folder) is not left


def test_an_unsupported_size_is_not_retried():
    assert matrix.requested_sizes("2_quick", ["--retry"]).met_by(progress_of(*TEN, unsupported=TEN[-1:]))


def test_a_run_with_a_size_missing_is_not_finished():
    folder = Progress(Path(), "2_quick", WHO, TEN, measured=dict.fromkeys(TEN[1:], "ok"))
    assert not matrix.requested_sizes("2_quick", []).met_by(folder)


def test_one_folder_for_all_combinations_is_refused():
    with pytest.raises(InputError, match="every combination needs a folder of its own"):
        matrix.requested_sizes("2_quick", ["--output-dir", "x"])


def test_the_file_of_an_array_never_changes(tmp_path: Path):
    first, second = matrix.save([WHO], tmp_path), matrix.save([WHO, WHO], tmp_path)
    assert first != second
    assert first.read_text() == "alexnet\tfft\th200\n"


def test_the_command_takes_flags_after_two_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path, "torchvision:no_such_run\tfft\n")
    arguments = [str(path), "--stage", "2_quick", "--gpu", "h200", "--into", str(tmp_path), "--", "--num-sizes", "3"]
    assert matrix.main(arguments) == 0
    name, gpu, lines = capsys.readouterr().out.split()
    assert (gpu, lines) == ("h200", "1")
    assert matrix.read(Path(name)) == [Combination("torchvision:no_such_run", "fft", "h200")]


def test_a_list_of_combinations_comments_out_what_the_rules_rule_out(tmp_path: Path):
    listed = listing.combination_list(["alexnet"], ["winograd", "guess"], "h200", (224, 512))
    first, second = listed.splitlines()
    assert first.startswith("# alexnet winograd: ")
    assert second == "alexnet\tguess\th200"
    assert matrix.read(written(tmp_path, listed)) == [Combination("alexnet", "guess", "h200")]


def test_a_list_of_a_cpu_has_what_a_cpu_runs():
    listed = listing.combination_list(["alexnet"], None, "cpu", (224, 224)).splitlines()
    assert [line for line in listed if not line.startswith("#")] == [
        f"alexnet\t{algorithm}\tcpu" for algorithm in ("direct", "smm", "torch")
    ]
