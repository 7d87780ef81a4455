"""Engines of this process as an endpoint of requests: images gathered from host memory, outputs delivered there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convscope.inference.engines.runners import LocalRunner
from convscope.inference.serving import mlperf

LIBRARY_BYTES, MOST_IMAGES = 2**28, 1024  # of images in memory, more than caches hold; MLPerf's number for ResNet-50


def endpoint_of_file(runners: Sequence[LocalRunner], library: str) -> mlperf.Endpoint:
    """Return engines as an endpoint that is fed with the images of a NumPy file; "" leaves their inputs alone."""
    return endpoint(
        {len(each.given): each for each in runners}, torch.from_numpy(np.load(library)) if library else None
    )


def endpoint(runners: Mapping[int, LocalRunner], images: torch.Tensor | None) -> mlperf.Endpoint:
    """Return engines by batch size as an endpoint that is fed with images; None leaves their inputs alone."""
    return ResidentEndpoint(runners) if images is None else HostEndpoint(runners, images)


def library_size(image_bytes: int) -> int:
    """Return how many images lie in memory."""
    return min(MOST_IMAGES, max(1, LIBRARY_BYTES // image_bytes))


@dataclass
class _Slot:
    """Memory of one batch under way: on the host and on the GPU, and the moment when its output has arrived."""

    host: torch.Tensor
    device: torch.Tensor
    output: torch.Tensor | None = None
    done: torch.cuda.Event = field(default_factory=torch.cuda.Event)


class HostEndpoint:
    """Engines by batch size, fed from images in host memory.

    A batch is gathered into pinned memory, copied to the GPU on a stream of its own while the batch before computes,
    and put into the engine's input there; its output is copied back. On a CPU it is gathered into the input.

    Args:
        runners: by batch size, built in the calling thread.
        images: N × 3 × H × W, float32 on the CPU.
    """

    sizes: Sequence[int]
    overlaps: bool

    def __init__(self, runners: Mapping[int, LocalRunner], images: torch.Tensor) -> None:
        self.sizes = sorted(runners)
        self._runners = runners
        given = runners[self.sizes[0]].given
        self.overlaps = given.is_cuda
        self._library = _pinned(_rows(images.to(given.dtype).contiguous(memory_format=_format(given))), given.is_cuda)
        self._slots: dict[int, list[_Slot]] = {}
        self._stream = torch.cuda.Stream(given.device) if given.is_cuda else None

    def begin(self, images: Sequence[int]) -> tuple[LocalRunner, _Slot | None]:
        """Gather, copy and enqueue a batch."""
        size = mlperf.fitting(self.sizes, len(images))
        runner, chosen = self._runners[size], torch.tensor(images)
        if self._stream is None:
            torch.index_select(self._library, 0, chosen, out=_rows(runner.given)[: len(images)])
            runner.enqueue()
            return runner, None
        slots = self._slots.setdefault(size, [self._slot(runner), self._slot(runner)])
        slots.reverse()  # the other one may still be under way
        slot = slots[0]
        torch.index_select(self._library, 0, chosen, out=slot.host[: len(images)])
        with torch.cuda.stream(self._stream):
            slot.device.copy_(slot.host, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._stream)
        _rows(runner.given).copy_(slot.device)
        output = runner.enqueue()
        if slot.output is None:
            slot.output = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
        slot.output.copy_(output, non_blocking=True)
        slot.done.record()
        return runner, slot

    def finish(self, begun: tuple[LocalRunner, _Slot | None]) -> NDArray[Any]:
        """Wait for the output, and return it as bytes: NumPy has no bfloat16."""
        runner, slot = begun
        if slot is None:
            return _bytes(runner.result)
        slot.done.synchronize()
        assert slot.output is not None
        return _bytes(slot.output)

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        """Return an image's output as numbers."""
        found: NDArray[np.float32] = (
            torch.from_numpy(row).view(self._runners[self.sizes[0]].result.dtype).float().numpy()
        )
        return found

    def _slot(self, runner: LocalRunner) -> _Slot:
        rows = _rows(runner.given)
        return _Slot(_pinned(torch.empty(rows.shape, dtype=rows.dtype), True), torch.empty_like(rows))


class ResidentEndpoint:
    """Engines by batch size whose images lie in their inputs already: requests move nothing."""

    sizes: Sequence[int]
    overlaps = False

    def __init__(self, runners: Mapping[int, LocalRunner]) -> None:
        self.sizes, self._runners = sorted(runners), runners

    def begin(self, images: Sequence[int]) -> LocalRunner:
        """Run a batch of this many images."""
        runner = self._runners[mlperf.fitting(self.sizes, len(images))]
        runner.call()
        return runner

    def finish(self, begun: LocalRunner) -> NDArray[Any]:
        """Return nothing of the output, which stays where it is."""
        return np.zeros((self.sizes[-1], 1), np.uint8)

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        """Return no numbers."""
        return np.empty(0, np.float32)


def _format(tensor: torch.Tensor) -> Any:
    is_last = not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


def _rows(images: torch.Tensor) -> torch.Tensor:
    """Return images as a view with a row for each, in the order of its memory."""
    last = _format(images) is torch.channels_last
    return images.permute(0, 2, 3, 1).flatten(1) if last else images.view(len(images), -1)


def _pinned(tensor: torch.Tensor, pin: bool) -> torch.Tensor:
    return tensor.pin_memory() if pin else tensor


def _bytes(output: torch.Tensor) -> NDArray[Any]:
    """Return an output on the CPU as bytes, an image a row."""
    found: NDArray[Any] = output.contiguous().view(len(output), -1).view(torch.uint8).numpy()
    return found
