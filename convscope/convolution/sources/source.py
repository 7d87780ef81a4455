"""A source of a model: what it builds, the inputs that the model takes, and the digest of what decides it."""

from __future__ import annotations

import abc
import contextlib
import copy
import os
import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from convscope.convolution import names
from convscope.errors import InputError

Inputs = tuple[torch.Tensor, ...]
"""The arguments of one call of a model."""
Size = int | tuple[int, int]
"""Extents of an image in pixels: of a square one, or height and width."""


@dataclass(frozen=True)
class Source(abc.ABC):
    """A model that can be built, and the inputs that it takes."""

    name: str

    @property
    def digest(self) -> str:
        """SHA-256 of name and code, and of the weights where a seed does not draw them; "" where it is unknown."""
        return names.digest(self.name)

    @property
    def fixed_px(self) -> int | None:
        """The one input size that the model takes, in pixels; None where images of many sizes are possible."""
        return None

    @property
    def own_batch(self) -> int | None:
        """The one batch size that the model takes; None where any is possible."""
        return None

    @property
    def trained_weights(self) -> bool:
        """There are trained weights to be had (`build(pretrained=True)`)."""
        return True

    @property
    def is_network(self) -> bool:
        """Its convolutions make a pass of a network, whose time says something; False for a mere list of them."""
        return True

    def refuse_other_sizes(self, asked: Sequence[Size], option: str) -> None:
        """Raise InputError where an option of the command line named sizes, and the model takes another one alone.

        Args:
            option: "" where the sizes are a default, which gives way to the model's own.
        """
        own_px = self.fixed_px
        if option and own_px is not None and [*asked] != [own_px]:
            advice = f"leave out {option}, or say --input-size {own_px}"
            raise InputError(f"{self.name} takes inputs of one size alone, {own_px} px: {advice}")

    def build(self, seed: int, pretrained: bool = False) -> nn.Module:
        """Build the model in evaluation mode on the CPU, its weights drawn from `seed` unless `pretrained`.

        The weights do not change how long a convolution takes; a library's own initialisation keeps activations
        finite.

        Raises:
            InputError: the trained weights cannot be downloaded (compute nodes are often offline), or there are none;
                the code that builds it fails.
        """
        if pretrained and not self.trained_weights:
            raise InputError(f"{self.name} brings its own weights: leave out --pretrained")
        try:
            with seeded(seed):
                return self._built(pretrained).eval()
        except InputError:
            raise
        except Exception as error:  # of a library's or the user's code, whatever it is
            raise InputError(f"{self.name} cannot be built: {in_words(error)}") from None

    def classifier(self, classes: int, seed: int) -> nn.Module:
        """Build the model to be trained, on the CPU, with weights drawn from `seed` and this number of classes.

        Raises:
            InputError: its number of classes cannot be chosen.
        """
        with seeded(seed):
            return self._classifying(classes)

    def shapes(self) -> nn.Module:
        """Build the model on the meta device: shapes, no memory and no arithmetic."""
        return on_meta(self.build(0))

    def inputs(self, size: Size, batch_size: int, seed: int) -> Inputs:
        """Return the arguments of one call on the CPU: random images, batch × 3 × height × width, from `seed`."""
        return (images(batch_size, size, seed),)

    def input_shapes(self, size: Size, batch_size: int) -> Inputs:
        """Return arguments of one call on the meta device.

        Raises:
            InputError: they have more bytes than 64 bits count.
        """
        height, width = extents(size)
        try:
            return (torch.empty(batch_size, 3, height, width, device="meta"),)
        except RuntimeError:
            shown = height if height == width else f"{height}×{width}"
            raise InputError(f"a batch of {batch_size:,} images of {shown} px fits into no memory") from None

    @abc.abstractmethod
    def _built(self, pretrained: bool) -> nn.Module: ...

    def _classifying(self, classes: int) -> nn.Module:
        raise InputError(f"{self.name} cannot be trained here: its number of classes cannot be chosen")


def in_words(error: BaseException) -> str:
    """Return an error of a library's or the user's code in one line, with the place in it."""
    message = (str(error).splitlines() or [""])[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.isfile(frame.filename)]
    is_code = frames and os.path.dirname(frames[-1].filename) != os.path.dirname(__file__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if is_code else ""
    return f"{type(error).__name__}: {message}{place}" if message else f"{type(error).__name__}{place}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers of PyTorch on the CPU, of NumPy and of Python from a seed; afterwards as before."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first tensor of a model's output: of a mapping, a data class of transformers, a list or a tuple.

    Raises:
        InputError: there is none.
    """
    if isinstance(output, torch.Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (list, tuple)) else ()
    for part in parts:
        if isinstance(part, (torch.Tensor, Mapping, list, tuple)):
            return first_tensor(part)
    raise InputError(f"the model returns a {type(output).__name__}, in which there is no tensor")


class FirstTensor(nn.Module):
    """A model that returns the first tensor of another's output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the first tensor of the model's output."""
        return first_tensor(self.model(*inputs))


def extents(size: Size) -> tuple[int, int]:
    """Return height and width in pixels."""
    return size if isinstance(size, tuple) else (size, size)


def images(batch_size: int, size: Size, seed: int) -> torch.Tensor:
    """Return a batch of noise drawn from `seed`, batch × 3 × height × width in float32 on the CPU."""
    return torch.randn(batch_size, 3, *extents(size), generator=torch.Generator().manual_seed(seed))


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model on the meta device, in float32."""
    return copy.deepcopy(model).float().to("meta").eval()


@dataclass(frozen=True)
class FixedSource(Source):
    """A model that comes with example inputs, whose sizes are the only ones it is called with.

    Attributes:
        state: of what the name stands for, when this was created; sources of two states are two.
    """

    state: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        """Note the state of the model's file."""
        object.__setattr__(self, "state", names.stamp(self.name))

    @abc.abstractmethod
    def examples(self) -> Inputs | None:
        """Return the example inputs on the CPU; None where there are none, and images are the inputs."""

    @property
    def fixed_px(self) -> int | None:
        """The last extent of the largest example input; None without examples."""
        given = self.examples()
        return None if given is None else int(max(given, key=torch.Tensor.numel).shape[-1])

    @property
    def trained_weights(self) -> bool:
        """False: the model is as it is."""
        return False

    @property
    def own_batch(self) -> int | None:
        """The batch of a first example input of three dimensions, unless 1: it may be an image without a batch."""
        given = self.examples()
        return int(given[0].shape[0]) if given and given[0].dim() == 3 and given[0].shape[0] != 1 else None

    def inputs(self, size: Size, batch_size: int, seed: int) -> Inputs:
        """Return the example inputs, repeated or cut to the batch size; images of this size where there are none.

        The batch is the first extent of the first input; inputs that share it are repeated or cut.

        Raises:
            InputError: the model takes another batch size alone.
        """
        self._check_batch(batch_size)
        given = self.examples()
        return super().inputs(size, batch_size, seed) if given is None else _repeated(given, batch_size)

    def input_shapes(self, size: Size, batch_size: int) -> Inputs:
        """Return these inputs on the meta device.

        Raises:
            InputError: the model takes another batch size alone.
        """
        self._check_batch(batch_size)
        given = self.examples()
        if given is None:
            return super().input_shapes(size, batch_size)
        return _repeated(tuple(each.to("meta") for each in given), batch_size)

    def _check_batch(self, batch_size: int) -> None:
        own = self.own_batch
        if own is not None and own != batch_size:
            raise InputError(self._why_batch(own))

    def _why_batch(self, own: int) -> str:
        """Return why the model takes this batch size alone, and what to do."""
        shape = "×".join(map(str, (self.examples() or ())[0].shape))
        return (
            f"the first example input of {self.name} is of {shape}, and its first extent is the batch: "
            f"say --batch-size {own}, or give an image a batch (unsqueeze(0))"
        )


def checked_batch(name: str, given: Inputs) -> Inputs:
    """Return example inputs; InputError unless the first has two dimensions at least, of which one is the batch."""
    if given[0].dim() < 2:
        shape = "×".join(map(str, given[0].shape)) or "no extents"
        raise InputError(f"the example inputs of {name} need a batch as their first extent: the first is of {shape}")
    return given


def _repeated(given: Inputs, batch_size: int) -> Inputs:
    batch = given[0].shape[0]
    if batch == batch_size:
        return given
    picked = [index % max(1, batch) for index in range(batch_size)]

    def repeated(each: torch.Tensor) -> torch.Tensor:
        shares_it = each.dim() > 0 and each.shape[0] == batch
        return each.index_select(0, torch.tensor(picked, device=each.device)) if shares_it else each

    return tuple(map(repeated, given))
