"""Request of the 3-D study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convscope.convolution.layer import Layer
from convscope.storage.paths import slug

LAYOUTS: Mapping[str, str] = {"ncdhw": "nchw", "ndhwc": "nhwc"}
"""Layouts in which a call takes its input and gives its output, and what `Convolution.layout` calls them."""


@dataclass(frozen=True)
class Conv3d:
    """Layers of a set by some implementations in some layouts; `layers_digest` tells apart sets of one name."""

    params: str
    implementations: tuple[str, ...]
    gpu: str
    device: str
    first_layer: int = 0
    last_layer: int | None = None
    batch_size: int | None = None
    math: str = "tf32"
    dtype: str = "float32"
    verify: bool = False
    compare: bool = True
    warmup: int = 10
    measure: int = 100
    budget_s: float = 1.0
    seed: int = 0
    layers_digest: str = ""
    layouts: tuple[str, ...] = tuple(LAYOUTS)

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]


@dataclass(frozen=True)
class Parts:
    """Parts of a 3-D study to do.

    Attributes:
        stress: a number of shapes.
        load_tuned: a file of choices to take as they are, "" for this card's own; None has new ones made.
        remarks: lines for the user, noted before anything is measured.
    """

    layers: bool = True
    plots: bool = False
    stress: int = 0
    end_to_end: bool = False
    load_tuned: str | None = None
    remarks: tuple[str, ...] = ()


def folder_name(request: Conv3d, layers: Sequence[Layer]) -> str:
    """Return the name of the folder of one call: layer set, batch, arithmetic, card."""
    arithmetic = "fp16" if request.dtype == "float16" else request.math
    return f"{slug(Path(request.params).stem)}_batch{layers[0].batch}_{arithmetic}_{request.gpu}"
