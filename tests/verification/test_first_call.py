"""First calls: the time of each layer's first call beside its later ones, and after how many passes a way has paid."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from fakes import ENVIRONMENT, ROOT, layer, run

import run_verify
from convscope.convolution import models
from convscope.convolution.assignment import Assignment
from convscope.profiling.request import Run
from convscope.storage.store import Store
from convscope.verification import first_call
from convscope.verification.evidence import open_subject
from convscope.verification.first_call import Calls, Way
from convscope.verification.request import make_verification
from convscope.verification.rows import FIRST_CALL, FirstPassRow, ModelKey

_measured = first_call.in_this_process


def ends_for_direct(run: Run, way: str, assigned: Assignment) -> Calls:
    """Measure, or end the process as a lost one does; by its name, which another process can import."""
    if way == "direct":
        os._exit(3)
    return _measured(run, way, assigned)


LAYERS = (layer(name="one", position=0), layer(name="two", position=1))
KEY = ModelKey("net", 64, 1, "fp32")


def way(first_ms: float, pass_ms: float, library_ms: float | None = 3.0, spread_ms: float = 0.0) -> Way:
    calls = Calls([(first_ms, 1.0, 0.5), (2.0, 2.5, 1.5)], ("direct", None), (64, None), library_ms)
    shared = (-0.1, 0.0, 0.1)  # of a placement, the same for all
    passes_ms = [pass_ms + both + one * spread_ms for both, one in zip(shared, (1, -2, 1), strict=True)]
    return Way(Assignment({"one": "direct", "two": "torch"}, {"two": "no room"}), calls, passes_ms)


def test_a_first_call_costs_what_it_takes_more_than_the_least_of_the_later_ones():
    found = way(9.0, 4.0).calls
    assert found.first_ms == [9.0, 2.0]
    assert found.later_ms == [0.5, 1.5]
    assert found.extra_ms == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("other", "after"),
    [
        (way(108.5, 3.0), 100),  # 100 ms more at first, 1 ms less in each pass
        (way(108.5, 2.5), 67),
        (way(108.5, 4.0), None),
        (way(108.5, 5.0), None),
        (way(108.5, 3.9, spread_ms=0.05), None),  # less than placements scatter
        (way(1.0, 3.0), 1),  # better from the first pass on
    ],
)
def test_a_way_has_paid_when_its_passes_have_saved_what_the_first_cost(other: Way, after: int | None):
    assert first_call.pays_after(other, way(9.0, 4.0)) == after


def test_rows_and_text_say_where_the_first_pass_goes():
    found = {"torch": way(9.0, 4.0), "direct": way(108.5, 3.0, None)}
    made = first_call.rows(KEY, run(), ENVIRONMENT, LAYERS, found)
    passes = [row for row in made if isinstance(row, FirstPassRow)]
    assert [(row.convolutions_by, row.pays_after, row.layers_by_torch) for row in passes] == [
        ("torch", None, 1),
        ("direct", 100, 1),
    ]
    by_layer = [row for row in made if not isinstance(row, FirstPassRow)]
    assert [(row.layer, row.extra_ms, row.ran, row.reason) for row in by_layer[2:]] == [
        ("one", 108.0, "direct", None),
        ("two", 0.5, None, "no room"),
    ]
    lines = first_call.text(passes, by_layer).splitlines()
    assert lines[1].split() == ["torch", "1", "of", "2", "9.0", "one", "8.5", "3", "4.000", "-", "-"]
    assert lines[2].endswith("after 100 passes")
    assert "+1000.0 ± " in lines[2]
    assert " - " in lines[2]  # the library's time is not known


def test_a_layer_is_timed_in_each_pass_and_says_what_ran(monkeypatch: pytest.MonkeyPatch):
    asked = make_verification("alexnet", "torch", 64, device="cpu", question="first_call")
    ticks = itertools.count()
    monkeypatch.setattr(first_call, "_now_s", lambda device: float(next(ticks)))
    names = [layer.name for layer in models.convolutions("alexnet", 64)]
    found = first_call.in_this_process(asked, "direct", Assignment(dict.fromkeys(names, "direct"), {}))
    assert found.times_ms == [(1000.0,) * first_call.PASSES] * 5
    assert set(found.ran) == {"direct"}
    assert found.library_ms == 1000.0


@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nchw"), ("float32", "nhwc")])
def test_a_way_that_no_layer_can_use_is_left_out(dtype: str, layout: str):
    noted: list[str] = []
    asked = make_verification("alexnet", "torch", 64, device="cpu", dtype=dtype, layout=layout)
    with open_subject(asked) as subject:
        assert list(first_call.assignments(subject, noted.append)) == ["torch"]
    why = "in float32 and NCHW only"
    assert [
        line.startswith(f"{name} is left out: ai3") and why in line
        for name, line in zip(("direct", "smm"), noted, strict=True)
    ]


@pytest.mark.long
def test_each_way_has_a_process_of_its_own_and_one_that_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(first_call.WAYS, "cpu", ("torch", "direct"))  # type: ignore[arg-type]
    monkeypatch.setattr(first_call, "in_this_process", ends_for_direct)
    own = f"{ROOT}/tests/fakes/own_models.py:Branch"
    arguments = ["--model", own, "--first-call", "--device", "cpu", "--input-size", "32"]
    assert run_verify.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "direct is left out: its process has ended" in printed.err
    assert "torch" in printed.out
    (folder,) = tmp_path.iterdir()
    rows = Store(folder, FIRST_CALL).objects("first_call", "first_passes")
    assert len(rows["first_call"]) == 2
    assert all(row.later_ms > 0 for row in rows["first_call"])
    assert [row.convolutions_by for row in rows["first_passes"]] == ["torch"]
    assert (folder / "first_call.csv").exists()
    assert run_verify.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    assert "nothing measured" in capsys.readouterr().err
