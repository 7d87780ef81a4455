"""Comparison of two runs at its edges: intervals that end on a border, rows that lack something, the text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import ENVIRONMENT, LAYER_ROW, OVERALL, run

from convscope.errors import InputError
from convscope.profiling.comparison import compare
from convscope.profiling.comparison.compare import Comparison, Result
from convscope.profiling.rows import LayerRow, OverallRow, profile_store

ABOUT = {
    "model": "alexnet", "algorithm": "direct", "math": "fp32", "batch_size": 1, "dtype": "float32", "layout": "nchw",
    "device_type": "cuda", "gpu_name": "NVIDIA H200", "cpu": "a processor",
}  # fmt: skip
PASS = dataclasses.replace(OVERALL, mean=1.0, std=0.0, samples=20, sm_clock_mhz=2000, throttle_reasons="none")
LAYER = dataclasses.replace(LAYER_ROW, mean_ms=1.0, std_ms=0.0, samples=20)


def result(*rows: OverallRow | LayerRow, **about: Any) -> Result:
    """Return a folder's results with these rows; without a pass among them, with the usual one at 64 px."""
    passes = [row for row in rows if isinstance(row, OverallRow)] or [PASS]
    layers = [row for row in rows if isinstance(row, LayerRow)]
    by_place = {(row.input_size, row.position): row for row in layers}
    return Result(Path("results/it"), ABOUT | about, {row.input_size: row for row in passes}, by_place)


def overall(**changes: Any) -> OverallRow:
    return dataclasses.replace(PASS, **changes)


def layer(**changes: Any) -> LayerRow:
    return dataclasses.replace(LAYER, **changes)


def judged(a: OverallRow, b: OverallRow, tolerance_pct: float = 5.0) -> Comparison:
    (found,) = compare.passes(result(a), result(b), tolerance_pct)
    return found


@pytest.mark.parametrize(
    ("low_pct", "high_pct", "verdict"),
    [
        (5.0, 6.0, "ambiguous"),
        (5.01, 6.0, "slower"),
        (-6.0, -5.0, "ambiguous"),
        (-6.0, -5.01, "faster"),
        (-5.0, 5.0, "same"),
        (-5.01, 5.0, "ambiguous"),
        (-5.0, 5.01, "ambiguous"),
    ],
)
def test_an_interval_that_ends_on_a_border_is_within_it(low_pct: float, high_pct: float, verdict: str):
    assert compare.verdict(low_pct, high_pct, 5.0) == verdict


def test_times_without_spread_are_apart_by_their_exact_difference():
    found = judged(PASS, overall(mean=1.25))
    assert (found.change_pct, found.low_pct, found.high_pct, found.verdict) == (25.0, 25.0, 25.0, "slower")
    found = judged(overall(mean=2.0), overall(mean=1.5))
    assert (found.change_pct, found.low_pct, found.high_pct, found.verdict) == (-25.0, -25.0, -25.0, "faster")


def test_the_overheads_of_two_runs_widen_a_layers_interval_by_their_difference():
    a = result(overall(event_overhead_us=3.0), layer(), layer(position=1, mean_ms=0.5))
    b = result(overall(event_overhead_us=503.0), layer(), layer(position=1, mean_ms=0.5))
    found = compare.layers(a, b, 50.0)
    assert [(one.low_pct, one.high_pct, one.verdict) for one in found] == [
        (-50.0, 50.0, "same"),
        (-100.0, 100.0, "ambiguous"),
    ]
    assert found[1].reason == "the interval crosses -50 and +50 %"
    known, unknown = result(overall(event_overhead_us=500.0), layer()), result(layer())
    for pair in ((known, unknown), (unknown, known)):
        (one,) = compare.layers(*pair, 49.9)
        assert (one.low_pct, one.reason) == (-50.0, "the interval crosses -49.9 and +49.9 %")


@pytest.mark.parametrize(("b_ms", "border"), [(1.25, "+25"), (1.375, "+25"), (0.75, "-25"), (0.625, "-25")])
def test_a_border_that_is_just_reached_is_named(b_ms: float, border: str):
    a, b = (
        result(overall(event_overhead_us=0.0), layer()),
        result(overall(event_overhead_us=125.0), layer(mean_ms=b_ms)),
    )
    (found,) = compare.layers(a, b, 25.0)
    assert (found.verdict, found.reason) == ("ambiguous", f"the interval crosses {border} %")


@pytest.mark.parametrize(
    "row",
    [overall(mean=None), overall(mean=0.0), overall(mean=-1.0), overall(samples=None)],
    ids=["none", "0", "-1", "count"],
)
def test_a_row_without_a_time_is_not_compared(row: OverallRow):
    for found in (judged(row, PASS), judged(PASS, row)):
        assert (found.verdict, found.reason, found.change_pct) == ("not compared", "no time", None)


@pytest.mark.parametrize("lone", [{"samples": 1}, {"std": None}, {"samples": 1, "std": None}])
def test_one_sample_says_nothing_of_its_spread_and_two_do(lone: dict[str, Any]):
    for a, b in ((PASS, overall(mean=2.0, **lone)), (overall(mean=1.0, **lone), overall(mean=2.0))):
        found = judged(a, b)
        assert (found.verdict, found.change_pct, found.low_pct) == ("ambiguous", 100.0, None)
    assert judged(overall(samples=2), overall(mean=2.0, samples=2)).verdict == "slower"


def test_rows_that_are_not_ok_are_not_compared_and_both_are_named():
    found = judged(overall(status="oom", mean=None), overall(status="failed", mean=None))
    assert (found.verdict, found.reason, found.a_ms, found.b_ms) == (
        "not compared",
        "A is oom, B is failed",
        None,
        None,
    )
    found = judged(overall(status="failed"), PASS)
    assert (found.reason, found.a_ms, found.b_ms) == ("A is failed", 1.0, 1.0)


@pytest.mark.parametrize(("clock_mhz", "verdict"), [(2000, "slower"), (1800, "ambiguous"), (2200, "slower")])
def test_a_slower_clock_may_account_for_a_slower_run(clock_mhz: int, verdict: str):
    assert judged(PASS, overall(mean=1.125, sm_clock_mhz=clock_mhz)).verdict == verdict


@pytest.mark.parametrize(("clock_mhz", "verdict"), [(1500, "same"), (1498, "ambiguous")])
def test_sameness_stands_where_the_clock_accounts_for_less_than_the_tolerance(clock_mhz: int, verdict: str):
    found = judged(PASS, overall(sm_clock_mhz=clock_mhz), 25.0)
    assert found.verdict == verdict
    shares = "clocks of 2000 and 1498 MHz can account for 25.1 %" if verdict == "ambiguous" else ""
    assert found.reason == shares


@pytest.mark.parametrize("missing", [None, 0])
def test_without_both_clocks_the_times_decide(missing: int | None):
    for a, b in ((missing, 1000), (1000, missing)):
        assert judged(overall(sm_clock_mhz=a), overall(mean=1.125, sm_clock_mhz=b)).verdict == "slower"


def test_fallbacks_of_both_runs_stand_behind_the_reason():
    found = judged(overall(fallback_layers=2, samples=1), overall(fallback_layers=1))
    spread = "a single sample says nothing of its spread"
    assert found.reason == f"{spread}, A ran 2 layers with a fallback, B ran 1 layer with a fallback"
    assert judged(overall(fallback_layers=0), PASS).reason == ""


def test_sizes_and_layers_of_one_run_are_shown_in_order():
    a = result(PASS, overall(input_size=32), layer(position=1, layer="a1"), layer(position=0))
    b = result(PASS, overall(input_size=96), layer(position=2, layer="b2"), layer(position=0, energy_j=2.0))
    passes, layers = compare.passes(a, b, 5.0), compare.layers(a, b, 5.0)
    assert [(one.input_size, one.reason) for one in passes] == [(32, "only in A"), (64, ""), (96, "only in B")]
    assert [(one.position, one.layer, one.reason) for one in layers] == [
        (0, "features.0", ""),
        (1, "a1", "only in A"),
        (2, "b2", "only in B"),
    ]
    assert (layers[0].a_j, layers[0].b_j) == (None, 2.0)


def test_layers_of_a_size_that_one_run_lacks_are_left_out():
    a = result(PASS, overall(input_size=32), layer(input_size=32), layer())
    assert [one.input_size for one in compare.layers(a, result(layer(), layer(input_size=32)), 5.0)] == [64]


def test_the_work_the_environment_and_what_is_noted_are_told_apart():
    a = result(host="node1", driver="1")
    assert compare.differences(a, a, across=False) == {}
    assert compare.differences(a, result(host="node2", driver="1"), across=False) == {"host": ("node1", "node2")}
    with pytest.raises(InputError, match=r"different work \(model alexnet and vgg16, batch_size 1 and 2\)"):
        compare.differences(a, result(model="vgg16", batch_size=2), across=True)
    with pytest.raises(InputError, match=r"different environments \(driver 1 and 2\): --across compares them"):
        compare.differences(a, result(host="node2", driver="2"), across=False)
    found = compare.differences(a, result(host="node2", driver="2"), across=True)
    assert found == {"driver": ("1", "2"), "host": ("node1", "node2")}


@pytest.mark.parametrize(("a", "b", "matters"), [("cuda", "cuda", False), ("cuda", "cpu", True), ("cpu", "cuda", True)])
def test_the_processor_matters_where_one_run_was_on_it(a: str, b: str, matters: bool):
    found = compare.differences(result(device_type=a), result(device_type=b, cpu="another"), across=True)
    assert ("cpu" in found) is matters


def test_differences_are_listed_or_there_is_nothing():
    assert compare.in_words({"driver": ("1", "2"), "math": ("tf32", "fp32")}) == "driver 1 and 2, math tf32 and fp32"
    assert compare.in_words({}) == "nothing"


def test_verdicts_are_counted_worst_first():
    found = [Comparison(64, verdict) for verdict in ("same", "faster", "same", "slower")]
    assert compare.counted(found) == "1 slower, 2 same, 1 faster"
    assert compare.counted([]) == "none"


def shown(*found: Comparison) -> list[list[str]]:
    """Return the cells of a table's lines, cut at two spaces or more."""
    text = compare.as_text(result(), result(gpu_name=None), {"host": (1, 2)}, found, ())
    return [[cell for cell in line.split("  ") if cell] for line in text.splitlines()[4:]]


def test_escape_sequences_in_the_files_of_a_run_are_shown_and_not_sent():
    text = compare.as_text(result(gpu_name="\x1b[2J"), result(), {"host": ("a\n", "b")}, [], ())
    assert all(line.isprintable() for line in text.splitlines())
    assert "\\x1b[2J" in text


def test_a_table_has_the_columns_that_some_row_of_both_runs_fills():
    bare = Comparison(64, "same", a_ms=1.0, b_ms=2.0, change_pct=100.0, low_pct=99.0, high_pct=101.0)
    half = dataclasses.replace(bare, a_w=5.0, b_j=0.5)
    assert shown(bare, half)[0] == ["size", " A, ms", " B, ms", "change, %", " 95 % interval", "verdict"]
    full = dataclasses.replace(bare, layer="conv1", a_w=5.0, b_w=6.4, a_j=0.5, b_j=0.0012346, reason="why")
    lines = [" ".join(line).split() for line in shown(half, full)]
    assert " ".join(lines[0]) == "size layer A, ms B, ms change, % 95 % interval A, W B, W A, mJ B, mJ verdict"
    assert " ".join(lines[1]) == "64 1.0000 2.0000 +100.0 +99.0 … +101.0 5 - - 500.0 same"
    assert " ".join(lines[2]) == "64 conv1 1.0000 2.0000 +100.0 +99.0 … +101.0 5 6 500.0 1.2 same: why"


def test_a_run_without_a_gpu_is_titled_with_its_processor():
    lines = compare.as_text(result(), result(gpu_name=None), {}, [], ()).splitlines()
    assert lines[:3] == [
        "A  results/it: alexnet, direct, fp32, batch 1, on NVIDIA H200",
        "B  results/it: alexnet, direct, fp32, batch 1, on a processor",
        "they differ in: nothing",
    ]


def written(path: Path, *rows: Any, **environment: Any) -> str:
    """Write a folder of results and return its name."""
    asked = run(device="cuda:0", gpu="h200")
    folder = profile_store(path, asked.stem)
    folder.prepare()
    folder.begin(asked, dataclasses.replace(ENVIRONMENT, **environment), [])
    folder.append(rows or (PASS, LAYER))
    return str(path)


def test_a_run_is_known_by_the_kind_of_its_device(tmp_path: Path):
    assert compare.read(Path(written(tmp_path / "a"))).about["device_type"] == "cuda"


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--tolerance", "4"], 1), (["--tolerance", "0"], 1)])
def test_five_percent_is_the_tolerance_where_nothing_is_said(tmp_path: Path, options: list[str], code: int, capsys):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", overall(mean=1.0499), LAYER)
    assert compare.main([a, b, *options]) == code
    assert f"same: within {options[1] if options else 5} % (--tolerance)" in capsys.readouterr().out
    assert compare.main([a, written(tmp_path / "c", overall(mean=1.0501), LAYER)]) == 1


def test_layers_are_in_the_text_only_where_asked_for_and_always_in_json(tmp_path: Path, capsys):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", PASS, layer(mean_ms=2.0))
    assert compare.main([a, b]) == 0
    assert "features.0" not in capsys.readouterr().out
    assert compare.main([a, b, "--layers"]) == 1
    assert "features.0" in capsys.readouterr().out
    assert compare.main([a, b, "--layers", "--json"]) == 1
    text = capsys.readouterr().out
    assert text.startswith('{\n  "a"')
    said = json.loads(text)
    assert (said["a"], said["b"], said["exit_code"], said["tolerance_pct"]) == (a, b, 1, 5.0)
    assert [(one["layer"], one["change_pct"]) for one in said["layers"]] == [("features.0", 100.0)]


def test_runs_of_which_one_size_can_be_compared_are_compared(tmp_path: Path):
    a = written(tmp_path / "a")
    other = profile_store(tmp_path / "b", "alexnet_direct")
    b = written(tmp_path / "b")
    other.append([overall(input_size=96, status="oom", mean=None)])
    assert compare.main([a, b]) == 0
