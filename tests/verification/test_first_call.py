"""First calls: the time of each layer's first call beside its later ones, and after how many passes a way has paid."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from fakes import ENVIRONMENT, layer, run

import run_verify
from convscope.storage.store import Store
from convscope.verification import first_call
from convscope.verification.first_call import Calls
from convscope.verification.request import make_verification
from convscope.verification.rows import FIRST_CALL, FirstPassRow, ModelKey

LAYERS = (layer(name="one", position=0), layer(name="two", position=1))
KEY = ModelKey("net", 64, 1, "fp32")


def calls(first_ms: float, pass_ms: float, **changes: object) -> Calls:
    given = {"ran": ("direct", None), "workspaces": (64, None), "reasons": (None, "no room"), "library_ms": 3.0}
    passes_ms = [pass_ms - 0.01, pass_ms, pass_ms + 0.01]
    return Calls([(first_ms, 1.0, 0.5), (2.0, 2.5, 1.5)], passes_ms=passes_ms, **given | changes)  # type: ignore[arg-type]


def test_a_first_call_costs_what_it_takes_more_than_the_least_of_the_later_ones():
    found = calls(9.0, 4.0)
    assert found.first_ms == [9.0, 2.0]
    assert found.later_ms == [0.5, 1.5]
    assert found.extra_ms == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("way", "after"),
    [
        (calls(109.0, 3.0), 100),  # 100 ms more at first, 1 ms less in each pass
        (calls(109.0, 2.5), 67),
        (calls(109.0, 4.0), None),
        (calls(109.0, 3.99), None),  # less than the placements differ
        (calls(109.0, 5.0), None),
        (calls(1.0, 3.0), 1),  # better from the first pass on
    ],
)
def test_a_way_has_paid_when_its_passes_have_saved_what_the_first_cost(way: Calls, after: int | None):
    assert first_call.pays_after(way, calls(9.0, 4.0)) == after


def test_rows_and_text_say_where_the_first_pass_goes():
    found = {"torch": calls(9.0, 4.0), "direct": calls(109.0, 3.0, library_ms=math.nan)}
    made = first_call.rows(KEY, run(), ENVIRONMENT, LAYERS, found)
    passes = [row for row in made if isinstance(row, FirstPassRow)]
    assert [(row.convolutions_by, row.pays_after, row.layers_by_torch) for row in passes] == [
        ("torch", None, 1),
        ("direct", 100, 1),
    ]
    assert passes[1].library_ms is None
    by_layer = [row for row in made if not isinstance(row, FirstPassRow)]
    assert [(row.layer, row.extra_ms, row.ran, row.reason) for row in by_layer[2:]] == [
        ("one", 108.5, "direct", None),
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
    found = first_call.in_this_process(asked, "direct")
    assert found.times_ms == [(1000.0,) * first_call.PASSES] * 5
    assert set(found.ran) == {"direct"}
    assert set(found.reasons) == {None}
    assert found.library_ms == 1000.0
    assert len(found.passes_ms) == first_call.PLACEMENTS
    assert min(found.passes_ms) > 0


def test_each_way_has_a_process_of_its_own_and_one_that_fails_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(first_call.WAYS, "cpu", ("torch", "gemm"))  # type: ignore[arg-type]
    arguments = ["--model", "alexnet", "--first-call", "--device", "cpu", "--input-size", "64"]
    assert run_verify.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "gemm is left out: gemm needs a CUDA device" in printed.err
    assert "torch" in printed.out
    (folder,) = tmp_path.iterdir()
    rows = Store(folder, FIRST_CALL).objects("first_call", "first_passes")
    assert len(rows["first_call"]) == 5
    assert all(row.later_ms > 0 for row in rows["first_call"])
    assert [row.convolutions_by for row in rows["first_passes"]] == ["torch"]
    assert (folder / "first_call.csv").exists()
    assert run_verify.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    assert "nothing measured" in capsys.readouterr().err
