"""The models: built by name, and their convolutions listed at an input size without computing anything."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torchvision
from torch import nn

from convscope.convolution.layer import Layer
from convscope.errors import InputError
from convscope.timing.hooks import hooked

MODELS = ("vgg16", "densenet121", "resnet152", "googlenet", "alexnet", "resnet50")
PREFIX = "torchvision:"
TIMM_PREFIX = "timm:"

# Heads that only training uses; their weights would have to be built and never run.
_INFERENCE_ONLY: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def check_name(name: str) -> str:
    """Return the model's name in torchvision's spelling.

    Raises:
        InputError: neither one of `MODELS` nor `torchvision:` and a classification model of torchvision.
    """
    plain = name.strip()
    bare = plain.removeprefix(PREFIX).lower()
    if bare in MODELS:
        return bare
    if not plain.startswith(PREFIX):
        raise InputError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}, or torchvision:NAME")
    if bare not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"torchvision has no classification model {bare!r}: see --list-models")
    return PREFIX + bare


def build(name: str, pretrained: bool = False, seed: int = 0) -> nn.Module:
    """Build a model in evaluation mode on the CPU, its weights drawn from `seed` unless `pretrained`.

    The weights do not change how long a convolution takes; torchvision's own initialisation keeps activations finite.

    Raises:
        InputError: unknown name, or the trained weights cannot be had (compute nodes are often offline).
    """
    bare = check_name(name).removeprefix(PREFIX)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not pretrained:
            return _made(bare, weights=None, **_INFERENCE_ONLY.get(bare, {}))
        try:
            return _made(bare, weights="DEFAULT")
        except OSError as error:
            raise InputError(
                f"the trained weights of {bare} cannot be downloaded ({error}): "
                f"put them into {torch.hub.get_dir()}/checkpoints, or leave out --pretrained"
            ) from None


def check_any_name(name: str) -> str:
    """Return the name of a model that `build_any` builds: one of `check_name`'s, or `timm:` and one of timm's.

    Raises:
        InputError: there is none of this name, or timm is not installed.
    """
    plain = name.strip()
    if not plain.startswith(TIMM_PREFIX):
        return check_name(name)
    bare = plain.removeprefix(TIMM_PREFIX)
    if not _timm().is_model(bare):
        raise InputError(f"timm has no model {bare!r}: python -c 'import timm; print(timm.list_models())'")
    return plain


def build_any(name: str, pretrained: bool, seed: int) -> nn.Module:
    """Build a model of torchvision's or timm's as `build` does; raises what it raises."""
    if not name.startswith(TIMM_PREFIX):
        return build(name, pretrained, seed)
    bare = name.removeprefix(TIMM_PREFIX)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: nn.Module = _timm().create_model(bare, pretrained=pretrained)
        except OSError as error:
            raise InputError(f"the trained weights of {bare} cannot be had ({error}): leave out --pretrained") from None
    return model.eval()


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
    """Build a model to be trained: on the CPU, weights drawn from `seed`, so many classes.

    Args:
        stem: "imagenet" is the model as torchvision has it; "cifar" gives a ResNet what is usual for images of
            32 pixels: a 3×3 convolution with stride 1 to begin with, and no pooling behind it.

    Raises:
        InputError: unknown name.
    """
    bare = check_name(name).removeprefix(PREFIX)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(bare, weights=None, num_classes=classes, **_INFERENCE_ONLY.get(bare, {}))
        if stem == "cifar":
            assert isinstance(model, torchvision.models.ResNet), f"{bare} has no cifar stem"
            model.conv1 = nn.Conv2d(3, model.conv1.out_channels, 3, stride=1, padding=1, bias=False)
            nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
            model.maxpool = nn.Identity()
    return model


def called(name: str, model: nn.Module, given: torch.Tensor) -> list[Layer]:
    """List the convolutions that one pass of this input calls, in order; model and input are on the meta device.

    Raises:
        InputError: the model cannot take this size.
    """
    found: list[Layer] = []

    def note(layer: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        found.append(describe(layer, len(found), module, given.shape, output.shape))

    with torch.inference_mode(), hooked(model, after=note):
        try:
            model(given)
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            cause = str(error).splitlines()[0]
            size = "×".join(map(str, given.shape[-2:]))
            raise InputError(f"{name} cannot take {size} images ({cause})") from None
    return found


@functools.lru_cache(maxsize=8)  # a long sweep must not collect its sizes
def convolutions(name: str, input_size: int, batch_size: int = 1) -> tuple[Layer, ...]:
    """List the convolutions that one forward pass of a model calls, in order, for input batch × 3 × size × size.

    Runs on PyTorch's meta device: shapes only, no memory and no arithmetic.

    Raises:
        InputError: the model cannot take this size.
    """
    given = torch.empty(batch_size, 3, input_size, input_size, device="meta")
    return tuple(called(name, _on_meta(name), given))


@functools.lru_cache(maxsize=4)
def _on_meta(name: str) -> nn.Module:
    bare = check_name(name).removeprefix(PREFIX)
    options = _INFERENCE_ONLY.get(bare, {})
    if "init_weights" in options:
        options = options | {"init_weights": False}
    try:
        with torch.device("meta"):
            return _made(bare, weights=None, **options)
    except NotImplementedError:  # some (RegNet) compute on their weights while they are built
        return _made(bare, weights=None, **options).to("meta")


def _made(bare: str, **options: Any) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(bare, **options)
    return model.eval()


def describe(name: str, position: int, conv: nn.Conv2d, given: torch.Size, output: torch.Size) -> Layer:
    """Return the layer that a call of `conv` is; `given` and `output` are N × C × H × W."""
    kernel, stride, dilation = _pair(conv.kernel_size), _pair(conv.stride), _pair(conv.dilation)
    spans = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    uneven = conv.padding == "same" and any(span % 2 for span in spans)
    if isinstance(conv.padding, str):
        padding = _pair([span // 2 if conv.padding == "same" else 0 for span in spans])
    else:
        padding = _pair(conv.padding)
    return Layer(
        name=name,
        position=position,
        batch=given[0],
        in_channels=conv.in_channels,
        out_channels=conv.out_channels,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=conv.groups,
        in_height=given[-2],
        in_width=given[-1],
        out_height=output[-2],
        out_width=output[-1],
        bias=conv.bias is not None,
        padding_mode=conv.padding_mode,
        uneven_padding=uneven,
    )


def _pair(values: Any) -> tuple[int, int]:
    height, width = values
    return int(height), int(width)


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one with this name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
