"""Sources of models: networks built by name, their inputs, and their convolutions listed without computing anything."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import nn

from convscope.convolution import names
from convscope.convolution.layer import Layer
from convscope.convolution.names import MODELS as MODELS
from convscope.convolution.names import PREFIX as PREFIX
from convscope.errors import InputError
from convscope.timing.calls import Call, watched
from convscope.timing.hooks import convolution_modules

TIMM_PREFIX = "timm:"

# Heads that only training uses; their weights would have to be built and never run.
_INFERENCE_ONLY: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


@dataclass(frozen=True)
class Source(abc.ABC):
    """A model that can be built, and the inputs that it takes."""

    name: str

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the model but the seed of its weights: its name and library's version."""
        return hashlib.sha256(f"{self.name} {self._library().__version__}".encode()).hexdigest()

    def build(self, seed: int, pretrained: bool = False) -> nn.Module:
        """Build the model in evaluation mode on the CPU, its weights drawn from `seed` unless `pretrained`.

        The weights do not change how long a convolution takes; torchvision's own initialisation keeps activations
        finite.

        Raises:
            InputError: the trained weights cannot be downloaded (compute nodes are often offline).
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._built(pretrained).eval()

    def inputs(self, size: int, batch_size: int, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the arguments of one call on the CPU: random images, batch × 3 × size × size, drawn from `seed`."""
        return (images(batch_size, size, seed),)

    @abc.abstractmethod
    def _library(self) -> Any: ...

    @abc.abstractmethod
    def _built(self, pretrained: bool) -> nn.Module: ...


class TorchvisionSource(Source):
    """A classification model of torchvision."""

    def _library(self) -> Any:
        return torchvision

    def _built(self, pretrained: bool) -> nn.Module:
        bare = self.name.removeprefix(PREFIX)
        if not pretrained:
            return _torchvision_model(bare, weights=None, **_INFERENCE_ONLY.get(bare, {}))
        try:
            return _torchvision_model(bare, weights="DEFAULT")
        except OSError as error:
            raise InputError(
                f"the trained weights of {bare} cannot be downloaded ({error}): "
                f"put them into {torch.hub.get_dir()}/checkpoints, or leave out --pretrained"
            ) from None


class TimmSource(Source):
    """A model of timm."""

    def _library(self) -> Any:
        return _timm()

    def _built(self, pretrained: bool) -> nn.Module:
        bare = self.name.removeprefix(TIMM_PREFIX)
        try:
            model: nn.Module = _timm().create_model(bare, pretrained=pretrained)
        except OSError as error:
            reason = f"the trained weights of {bare} cannot be had ({error}): leave out --pretrained"
            raise InputError(reason) from None
        return model


def find_source(name: str) -> Source:
    """Return the model of this name: one of `MODELS`, `torchvision:` or `timm:` and a name of theirs.

    Raises:
        InputError: there is none of this name, or timm is not installed.
    """
    plain = name.strip()
    if not plain.startswith(TIMM_PREFIX):
        return TorchvisionSource(check_name(name))
    bare = plain.removeprefix(TIMM_PREFIX)
    if not _timm().is_model(bare):
        raise InputError(f"timm has no model {bare!r}: python -c 'import timm; print(timm.list_models())'")
    return TimmSource(plain)


def check_name(name: str) -> str:
    """Return the name in torchvision's spelling; InputError if it is none of `MODELS` and no `torchvision:` model."""
    return names.check_model(name, torchvision.models.list_models(module=torchvision.models))


def build(name: str, pretrained: bool = False, seed: int = 0) -> nn.Module:
    """Build a model of torchvision as `TorchvisionSource.build` does; InputError also for an unknown name."""
    return TorchvisionSource(check_name(name)).build(seed, pretrained)


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise InputError("models by timm:NAME need timm: pip install timm") from None
    return timm


def images(batch_size: int, size_px: int, seed: int) -> torch.Tensor:
    """Return a batch of noise drawn from `seed`, batch × 3 × size × size in float32 on the CPU."""
    return torch.randn(batch_size, 3, size_px, size_px, generator=torch.Generator().manual_seed(seed))


def settle_statistics(model: nn.Module, input_size: int, seed: int, batch_size: int = 8) -> None:
    """Give untrained batch normalisation the statistics of one batch of noise, in place.

    Without them it scales nothing, and the numbers of a deep model grow out of half precision's range.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = None  # the mean of all batches seen, which is this one
    with torch.no_grad():
        model(images(batch_size, input_size, seed))
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval()
        norm.momentum = momentum


def classifier(name: str, classes: int, stem: str, seed: int) -> nn.Module:
    """Build a model to be trained: on the CPU, weights drawn from `seed`, with this number of classes.

    Args:
        stem: "imagenet" is torchvision's model unchanged; "cifar" gives a ResNet the usual beginning for images of
            32 pixels: a 3×3 convolution with stride 1, and no pooling behind it.

    Raises:
        InputError: unknown name.
    """
    bare = check_name(name).removeprefix(PREFIX)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _torchvision_model(bare, weights=None, num_classes=classes, **_INFERENCE_ONLY.get(bare, {}))
        if stem == "cifar":
            assert isinstance(model, torchvision.models.ResNet), f"{bare} has no cifar stem"
            model.conv1 = nn.Conv2d(3, model.conv1.out_channels, 3, stride=1, padding=1, bias=False)
            nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
            model.maxpool = nn.Identity()
    return model


def called(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Layer]:
    """List the convolutions that one pass of these inputs calls, in order; model and inputs are on the meta device.

    Raises:
        InputError: the model cannot take this size.
    """
    layers: list[Layer] = []
    peculiarities = {layer: peculiarity(module) for layer, module in convolution_modules(model).items()}

    def note(layer: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        if isinstance(module, Call):
            layers.append(Layer.of_call(layer, len(layers), module, given.shape))
            return
        assert isinstance(module, nn.Conv2d)
        described = describe(layer, len(layers), module, given.shape)
        layers.append(dataclasses.replace(described, peculiarity=peculiarities[layer]))

    with torch.inference_mode(), watched(model, after=note):
        try:
            model(*inputs)
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            cause = str(error).splitlines()[0]
            size = "×".join(map(str, inputs[0].shape[-2:]))
            raise InputError(f"{name} cannot take {size} images ({cause})") from None
    return layers


def shapes_only(model: nn.Module) -> nn.Module:
    """Return a copy of a model on the meta device: shapes, no memory and no arithmetic."""
    return copy.deepcopy(model).float().to("meta").eval()


def convolutions(name: str, input_size: int, batch_size: int = 1) -> tuple[Layer, ...]:
    """List the convolutions of a model by name, as `layers_of` does."""
    return layers_of(find_source(name), input_size, batch_size)


@functools.lru_cache(maxsize=8)  # a long sweep must not collect its sizes
def layers_of(source: Source, input_size: int, batch_size: int = 1) -> tuple[Layer, ...]:
    """List the convolutions that one pass of a model calls, as `called` does, for inputs of this size.

    Raises:
        InputError: the model cannot take this size.
    """
    try:
        given = torch.empty(batch_size, 3, input_size, input_size, device="meta")
    except RuntimeError:  # more bytes than 64 bits count
        raise InputError(f"a batch of {batch_size:,} images of {input_size} px fits into no memory") from None
    return tuple(called(source.name, _on_meta(source.name), (given,)))


@functools.lru_cache(maxsize=4)
def _on_meta(name: str) -> nn.Module:
    bare = check_name(name).removeprefix(PREFIX)
    options = dict.fromkeys(_INFERENCE_ONLY.get(bare, {}), False)  # no weights are initialised either
    try:
        with torch.device("meta"):
            return _torchvision_model(bare, weights=None, **options)
    except NotImplementedError:  # some (RegNet) compute on their weights while they are built
        return _torchvision_model(bare, weights=None, **options).to("meta")


def _torchvision_model(bare: str, **options: Any) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(bare, **options)
    return model.eval()


def describe(name: str, position: int, conv: nn.Conv2d | nn.Conv3d, given: Sequence[int]) -> Layer:
    """Return the layer that a call of `conv` is; `given` is the shape of its input, N × C × spatial."""
    spans = [step * (extent - 1) for step, extent in zip(conv.dilation, conv.kernel_size, strict=True)]
    same, padding = conv.padding == "same", conv.padding
    return Layer(
        input=(given[0], conv.in_channels, *given[2:]), weight=tuple(conv.weight.shape),
        padding=tuple(span // 2 if same else 0 for span in spans) if isinstance(padding, str) else tuple(padding),
        stride=tuple(conv.stride), dilation=tuple(conv.dilation), groups=conv.groups, name=name, position=position,
        bias=conv.bias is not None, padding_mode=conv.padding_mode,
        uneven_padding=same and any(span % 2 for span in spans),
    )  # fmt: skip


_METHODS = ("forward", "_conv_forward", "__call__", "_call_impl")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def peculiarity(module: nn.Module) -> str:
    """Return what a module does besides the convolution that its options describe, "" for a plain one.

    Plain is `nn.Conv2d`, or a subclass that inherits how it is called, whose weight and bias are ordinary parameters
    (pruning, weight normalisation and other parametrizations compute them in each call), and that has no hooks.
    """
    kind = type(module).__name__
    for method in _METHODS:
        if method in vars(module) or getattr(type(module), method) is not getattr(nn.Conv2d, method):
            return f"{kind} overrides {method}"
    for name in ("weight", "bias"):
        held = module._parameters.get(name)
        if name not in module._parameters or (held is not None and type(held) is not nn.Parameter):
            return f"{kind} has no ordinary parameter as its {name}"
    return f"{kind} has hooks" if any(getattr(module, hooks) for hooks in _HOOKS) else ""


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one with this name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
