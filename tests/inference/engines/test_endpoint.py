"""Engines that are fed from host memory: each request gets the output for its own image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from convscope.inference.engines import endpoint
from convscope.inference.engines.runners import LocalRunner

IMAGES = torch.randn(32, 3, 4, 5, generator=torch.Generator().manual_seed(0))


def engine(size: int, dtype: torch.dtype, memory: torch.memory_format) -> LocalRunner:
    given = torch.zeros(size, 3, 4, 5, dtype=dtype).contiguous(memory_format=memory)
    return LocalRunner(lambda: given.float().sum((2, 3)).to(dtype) * 2, given, captured=False, counted=False)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_request_gets_the_output_for_its_image(dtype: torch.dtype, memory: torch.memory_format):
    made = endpoint.endpoint({size: engine(size, dtype, memory) for size in (4, 1)}, IMAGES)
    assert made.sizes == [1, 4]
    for images in ([7], [3, 30, 3], [31, 0, 1, 2]):
        rows = made.finish(made.begin(images))
        found = np.stack([made.numbers(rows[row]) for row in range(len(images))])
        expected = (IMAGES[images].to(dtype).float().sum((2, 3)).to(dtype) * 2).float()
        torch.testing.assert_close(torch.from_numpy(found), expected)


def test_images_are_copied_into_the_first_rows():
    rows = torch.zeros(4, 60)
    endpoint.copied(rows.unbind(), IMAGES.flatten(1).unbind(), [30, 3, 30])
    assert torch.equal(rows[:3], IMAGES[[30, 3, 30]].flatten(1))
    assert not rows[3].any()


def test_resident_images_are_left_where_they_are():
    runner = engine(4, torch.float32, torch.contiguous_format)
    runner.given.fill_(1.0)
    made = endpoint.endpoint({4: runner}, None)
    assert len(made.finish(made.begin([3, 5]))) == 4
    assert (runner.given == 1).all()
    assert made.numbers(np.zeros(1, np.uint8)).size == 0


def test_images_fill_a_part_of_memory_and_are_not_too_many():
    assert endpoint.library_size(3 * 224 * 224 * 2) == 891
    assert endpoint.library_size(100) == 1024
    assert endpoint.library_size(2**40) == 1
