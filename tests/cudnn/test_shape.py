"""Work along an axis, compared with every pair of an output and a tap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convscope.cudnn.shape import Axis, along


@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 4), st.integers(0, 8), st.integers(1, 3))
def test_work_along_an_axis_is_that_of_all_pairs(extent: int, kernel: int, stride: int, padding: int, dilation: int):
    outputs = (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    places = [(tap, at * stride + tap * dilation - padding) for at in range(outputs) for tap in range(kernel)]
    inside = [(tap, place) for tap, place in places if 0 <= place < extent]
    expected = Axis(outputs, len(inside), len({place for _, place in inside}), len({tap for tap, _ in inside}))
    assert along(extent, kernel, stride, padding, dilation) == expected


def test_a_stride_leaves_elements_out():
    assert along(8, 1, 2, 0, 1) == Axis(outputs=4, products=4, touched=4, taps=1)
    assert along(8, 3, 2, 1, 1) == Axis(outputs=4, products=11, touched=8, taps=3)
    assert along(1, 3, 1, 1, 1) == Axis(outputs=1, products=1, touched=1, taps=1)
