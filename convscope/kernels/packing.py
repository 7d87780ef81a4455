"""Filters as a kernel reads them, kept for each weight while it lives and is not written to, and for graphs.

A graph knows addresses only. So packed filters that one reads stay where they are for as long as the graph
(`graphs.hold`), or the weight where another than `graphs.capture` makes it; a weight that was written to is packed into
the same memory again, and the graph reads the new filters from then on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from convscope.timing import graphs


@dataclass
class _Entry:
    """Packed filters of a weight, its address and version then, and whether a graph reads them.

    Without packed filters the kernel reads the weight itself, as it lies. No version asks for packing again. `ready`
    is recorded behind the packing, on `stream`: what reads the filters on another stream waits for it.
    """

    weight: weakref.ref[torch.Tensor]
    packed: torch.Tensor | None
    address: int
    version: int | None
    in_graph: bool = False
    ready: torch.cuda.Event | None = None
    stream: int = 0

    def packed_now(self) -> None:
        """Remember where and when the filters were packed."""
        weight = self.weight()
        if weight is not None and weight.is_cuda:
            current = torch.cuda.current_stream(weight.device)
            self.stream, self.ready = current.cuda_stream, torch.cuda.Event()
            self.ready.record(current)

    def wait(self, weight: torch.Tensor) -> None:
        """Have the current stream wait until the filters are there, where another stream packed them."""
        if self.ready is not None and torch._C._cuda_getCurrentRawStream(weight.get_device()) != self.stream:
            torch.cuda.current_stream(weight.device).wait_event(self.ready)


class PackedFilters:
    """Packed filters by weight. A weight that dies takes its entry along."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def find(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Return the packed filters of a weight, None where there are none or it was written to, or moved, since."""
        entry = self._entries.get(id(weight))
        if entry is None or entry.address != weight.data_ptr():
            return None
        if entry.packed is None:
            return weight
        return entry.packed if entry.version == _version(weight) else None

    def keep(self, weight: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Keep filters that were just packed; return the tensor to read them from."""
        key, address, entry = id(weight), weight.data_ptr(), self._entries.get(id(weight))
        own = None if packed.data_ptr() == address else packed
        if entry is not None and entry.in_graph and entry.address == address and entry.packed is not None:
            with torch.inference_mode():  # what was made in that mode is written to in that mode only
                entry.packed.copy_(packed)
            entry.version = _version(weight)
            entry.packed_now()
            return entry.packed
        dies = weakref.ref(weight, lambda dead: self._forget(key, dead))
        entry = self._entries[key] = _Entry(dies, own, address, _version(weight))
        entry.packed_now()
        return packed

    def pin(self, weight: torch.Tensor, packed: torch.Tensor) -> None:
        """Keep packed filters alive for the graph that is being captured and reads them."""
        entry = self._entries.get(id(weight))
        if entry is not None and entry.packed is packed:
            entry.in_graph = True
            if not graphs.hold(packed):
                weakref.finalize(weight, _nothing, packed).atexit = False

    def of(
        self, weight: torch.Tensor, pack: Callable[[], torch.Tensor], refuse: Callable[[bool], None] | None = None
    ) -> torch.Tensor:
        """Return the packed filters of a weight, packed now where there are none.

        In a graph that is being captured those that are there already are kept for it, and others are packed anew at
        each replay.

        Args:
            refuse: called with whether a graph is being captured, before anything is packed; it may raise.
        """
        packed, capturing = self.find(weight), is_capturing(weight)
        if packed is None:
            if refuse is not None:
                refuse(capturing)
            packed = pack()
            if capturing:  # computed at replay: nothing is in it now
                return packed
            return self.keep(weight, packed)
        if capturing:  # which begins when all streams are done
            self.pin(weight, packed)
        else:
            self._entries[id(weight)].wait(weight)
        return packed

    def renew(self) -> None:
        """Have all filters packed again, as when they were written to."""
        for entry in self._entries.values():
            entry.version = None

    def clear(self) -> None:
        """Forget all filters."""
        self._entries.clear()

    def _forget(self, key: int, dead: Callable[[], object]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.weight is dead:  # the number may be another tensor's by now
            del self._entries[key]


def is_capturing(weight: torch.Tensor) -> bool:
    """Tell whether calls on a weight's device are being captured into a graph."""
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


def _version(weight: torch.Tensor) -> int:
    """Return how often a weight was written to, -1 for tensors of inference, which do not count it."""
    return -1 if weight.is_inference() else weight._version


def _nothing(packed: torch.Tensor) -> None:
    """Do nothing with what was kept until now."""
