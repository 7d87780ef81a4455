"""Samples of a group: what its atlas of plans says of each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from convscope.atlas.rows import PlanRow
from convscope.dataset.collect.coverage import Group, Stratum
from convscope.dataset.collect.group import GroupFolder
from convscope.dataset.collect.uses import Use
from convscope.storage.table import fill
from convscope.timing.stopwatch import CPU_METHOD

KEY = ("1", "3", "64", "64", "64", "11x11", "4x4", "2x2", "1x1", "1")
GROUP = Group(Stratum("tf32", 1), (KEY,), (Use("alexnet", 64, "features.0", 0, KEY),), energy=False)


@pytest.mark.parametrize(
    ("cells", "ran"),
    [
        ({"kernels": '{"cudnn::cnn::conv2d_grouped_direct_kernel": 1}'}, "direct"),
        ({"kernels": '{"im2col4d_kernel": 1}'}, "gemm"),
        ({"kernels": None}, "gemm"),
        ({"candidate": "torch", "provider": None, "same_kernels_as": "plan:38"}, "plan:38"),
        (
            {"candidate": "guess", "provider": None, "same_kernels_as": "gemm"}
            | {"kernels": '{"cudnn::cnn::conv2d_grouped_direct_kernel": 1}'},
            "direct",
        ),
        ({"candidate": "guess", "provider": None, "same_kernels_as": None}, None),
    ],
)
def test_what_ran_is_what_the_kernels_show(tmp_path: Path, cells: dict[str, object], ran: str):
    plan = fill(
        PlanRow, **{field.name: None for field in dataclasses.fields(PlanRow)}
        | {"layer": "s0", "candidate": "gemm", "provider": "cudnn", "outcome": "ok", "kernel_size": "3x3"}
        | {"rounds": 2, "mean_ms": 1.0} | cells
    )  # fmt: skip
    (sample,) = GroupFolder(tmp_path, GROUP)._samples([plan], {})
    assert sample.ran_algorithm == ran


@pytest.mark.parametrize(
    ("asked", "overwrites"),
    [
        ([{"device": "cuda:0"}], True),
        ([{"device": "cuda:0", "evicts": True}], True),
        ([{"device": "cuda:0", "evicts": True, "adds_up": True}], False),
        ([{"device": "cuda:0"}, {"device": "cuda:0", "adds_up": True}], False),  # another --first, before
        ([{"device": "cpu"}], False),
    ],
)
def test_a_group_that_a_version_which_times_otherwise_began_is_measured_anew(
    tmp_path: Path, asked: list[dict[str, object]], overwrites: bool
):
    group = GroupFolder(tmp_path, GROUP)
    assert "--overwrite" not in group.flags(4, 2, "cuda:0")
    for number, each in enumerate(asked):
        run = {"schema_version": 1, "verification": each, "environment": {"host": "node1"}, "started_utc": ""}
        (tmp_path / f"atlas{number}").mkdir()
        (tmp_path / f"atlas{number}/run.json").write_text(json.dumps(run))
    assert ("--overwrite" in group.flags(4, 2, "cuda:0")) is overwrites


@pytest.mark.parametrize(
    ("request_", "method"),
    [
        ({"device": "cuda:0", "evicts": True, "adds_up": True}, "CUDA events around the call, its share of replays of "
         "a captured pass, its data out of the cache"),
        ({"device": "cuda:0", "evicts": True}, "CUDA events around the call, in replays of a captured pass, its data "
         "out of the cache"),
        ({"device": "cuda:0"}, "CUDA events around the call, in replays of a captured pass"),
        ({"device": "cpu"}, CPU_METHOD),
    ],
)  # fmt: skip
def test_a_sample_says_how_its_time_was_taken(tmp_path: Path, request_: dict[str, object], method: str):
    cells = {"layer": "s0", "candidate": "torch", "outcome": "ok", "kernel_size": "3x3", "rounds": 2, "mean_ms": 1.0}
    plan = fill(PlanRow, **{field.name: None for field in dataclasses.fields(PlanRow)} | cells)
    (sample,) = GroupFolder(tmp_path, GROUP)._samples([plan], {"verification": request_})
    assert sample.timing_method == method
