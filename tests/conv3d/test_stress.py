"""The stress test: legal shapes by chance, and failures shrunk to the smallest."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import layer3d

from convscope.conv3d import stress
from convscope.conv3d import stress as stress_test
from convscope.conv3d.implementations import Implementations, Prepared
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import StressRow
from convscope.convolution import reference as references
from convscope.convolution.reference import Reference
from convscope.convolution.sources.table import why_invalid
from convscope.cudnn.shape import Convolution
from convscope.errors import DeviceFaultError
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d.layout import Blocks3d

ASKED = Conv3d("cosmoflow", ("torch",), "cpu", "cpu", math="fp32", seed=3)


class Wrong(Implementations):
    """PyTorch, with an error that only kernels of more than one row and more than two channels meet."""

    def prepare(self, name, shape, weight, blocks=None):
        ready = super().prepare(name, shape, weight, blocks)
        if shape.weight[3] == 1 or shape.input[1] <= 2:
            return ready
        return Prepared(lambda x: ready.call(x) + 0.1, ready.renew, ready.said)


def memory(folder: Path) -> BlockCache[Blocks3d]:
    return BlockCache(folder / "tuned.json", Blocks3d)


def run(rounds: int, workshop: Implementations, note: Callable[[str], None] = str) -> list[StressRow]:
    rows: list[StressRow] = []
    stress.run(ASKED, rounds, workshop, note, rows, lambda: False)
    return rows


def test_shapes_are_legal_and_of_all_kinds():
    drawn = random.Random(0)
    layers = [stress.draw(drawn) for _ in range(300)]
    assert all(why_invalid(layer) is None for layer in layers)
    assert {layer.groups for layer in layers} == {1, 2, 3}
    assert sum(layer.stride == (1, 1, 1) for layer in layers) > 100
    assert sum(layer.dilation != (1, 1, 1) for layer in layers) > 50


def test_a_right_implementation_passes_every_round(tmp_path: Path):
    with Implementations(torch.device("cpu"), memory(tmp_path)) as workshop:
        rows = run(8, workshop)
    assert [row.status for row in rows] == ["ok"] * 8
    assert all(0 <= row.elementwise_error <= row.tolerance for row in rows)


def test_a_wrong_one_is_shrunk_to_the_smallest_shape_that_shows_it(tmp_path: Path):
    said: list[str] = []
    with Wrong(torch.device("cpu"), memory(tmp_path)) as workshop:
        rows = run(6, workshop, said.append)
    wrong = [row for row in rows if row.status == "wrong"]
    assert len(wrong) > 1
    assert wrong[0].smallest in ("3-1 1x2x1 on 1x2x1, batch 1", "3-1 1x2x1 on 1, padding 0x1x0, batch 1")
    assert all("over" in row.reason for row in wrong)
    assert [row.smallest for row in wrong[1:]] == [None] * (len(wrong) - 1)  # the same again
    assert len(said) == 1


def test_a_shape_that_cannot_be_checked_is_a_row_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    exact, calls = references.reference, iter(range(100))

    def reference(x: torch.Tensor, weight: torch.Tensor, shape: Convolution) -> Reference:
        if next(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return exact(x, weight, shape)

    monkeypatch.setattr(stress_test, "reference", reference)
    with Implementations(torch.device("cpu"), memory(tmp_path)) as workshop:
        assert [row.status for row in run(3, workshop)] == ["ok", "oom", "ok"]


def test_what_was_verified_is_there_when_the_device_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows: list[StressRow] = []

    class Lost(Implementations):
        def prepare(self, *arguments: Any, **options: Any) -> Prepared:
            if len(rows) == 2:
                raise DeviceFaultError("the GPU can be used no more")
            return super().prepare(*arguments, **options)

    with Lost(torch.device("cpu"), memory(tmp_path)) as workshop, pytest.raises(DeviceFaultError):
        stress.run(ASKED, 4, workshop, lambda line: None, rows, lambda: False)
    assert [row.status for row in rows] == ["ok", "ok"]


def test_shrinking_stops_at_a_shape_of_which_nothing_smaller_fails():
    layer = layer3d(
        12, 12, (9, 8, 7), (3, 3, 3), batch=3, stride=(2, 1, 1), padding=(2, 1, 0), dilation=(1, 2, 1), groups=2
    )
    smallest = stress.shrink(layer, lambda small: small.groups == 2 and small.size[2] >= 3 and small.padding[0] >= 1)
    assert (smallest.groups, smallest.in_channels, smallest.out_channels, smallest.batch) == (2, 2, 2, 1)
    assert (smallest.size, smallest.padding, smallest.kernel) == ((1, 1, 3), (1, 0, 0), (1, 1, 1))


def test_a_shape_that_cannot_be_cut_as_the_failing_one_is_no_smaller_case_of_it(tmp_path: Path):
    asked = dataclasses.replace(ASKED, math="tf32")
    cut = Blocks3d("slices", 128, 32, 16, 4, 3, box=(2, 4, 16))
    tried: list[Convolution] = []

    class Counting(Implementations):
        def why_not(self, name: str, shape: Convolution) -> str | None:
            tried.append(shape)
            return super().why_not(name, shape)

    plain = layer3d(16, 16, (4, 4, 4), (3, 3, 3))
    with Counting(torch.device("cpu"), memory(tmp_path)) as workshop:
        fails = stress._failing(asked, "gemm", cut, 0, workshop)
        assert not fails(plain.resized(stride=(2, 1, 1)))
        assert tried == []
        assert not fails(plain)
        assert tried == [plain.convolution("float32", "tf32")]
