"""Request of a collection, checked: the models, sizes and arithmetic whose convolutions are to be measured."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convscope.cli.options import at_least
from convscope.convolution import names
from convscope.dataset.collect.drawn import DEFAULT_KINDS, KINDS
from convscope.errors import InputError

if TYPE_CHECKING:
    from convscope.dataset.collect.uses import Use

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "alexnet": ("alexnet",),
    "vgg": ("vgg16",),
    "resnet": ("resnet50", "resnet152", "torchvision:resnet18"),
    "densenet": ("densenet121",),
    "googlenet": ("googlenet",),
    "mobilenet": ("torchvision:mobilenet_v2", "torchvision:mobilenet_v3_large"),
    "efficientnet": ("torchvision:efficientnet_b0",),
    "resnext": ("torchvision:resnext50_32x4d",),
    "regnet": ("torchvision:regnet_y_400mf", "torchvision:regnet_x_3_2gf"),
    "convnext": ("torchvision:convnext_tiny",),
    "shufflenet": ("torchvision:shufflenet_v2_x1_0",),
    "squeezenet": ("torchvision:squeezenet1_1",),
    "mnasnet": ("torchvision:mnasnet1_0",),
}
"""Kinds of networks, and the models of each that are measured by default."""
SIZES = (
    *(64, 71, 80, 88, 96, 107, 112, 128, 139, 144, 160, 176, 192, 208, 224, 240, 256, 288, 299, 320, 331),
    *(384, 448),
)
"""Sizes of square images: those that models are trained with, powers of two, and some that fill no tile."""
BATCHES = (1, 8, 32)
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "fp32": {"dtype": "float32", "math": "fp32", "layout": "nchw"},
    "tf32": {"dtype": "float32", "math": "tf32", "layout": "nchw"},
    "float16,nhwc": {"dtype": "float16", "math": "tf32", "layout": "nhwc"},
}
ON_CPU = ("fp32",)
GROUP_BYTES = {"cpu": 2**28, "cuda": 2**33}
GROUP_SHAPES = {"cpu": 8, "cuda": 64}
ENERGY_EVERY = {"cpu": 0, "cuda": 8}
PROCESSES = {"cpu": 1, "cuda": 4}
"""Groups under way at once, at most: each has its inputs and outputs in the GPU's memory (`processes_for`)."""


@dataclass(frozen=True)
class Collection:
    """Convolutions to be measured, and the way to do it.

    Attributes:
        sizes: of square images, in pixels.
        settings: names of `SETTINGS`.
        first: plans of each heuristic that are tried.
        rounds: placements in memory of each candidate that is not far behind after the first.
        group_shapes, group_bytes: the most of a group; one shape that is larger is a group of its own.
        energy_every: the energy of every so manieth group is measured, with `ENERGY_SHAPES` shapes; 0 is none.
        processes: groups under way at once; one of them at a time is timed, the candidates of the others are tried.
        drawn: convolutions that no model has, the first that are of `drawn_kinds`.
        drawn_kinds: some of `drawn.KINDS`.
        renewed: shapes of existing samples, each with its setting, in place of those of models and drawn ones.
        part: which of how many parts of the shapes, (1, 1) for all: GPUs that take one part each share the work.
    """

    device: str
    models: tuple[str, ...]
    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    settings: tuple[str, ...]
    first: int
    rounds: int
    seed: int
    group_shapes: int
    group_bytes: int
    energy_every: int
    processes: int = 1
    part: tuple[int, int] = (1, 1)
    drawn: int = 0
    drawn_kinds: tuple[str, ...] = DEFAULT_KINDS
    renewed: tuple[tuple[str, Use], ...] = ()

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            InputError: a value is below its least, a model or setting is unknown, or nothing runs it on this device.
        """
        named = (("first", 1), ("rounds", 2), ("seed", 0), ("group_shapes", 1), ("energy_every", 0), ("processes", 1))
        for name, least in (*named, ("drawn", 0)):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), least)
        for flag, values in (("--sizes", self.sizes), ("--batch-sizes", self.batch_sizes)):
            for value in values:
                at_least(flag, value, 1)
            if len(set(values)) < len(values):
                raise InputError(f"{flag} {' '.join(map(str, values))}: a number stands twice, say each once")
        if not 1 <= self.part[0] <= self.part[1]:
            raise InputError(f"--part {self.part[0]}/{self.part[1]}: say which of how many, 1/2 and 2/2 for two")
        if not self.drawn_kinds:
            raise InputError(f"--drawn-kinds: choose some of {' '.join(KINDS)}")
        for kind in self.drawn_kinds:
            if kind not in KINDS:
                raise InputError(f"--drawn-kinds {kind}: choose some of {' '.join(KINDS)}")
        if len(set(self.drawn_kinds)) < len(self.drawn_kinds):
            raise InputError(f"--drawn-kinds {' '.join(self.drawn_kinds)}: a kind stands twice, say each once")
        for name in self.models:
            names.check_model(name)
        for setting in self.settings:
            if setting not in SETTINGS:
                raise InputError(f"--settings {setting}: choose some of {' '.join(SETTINGS)}")
            if self.device_type == "cpu" and setting not in ON_CPU:
                raise InputError(f"--settings {setting}: ai3 computes {', '.join(ON_CPU)} alone on a CPU")

    def includes(self, shape: Sequence[str]) -> bool:
        """Tell whether a shape, as the cells of its key, is in this part."""
        number, count = self.part
        return zlib.crc32(" ".join(shape).encode()) % count == number - 1


def processes_for(kind: str, memory_bytes: int | None) -> int:
    """Return how many groups may be under way at once on a device with so much memory; None is an unknown one."""
    most = PROCESSES[kind]
    return most if memory_bytes is None else max(1, min(most, memory_bytes // (2 * GROUP_BYTES[kind])))


def family_of(model: str) -> str:
    """Return the kind of network that a model is; of a model that is not among `FAMILIES`, its own name."""
    return next((family for family, models in FAMILIES.items() if model in models), model)
