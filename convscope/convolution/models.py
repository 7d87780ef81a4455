"""Models by name, and their convolutions listed without computing anything."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import torch
import torchvision
from torch import nn

from convscope.convolution import names
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.layer import Layer
from convscope.convolution.names import MODELS as MODELS
from convscope.convolution.names import PREFIX as PREFIX
from convscope.convolution.sources.files import CallableSource
from convscope.convolution.sources.libraries import TimmSource, TorchvisionSource, TransformersSource
from convscope.convolution.sources.shapes import ExportedSource, TableSource
from convscope.convolution.sources.source import Inputs, Size, Source, in_words, on_meta
from convscope.convolution.sources.source import images as images
from convscope.cudnn.shape import ALONE
from convscope.errors import InputError
from convscope.timing.calls import Call, watched
from convscope.timing.hooks import convolution_modules

_KINDS: dict[str | None, type[Source]] = {
    names.FILE: CallableSource,
    names.IMPORTED: CallableSource,
    names.EXPORTED: ExportedSource,
    names.TABLE: TableSource,
}


def find_source(name: str) -> Source:
    """Return the model of this name: one of `MODELS`, or of the kinds that `names.KINDS` lists.

    Raises:
        InputError: there is none of this name, or its library is not installed.
    """
    listed = [each for each in torchvision.models.list_models() if not each.startswith("quantized_")]
    checked = names.check_model(name, listed)
    if kind := names.kind_of(checked):
        return _KINDS[kind](checked)
    if not checked.startswith((names.TIMM, names.HF)):
        return TorchvisionSource(checked)
    source = TimmSource(checked) if checked.startswith(names.TIMM) else TransformersSource(checked)
    source.check()
    return source


def check_name(name: str) -> str:
    """Return a model's name in one spelling; InputError if there is no such model (`find_source`)."""
    return find_source(name).name


def build(name: str, pretrained: bool = False, seed: int = 0) -> nn.Module:
    """Build a model by name as `Source.build` does; InputError also for an unknown name."""
    return find_source(name).build(seed, pretrained)


def settle_statistics(model: nn.Module, input_size: int, seed: int, batch_size: int = 8) -> None:
    """Give untrained batch normalisation the statistics of one batch of noise, in place (`settle`)."""
    settle(model, (images(batch_size, input_size, seed),))


def settle(model: nn.Module, inputs: tuple[torch.Tensor, ...], only: Collection[nn.Module] | None = None) -> None:
    """Give untrained batch normalisation the statistics of one batch, in place; all is on the CPU, in float32.

    Without them it scales nothing, and the numbers of a deep model grow out of half precision's range.

    Args:
        only: leave others than these modules as they are.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    norms = [module for module in norms if only is None or module in only]
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = None  # the mean of all batches seen, which is this one
    with torch.no_grad():
        model(*inputs)
    for norm, momentum in zip(norms, before, strict=True):
        norm.eval()
        norm.momentum = momentum


def classifier(name: str, classes: int, stem: str, seed: int) -> nn.Module:
    """Build a model to be trained: on the CPU, weights drawn from `seed`, with this number of classes.

    Args:
        stem: "imagenet" is the model unchanged; "cifar" gives a ResNet of torchvision the usual beginning for images
            of 32 pixels: a 3×3 convolution with stride 1, and no pooling behind it.

    Raises:
        InputError: unknown name, or a model whose number of classes cannot be chosen.
    """
    source = find_source(name)
    model = source.classifier(classes, seed)
    if stem == "cifar":
        assert isinstance(model, torchvision.models.ResNet), f"{name} has no cifar stem"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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
        except Exception as error:  # whatever a model of the user's does with these inputs
            size = "×".join(map(str, inputs[0].shape[-2:]))
            refused = isinstance(error, (RuntimeError, AssertionError, ValueError, TypeError)) and str(error)
            cause = str(error).splitlines()[0] if refused else in_words(error)
            raise InputError(f"{name} cannot take {size} images ({cause})") from None
    return layers


def followed(
    name: str, model: nn.Module, *shapes: Sequence[int], watch: Callable[[nn.Module], object] = lambda copied: None
) -> list[Layer]:
    """List the convolutions of one pass over inputs of these shapes, as `called` does; the model stays as it is.

    A copy is followed on the meta device: shapes, no memory and no arithmetic. Where that cannot be (control flow
    depends on numbers), a copy runs once on the CPU.

    Args:
        watch: called with each copy before it runs.

    Raises:
        InputError: the model cannot take these inputs.
    """
    copied = on_meta(model)
    watch(copied)
    try:
        return called(name, copied, tuple(torch.empty(*shape, device="meta") for shape in shapes))
    except InputError as refused:
        copied = copy.deepcopy(model).float().cpu().eval()
        watch(copied)
        return _on_cpu(name, copied, lambda: tuple(torch.randn(*shape) for shape in shapes), refused)


def _on_cpu(name: str, model: nn.Module, inputs: Callable[[], Inputs], refused: InputError) -> list[Layer]:
    try:
        given = inputs()
    except RuntimeError:  # no memory for them
        raise refused from None
    return called(name, model, given)


def convolutions(name: str, input_size: Size, batch_size: int = 1) -> tuple[Layer, ...]:
    """List the convolutions of a model by name, as `layers_of` does."""
    return layers_of(find_source(name), input_size, batch_size)


@functools.lru_cache(maxsize=8)  # a long sweep must not collect its sizes
def layers_of(
    source: Source, size: Size, batch_size: int = 1, seed: int = 0, pretrained: bool = False
) -> tuple[Layer, ...]:
    """List the convolutions that one pass of a model calls, as `called` does, for inputs of this size.

    A model that cannot be followed on the meta device (its control flow depends on numbers) runs once on the CPU, with
    the weights and inputs of this seed, or trained weights.

    Raises:
        InputError: the model cannot take this size.
    """
    return tuple(called_of(source, size, batch_size, seed, pretrained))


def called_of(
    source: Source, size: Size, batch_size: int, seed: int, pretrained: bool,
    watch: Callable[[nn.Module], object] | None = None,
) -> list[Layer]:  # fmt: skip
    """List the convolutions of one pass as `layers_of` does.

    Args:
        watch: called with each model that is followed before it runs.

    Raises:
        InputError: the model cannot take this size.
    """
    shapes = source.input_shapes(size, batch_size)
    try:
        model = source.shapes() if watch else _on_meta(source)
        if watch:
            watch(model)
        return called(source.name, model, shapes)
    except InputError as error:
        if isinstance(source, TorchvisionSource) and names.takes_usual_sizes(source.name):
            raise
        refused = error
    model = source.build(seed, pretrained)
    if watch:
        watch(model)
    return _on_cpu(source.name, model, lambda: source.inputs(size, batch_size, seed), refused)


@functools.lru_cache(maxsize=4)
def _on_meta(source: Source) -> nn.Module:
    return source.shapes()


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
        fused=conv.fused if isinstance(conv, FusedConv2d) else ALONE,
    )  # fmt: skip


_METHODS = ("forward", "_conv_forward", "__call__", "_call_impl")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def peculiarity(module: nn.Module) -> str:
    """Return what a module does besides the convolution that its options describe, "" for a plain one.

    Plain is `nn.Conv2d`, or a subclass that inherits how it is called, whose weight and bias are ordinary parameters
    (pruning, weight normalisation and other parametrizations compute them in each call), and that has no hooks; and
    `FusedConv2d`, whose steps are options too.
    """
    kind = type(module).__name__
    known = FusedConv2d if type(module) is FusedConv2d else nn.Conv2d
    for method in _METHODS:
        if method in vars(module) or getattr(type(module), method) is not getattr(known, method):
            return f"{kind} overrides {method}"
    for name in ("weight", "bias"):
        held = module._parameters.get(name)
        if name not in module._parameters or (held is not None and type(held) is not nn.Parameter):
            return f"{kind} has no ordinary parameter as its {name}"
    return f"{kind} has hooks" if has_hooks(module) else ""


def has_hooks(module: nn.Module) -> bool:
    """Tell whether a module has hooks."""
    return any(getattr(module, hooks) for hooks in _HOOKS)


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one with this name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
