"""Sets of 3-D convolutions: read from CSV files, or taken from a model; every row checked before anything runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from torch import nn

from convscope.cudnn.shape import Convolution, output_extents
from convscope.errors import InputError

FOLDER = Path(__file__).parents[1] / "data" / "convparams"
MODEL_PREFIX = "model:torchvision:"
COLUMNS = [
    "layer",
    "batch",
    "channels",
    "filters",
    "depth",
    "height",
    "width",
    "kernel",
    "stride",
    "padding",
    "dilation",
    "groups",
]
_CLIP = (3, 16, 112, 112)  # what torchvision's video models are trained on: channels, frames, height, width
_LARGEST = 2**31 - 1  # of one number; what cuDNN's descriptors hold
_MOST = 1e18  # fits 63 bits; no card does it in a day

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Layer3d:
    """One 3-D convolution without bias: its name, its place in the set, its shape; triples are depth, height, width."""

    name: str
    position: int
    batch: int
    channels: int
    filters: int
    size: Triple
    kernel: Triple
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    groups: int = 1

    @property
    def output(self) -> Triple:
        """Depth, height and width of the output."""
        depth, height, width = output_extents(self.size, self.kernel, self.padding, self.stride, self.dilation)
        return depth, height, width

    @property
    def terms(self) -> int:
        """How many products are summed up for one output."""
        return self.channels // self.groups * math.prod(self.kernel)

    @property
    def flops(self) -> int:
        """Operations of the definition, a multiply and an add counting as two."""
        return 2 * self.batch * self.filters * math.prod(self.output) * self.terms

    def minimum_bytes(self, element_bytes: int) -> int:
        """Return the bytes that must cross the memory: input and filters read once, output written once."""
        inputs = self.batch * self.channels * math.prod(self.size)
        outputs = self.batch * self.filters * math.prod(self.output)
        return (inputs + self.filters * self.terms + outputs) * element_bytes

    def shape(self, dtype: str, math_mode: str) -> Convolution:
        """Return it as the libraries and kernels take it."""
        given, weight = (
            (self.batch, self.channels, *self.size),
            (self.filters, self.channels // self.groups, *self.kernel),
        )
        return Convolution(given, weight, self.padding, self.stride, self.dilation, self.groups, dtype, math_mode)

    def __str__(self) -> str:
        parts = [f"{self.channels}-{self.filters} {_times(self.kernel)} on {_times(self.size)}"]
        for word, value, usual in (
            ("stride", self.stride, 1),
            ("padding", self.padding, 0),
            ("dilation", self.dilation, 1),
        ):
            parts += [] if value == (usual,) * 3 else [f"{word} {_times(value)}"]
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        return f"{', '.join(parts)}, batch {self.batch}"


def names() -> list[str]:
    """Return the sets that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def load(params: str, batch_size: int | None = None) -> list[Layer3d]:
    """Return the layers of a set by name, of a file by path, or of a model by `model:torchvision:NAME`.

    Args:
        batch_size: in place of the set's own.

    Raises:
        InputError: there is no such set, or a row of it cannot be; the message names file and line.
    """
    if params.startswith("model:"):
        return of_model(params, batch_size or 1)
    path = FOLDER / f"{params}.csv" if params in names() else Path(params)
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(
            f"--params {params}: {why}; choose one of {', '.join(names())}, a CSV file, or {MODEL_PREFIX}NAME"
        ) from None
    return [_with_batch(layer, batch_size) for layer in parse(text, str(path))]


def parse(text: str, where: str) -> list[Layer3d]:
    """Return the layers that a CSV text has.

    Raises:
        InputError: the header or a row is not what it should be.
    """
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, [])
        if header != COLUMNS:
            raise InputError(f"{where}, line 1: the columns must be {','.join(COLUMNS)}")
        layers: list[Layer3d] = []
        for cells in reader:
            place = f"{where}, line {reader.line_num}"
            if len(cells) != len(COLUMNS):
                raise InputError(f"{place}: {len(cells)} cells where {len(COLUMNS)} belong")
            layers.append(_layer(dict(zip(COLUMNS, cells, strict=True)), len(layers), place))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from None
    if not layers:
        raise InputError(f"{where}: it has no layers")
    return layers


def _layer(cells: Mapping[str, str], position: int, place: str) -> Layer3d:
    def number(name: str) -> int:
        return _number(cells[name], name, place)

    def triple(name: str) -> Triple:
        return _triple(cells[name], name, place)

    made = Layer3d(
        name=cells["layer"] or f"layer {position}",
        position=position,
        batch=number("batch"),
        channels=number("channels"),
        filters=number("filters"),
        size=(number("depth"), number("height"), number("width")),
        kernel=triple("kernel"),
        stride=triple("stride"),
        padding=triple("padding"),
        dilation=triple("dilation"),
        groups=number("groups"),
    )
    reason = why_impossible(made)
    if reason:
        raise InputError(f"{place}: {reason}")
    return made


def why_impossible(layer: Layer3d) -> str | None:
    """Return why there is no such convolution, or None where there is."""
    least = (("batch", layer.batch), ("channels", layer.channels), ("filters", layer.filters), ("groups", layer.groups))
    few = [f"{name} {value}: it must be at least 1" for name, value in least if value < 1]
    for name in ("size", "kernel", "stride", "dilation"):
        few += (
            [f"{name} {_times(getattr(layer, name))}: each must be at least 1"] if min(getattr(layer, name)) < 1 else []
        )
    if few:
        return few[0]
    if layer.channels % layer.groups or layer.filters % layer.groups:
        return f"groups {layer.groups} must divide channels {layer.channels} and filters {layer.filters}"
    for side, extent, kernel, padding, dilation in zip(
        ("depth", "height", "width"), layer.size, layer.kernel, layer.padding, layer.dilation, strict=True
    ):
        if extent + 2 * padding > _LARGEST:
            return f"the padded {side} ({extent + 2 * padding}) is more than {_LARGEST}"
        if dilation * (kernel - 1) + 1 > extent + 2 * padding:
            return (
                f"the kernel ({kernel}, dilation {dilation}) is larger than the padded {side} ({extent + 2 * padding})"
            )
    most = max(layer.minimum_bytes(1), layer.flops)
    return f"its elements or operations ({most:.1e}) are more than {_MOST:.0e}" if most > _MOST else None


def of_model(params: str, batch_size: int) -> list[Layer3d]:
    """Return the 3-D convolutions that one pass of a torchvision model calls, in order; shapes only, no arithmetic.

    Raises:
        InputError: torchvision has no such model, or it has no 3-D convolution.
    """
    name = params.removeprefix(MODEL_PREFIX)
    known = torchvision.models.list_models(module=torchvision.models.video)
    if not params.startswith(MODEL_PREFIX) or name not in known:
        raise InputError(f"--params {params}: the models are {MODEL_PREFIX}NAME with NAME one of {', '.join(known)}")
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None).eval()
    found: list[Layer3d] = []

    def note(layer: str, module: nn.Conv3d, given: torch.Size) -> None:
        found.append(describe(layer, len(found), module, tuple(given)))

    for layer, module in model.named_modules():
        if isinstance(module, nn.Conv3d):
            module.register_forward_pre_hook(lambda module, given, layer=layer: note(layer, module, given[0].shape))
    with torch.inference_mode():
        try:
            model(torch.empty(batch_size, *_CLIP, device="meta"))
        except (RuntimeError, AssertionError, ValueError) as error:
            cause = str(error).splitlines()[0]
            raise InputError(f"--params {params}: it cannot take clips of {_times(_CLIP)} ({cause})") from None
    if not found:
        raise InputError(f"--params {params}: this model has no 3-D convolution")
    return found


def describe(name: str, position: int, conv: nn.Conv3d, given: tuple[int, ...]) -> Layer3d:
    """Return the layer that a call of a convolution is; `given` is N × C × D × H × W."""
    padding = _three(conv.padding) if not isinstance(conv.padding, str) else (0, 0, 0)
    return Layer3d(
        name=name,
        position=position,
        batch=given[0],
        channels=conv.in_channels,
        filters=conv.out_channels,
        size=_three(given[2:]),
        kernel=_three(conv.kernel_size),
        stride=_three(conv.stride),
        padding=padding,
        dilation=_three(conv.dilation),
        groups=conv.groups,
    )


def _with_batch(layer: Layer3d, batch_size: int | None) -> Layer3d:
    return layer if batch_size is None else dataclasses.replace(layer, batch=batch_size)


def _number(text: str, name: str, place: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) or int(text) > _LARGEST:
        raise InputError(f"{place}: {name} is {text[:40]!a}: say a whole number, at most {_LARGEST}")
    return int(text)


def _triple(text: str, name: str, place: str) -> Triple:
    parts = text.strip().split("x")
    if len(parts) not in (1, 3):
        raise InputError(f"{place}: {name} is {text[:40]!a}: say one number, or three such as 1x3x3")
    numbers = [_number(part, name, place) for part in parts]
    return _three(numbers * 3 if len(numbers) == 1 else numbers)


def _three(values: object) -> Triple:
    depth, height, width = _numbers(values)
    return depth, height, width


def _numbers(values: object) -> Iterator[int]:
    assert isinstance(values, (tuple, list))
    return (int(value) for value in values)


def _times(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))
