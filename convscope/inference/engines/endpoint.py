"""Engines of this process as an endpoint of requests: images taken from host memory, outputs delivered there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from convscope.inference.engines.runners import LocalRunner
from convscope.inference.serving import mlperf

LIBRARY_BYTES, MOST_IMAGES = 2**28, 1024  # of images in memory, in the engine's data type


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
    """Memory of one batch under way on the GPU, that of its output, and the moment when this has arrived."""

    device: torch.Tensor
    rows: tuple[torch.Tensor, ...]
    output: torch.Tensor
    done: torch.cuda.Event = field(default_factory=torch.cuda.Event)


class HostEndpoint:
    """Engines by batch size, fed from images in host memory.

    Each image is copied from pinned memory to the GPU, on a stream of its own while the batch before computes, and the
    batch is put into the engine's input there; its output is copied back. On a CPU it is gathered into the input.

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
        self._library = _rows(images.to(given.dtype).contiguous(memory_format=_format(given)))
        if given.is_cuda:  # the copy engine reads each image where it is: the host gathers nothing
            self._library = self._library.pin_memory()
        self._images = self._library.unbind()
        # All memory is there before the first request: an allocation would be in its latency, and may be a block that
        # queued work still uses.
        self._slots = {size: [_slot(runner), _slot(runner)] for size, runner in runners.items() if given.is_cuda}
        self._stream = torch.cuda.Stream(given.device) if given.is_cuda else None
        if given.is_cuda:
            torch.cuda.synchronize()

    def begin(self, images: Sequence[int]) -> tuple[LocalRunner, _Slot | None]:
        """Gather, copy and enqueue a batch."""
        size = mlperf.fitting(self.sizes, len(images))
        runner = self._runners[size]
        if self._stream is None:
            torch.index_select(self._library, 0, torch.tensor(images), out=_rows(runner.given)[: len(images)])
            runner.enqueue()
            return runner, None
        self._slots[size].reverse()  # the other one may still be under way
        slot = self._slots[size][0]
        with torch.cuda.stream(self._stream):
            copied(slot.rows, self._images, images)
        torch.cuda.current_stream().wait_stream(self._stream)
        _rows(runner.given).copy_(slot.device)
        slot.output.copy_(runner.enqueue(), non_blocking=True)
        slot.done.record()
        return runner, slot

    def is_done(self, begun: tuple[LocalRunner, _Slot | None]) -> bool:
        """Tell whether a batch's output has arrived."""
        return begun[1] is None or begun[1].done.query()

    def finish(self, begun: tuple[LocalRunner, _Slot | None]) -> NDArray[Any]:
        """Wait for the output, and return it as bytes: NumPy has no bfloat16."""
        runner, slot = begun
        if slot is None:
            return _bytes(runner.result)
        slot.done.synchronize()
        return _bytes(slot.output)

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        """Return an image's output as numbers."""
        dtype = self._runners[self.sizes[0]].result.dtype
        found: NDArray[np.float32] = torch.from_numpy(row).view(dtype).float().numpy()
        return found


def copied(rows: tuple[torch.Tensor, ...], library: Sequence[torch.Tensor], images: Sequence[int]) -> None:
    """Copy some images of a library into the first rows, all by one call from Python."""
    torch._foreach_copy_(rows[: len(images)], [library[image] for image in images], non_blocking=True)


def _slot(runner: LocalRunner) -> _Slot:
    device, output = torch.empty_like(_rows(runner.given)), runner.result
    return _Slot(device, device.unbind(), torch.empty(output.shape, dtype=output.dtype, pin_memory=True))


class ResidentEndpoint:
    """Engines by batch size whose images lie in their inputs already: requests move nothing."""

    sizes: Sequence[int]
    overlaps: bool

    def __init__(self, runners: Mapping[int, LocalRunner]) -> None:
        self.sizes, self._runners = sorted(runners), runners
        self.overlaps = runners[self.sizes[0]].given.is_cuda
        self._nothing = np.zeros((self.sizes[-1], 1), np.uint8)

    def begin(self, images: Sequence[int]) -> torch.cuda.Event | None:
        """Enqueue a batch of this many images."""
        self._runners[mlperf.fitting(self.sizes, len(images))].enqueue()
        if not self.overlaps:
            return None
        done = torch.cuda.Event()
        done.record()
        return done

    def is_done(self, begun: torch.cuda.Event | None) -> bool:
        """Tell whether a batch is done."""
        return begun is None or begun.query()

    def finish(self, begun: torch.cuda.Event | None) -> NDArray[Any]:
        """Wait for a batch, and return nothing of its output, which stays where it is."""
        if begun is not None:
            begun.synchronize()
        return self._nothing

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


def _bytes(output: torch.Tensor) -> NDArray[Any]:
    """Return an output on the CPU as bytes, an image a row."""
    found: NDArray[Any] = output.contiguous().view(len(output), -1).view(torch.uint8).numpy()
    return found
