"""Descriptors of numbers that the copy engine rounds, for Triton that has no option for it."""

from __future__ import annotations

import pytest
import torch
from triton.backends.nvidia import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.kernels import descriptors


@pytest.mark.parametrize("rounded", [True, False])
def test_a_descriptor_says_whether_to_round(rounded: bool):
    found = descriptors.of(torch.zeros(64), (4, 16), (16, 1), (4, 16), rounded)
    assert (found.round_f32_to_tf32, found.shape, found.strides, found.block_shape) == (
        rounded,
        [4, 16],
        [16, 1],
        [4, 16],
    )


def test_one_that_is_to_round_is_encoded_as_one_of_tf32():
    seen = []
    encode = descriptors.with_type(lambda descriptor, meta: seen.append(meta) or ["encoded"])
    meta = {"elem_type": 7, "swizzle": 3}
    for rounded in (True, False):
        of = descriptors.of(torch.zeros(64), (4, 16), (16, 1), (4, 16), rounded)
        assert encode(of, meta) == ["encoded"]
    assert seen == [{"elem_type": 11, "swizzle": 3}, meta]
    assert encode(TensorDescriptor(torch.zeros(64), [4, 16], [16, 1], [4, 16]), None) == ["encoded"]
    with pytest.raises(NotImplementedError, match="only numbers that the copy engine fetches"):
        encode(descriptors.of(torch.zeros(64), (4, 16), (16, 1), (4, 16), rounded=True), None)


def test_triton_has_the_option_or_encodes_as_said():
    assert hasattr(TensorDescriptor, "round_f32_to_tf32") != driver.make_tensordesc_arg.__qualname__.startswith(
        "with_type"
    )


def test_a_cpu_rounds_nothing_on_the_way():
    assert not descriptors.can_round(torch.device("cpu"))
