"""Settings of the whole process hold for a block, and are as before behind it, whatever happens in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from convscope.convolution import backends
from convscope.convolution.backends import Settings


def state() -> tuple[bool, int, bool, bool]:
    chosen = torch.backends.cudnn
    return chosen.benchmark, chosen.benchmark_limit, chosen.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_a_search_is_of_ten_plans_or_of_all():
    before = state()
    with backends.searching():
        assert state() == (True, before[1], *before[2:])
        with backends.searching(every=True):
            assert state() == (True, 0, *before[2:])
        with backends.searching(False):
            assert state() == (False, before[1], *before[2:])
        assert state()[:2] == (True, before[1])
    assert state() == before


@pytest.mark.parametrize("mode", ["tf32", "fp32"])
def test_the_math_mode_is_in_force_inside_its_block_only(mode: str):
    before = backends.math_in_force()
    with backends.math(mode):
        assert backends.math_in_force() == mode
    assert backends.math_in_force() == before


def test_settings_are_in_force_inside_their_block_only():
    assert backends.settings_in_force() == Settings(None, "nchw")
    with backends.settings(layout="nhwc"):
        assert backends.settings_in_force() == Settings(None, "nhwc")
        with backends.settings(provider="triton"):
            assert backends.settings_in_force() == Settings("triton", "nhwc")
            with backends.settings(provider=None, layout="nchw"):
                assert backends.settings_in_force() == Settings("triton", "nchw")
        assert backends.settings_in_force() == Settings(None, "nhwc")
    assert backends.settings_in_force() == Settings(None, "nchw")


def test_settings_hold_in_a_plan_thread_too():
    with backends.PlanThread(torch.device("cpu")) as thread:
        with backends.settings(provider="triton", layout="nhwc"):
            assert thread.run(backends.settings_in_force) == Settings("triton", "nhwc")
        assert thread.run(backends.settings_in_force) == Settings(None, "nchw")


@pytest.fixture(params=[True, False])
def permitted(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Permit or forbid TF32 in matrix products for the length of the test."""
    product = torch.backends.cuda.matmul
    before, product.allow_tf32 = product.allow_tf32, request.param
    yield request.param
    product.allow_tf32 = before


def test_matrix_products_are_forbidden_tf32_too_and_permitted_nothing_new(permitted: bool):
    for mode, there in (("fp32", False), ("tf32", permitted)):
        with backends.math(mode):
            assert torch.backends.cuda.matmul.allow_tf32 is there
        assert torch.backends.cuda.matmul.allow_tf32 is permitted
