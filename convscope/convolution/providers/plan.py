"""Plan of a convolution, and the library that makes it: one shape on one device, run many times.

The operator (`operator`) and the 3-D study use the same plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from convscope.cudnn import library
from convscope.cudnn.shape import Convolution

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Execution:
    """The computation that really ran: the algorithm's name, the library, and its workspace.

    `copied_input_bytes` is the size of input and weight if they lay otherwise than the library reads them and were
    copied in the call, 0 where they were not, None where PyTorch ran the layer: it does not say. `transforms` says that
    a plan is Winograd's algorithm, by cuDNN's own note.
    """

    algorithm: str
    provider: str
    workspace_bytes: int | None = None
    copied_input_bytes: int | None = None
    transforms: bool = False

    @property
    def arithmetic(self) -> str:
        """The algorithm whose errors are to be expected of the result."""
        return "winograd" if self.transforms else self.algorithm


class Plan(Protocol):
    """One convolution on one device, prepared once and run many times."""

    @property
    def workspace_bytes(self) -> int | None:
        """The memory that a run takes besides its tensors, None where it is unknown."""

    @property
    def execution(self) -> Execution:
        """The computation that the last run was."""

    @property
    def tuned(self) -> Mapping[str, str]:
        """The block shapes that were chosen at the first run, by convolution; empty where nothing was."""

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve N × C × spatial on the current stream; the input is contiguous in the plan's layout.

        Raises:
            InputError: a tensor has another type, size or device than the plan was made for.
        """

    def close(self) -> None:
        """Give back everything that the plan holds; twice is once."""


class Provider(Protocol):
    """A library that makes plans."""

    name: str

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why the library has no such convolution, as far as that is known without a GPU, or None."""

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> Plan:
        """Make a plan; the device is the current one.

        Raises:
            NotSupportedError: the library refuses the algorithm for this shape on this card.
            NotImplementedError: `why_not` has a reason.
        """

    def close(self) -> None:
        """Give back everything that the library holds; its plans must be closed before."""


def why_no_dtype(dtype: str) -> str | None:
    """Return why cuDNN has no convolution of a data type, or None where it has."""
    return None if dtype in library.DATA_TYPES else f"cuDNN has no convolution of {dtype}"


def cudnn_refusal(algorithm: str, device_name: str, layout: str = "nchw", why: str = "") -> str:
    """Return the sentence for a layer that meets the rules and that cuDNN refuses on this card all the same.

    Args:
        why: the reason, where one is known.
    """
    short = ".".join(library.version().split(".")[:2])
    if algorithm == "winograd":
        return f"cuDNN {short} has no fused Winograd on {device_name}"
    where = "" if layout == "nchw" else f" in {layout.upper()}"
    return f"cuDNN {short} refuses {algorithm} for this shape{where} on {device_name}" + (f": {why}" if why else "")


def workspace_refusal(algorithm: str, workspace_bytes: int, most_bytes: int | None) -> str | None:
    """Return the sentence for a workspace over the limit, None for one that it allows."""
    if most_bytes is None or workspace_bytes <= most_bytes:
        return None
    return f"workspace over the limit: {algorithm} takes more than {most_bytes / 1e6:g} MB (--max-workspace)"
