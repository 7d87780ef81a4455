"""The catalogue of convolution algorithms: their names, cuDNN's numbers, and the rules a layer must meet.

Each question that can be answered without a GPU is one function here, `why_not_…`, which returns the reason or None.
The library on the card has the last word (`operator.CudaOperator.why_refused`): a rule may pass a layer that cuDNN
refuses, never the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from convscope.convolution.layer import Layer
from convscope.cudnn.graph.plan import Plan
from convscope.errors import InputError

FALLBACK = "implicit precomp gemm"
GRAPH = "cudnn graph"
"""The provider of plans of cuDNN's graph API."""
PLAN = "plan:"
"""Begins the name of a plan: "plan:38:k2=8,k13=1" is an engine with the values of its knobs."""
WITH_STEPS = "plan+steps:"
"""Begins the name of a plan of the convolution alone, with one kernel behind it for what is fused otherwise."""
PACKED = "plan+packed:"
"""Begins the name of a plan that reads filters in channels last, where they are laid out once, beside NCHW tensors."""
_PLANS: Mapping[str, str] = {
    PLAN: "a plan of cuDNN's graph API",
    WITH_STEPS: "a plan of the convolution alone, and a kernel for what follows",
    PACKED: "a plan for filters that are laid out in channels last once",
}
PLAN_PATTERN = f"{PLAN}ENGINE[:kN=VALUE,…]"

# From cuDNN's API reference (cudnnConvolutionForward), confirmed by asking cuDNN 9.19 on an H200.
FFT_EXTENT_PX = 256
FFT_TILE_PX = 32
HOPPER = (9, 0)  # compute capability
KNOWN_IN_NHWC = ("implicit gemm", "implicit precomp gemm")  # asked on an H200, cuDNN 9.19
_NCHW_ONLY = ("fft", "fft tiling")  # cuDNN's reference: tensors packed in height and width
_TYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("fft", "fft tiling", "winograd"), ("float32", "float16")),
    "winograd nonfused": ("float32", "float16", "bfloat16"),
}


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that computes a convolution.

    Attributes:
        cudnn_number: the value of cudnnConvolutionFwdAlgo_t, None where cuDNN gets none.
        cpu_provider: the library that runs it on a CPU, None where none does.
        cuda_providers: the libraries that run it on a GPU, in the order in which they are tried.
        rule: returns the reason why a layer's shape rules it out, or None.
    """

    name: str
    title: str
    cudnn_number: int | None
    cpu_provider: str | None
    cuda_providers: tuple[str, ...]
    rule: Callable[[Layer], str | None]
    rule_depends_on_size: bool = False

    @property
    def takes_any_shape(self) -> bool:
        """True where no layer's shape rules it out."""
        return self.rule is _any_shape


def _any_shape(layer: Layer) -> str | None:
    return None


def _winograd(layer: Layer) -> str | None:
    if layer.kernel != (3, 3) or layer.stride != (1, 1):
        return "winograd needs 3×3 kernels with stride 1"
    return _undilated("winograd", layer)


def _winograd_nonfused(layer: Layer) -> str | None:
    if layer.kernel not in ((3, 3), (5, 5)) or layer.stride != (1, 1):
        return "winograd nonfused needs 3×3 or 5×5 kernels with stride 1"
    return _undilated("winograd nonfused", layer)


def _fft(layer: Layer) -> str | None:
    if layer.stride != (1, 1):
        return "fft needs stride 1"
    if max(extent + 2 * pad for extent, pad in zip(layer.size, layer.padding, strict=True)) > FFT_EXTENT_PX:
        return f"fft needs padded inputs of at most {FFT_EXTENT_PX}×{FFT_EXTENT_PX}"
    return _padded_less_than_kernel("fft", layer) or _undilated("fft", layer)


def _fft_tiling(layer: Layer) -> str | None:
    if max(layer.stride) > 2:
        return "fft tiling needs strides of at most 2"
    if layer.stride != (1, 1) and min(layer.kernel) == 1:
        return "fft tiling needs stride 1 with 1-wide kernels"
    if max(layer.kernel) > FFT_TILE_PX:
        return f"fft tiling needs kernels of at most {FFT_TILE_PX}×{FFT_TILE_PX}"
    return _padded_less_than_kernel("fft tiling", layer) or _undilated("fft tiling", layer)


def _padded_less_than_kernel(name: str, layer: Layer) -> str | None:
    if any(pad >= extent for pad, extent in zip(layer.padding, layer.kernel, strict=True)):
        return f"{name} needs less padding than kernel"
    return None


def _undilated(name: str, layer: Layer) -> str | None:
    return None if layer.dilation == (1, 1) else f"{name} needs dilation 1"


ALGORITHMS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("direct", "direct convolution", None, "ai3", ("triton",), _any_shape),
        Algorithm("smm", "scalar matrix multiplication", None, "ai3", (), _any_shape),
        Algorithm("gemm", "im2col and a matrix product", 2, None, ("cudnn",), _any_shape),
        Algorithm("implicit gemm", "matrix product without im2col in memory", 0, None, ("cudnn",), _any_shape),
        Algorithm("implicit precomp gemm", "implicit gemm, precomputed indices", 1, None, ("cudnn",), _any_shape),
        Algorithm("fft", "fast Fourier transform", 4, None, ("cudnn",), _fft, rule_depends_on_size=True),
        Algorithm("fft tiling", "fast Fourier transform in tiles", 5, None, ("cudnn",), _fft_tiling),
        Algorithm("winograd", "Winograd, fused; by Triton fused or not", 6, None, ("cudnn", "triton"), _winograd),
        Algorithm("winograd nonfused", "Winograd, transforms apart", 7, None, ("cudnn",), _winograd_nonfused),
        Algorithm("guess", "cuDNN's own choice by its heuristic", None, None, ("cudnn",), _any_shape),
        Algorithm("torch", "PyTorch, unchanged: the baseline", None, "torch", ("torch",), _any_shape),
    )
}

HEURISTICS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("heuristic a", "cuDNN's first plan, by its rules", None, None, (GRAPH,), _any_shape),
        Algorithm("heuristic b", "cuDNN's first plan, by its model of times", None, None, (GRAPH,), _any_shape),
    )
}
"""Choosers of a plan of cuDNN's graph API, beside `ALGORITHMS`, which are what every study compares by default."""
AUTOTUNE, PLANNED = "autotune", "planned"
MIXTURES: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(AUTOTUNE, "the fastest plan of each layer, measured in the model", None, None, (GRAPH,), _any_shape),
        Algorithm(PLANNED, "the plan that a document has for each layer", None, "ai3", (GRAPH,), _any_shape),
    )
}
"""Names of plans that differ from layer to layer: no layer alone can be given one."""
CHOOSERS = ("guess", *HEURISTICS)
"""Names that leave the choice to cuDNN: what ran has another one."""

_DIRECT_NUMBER = 3  # cuDNN has a number for direct convolution, and has never implemented it
NAMES_BY_CUDNN_NUMBER: Mapping[int, str] = {
    algorithm.cudnn_number: algorithm.name for algorithm in ALGORITHMS.values() if algorithm.cudnn_number is not None
} | {_DIRECT_NUMBER: "direct"}


def find(name: str) -> Algorithm:
    """Return the algorithm of this name; spaces and underscores, capitals and small letters are the same.

    Raises:
        InputError: no such algorithm, the message lists them all; or the name of a plan is none.
    """
    plain = " ".join(name.replace("_", " ").lower().split())
    if plan := plan_of(plain):
        kind = plain[: plain.index(":") + 1]
        return Algorithm(plan_name(plan, kind), _PLANS[kind], None, None, (GRAPH,), _any_shape)
    known = ALGORITHMS.get(plain) or HEURISTICS.get(plain) or MIXTURES.get(plain)
    if known is None:
        every = ", ".join((*ALGORITHMS, *HEURISTICS, AUTOTUNE))
        raise InputError(f"unknown algorithm {name!r}: choose one of {every}, or {PLAN_PATTERN}")
    return known


def plan_name(plan: Plan, kind: str = PLAN) -> str:
    """Return the algorithm that is one plan: as it is, `WITH_STEPS` or `PACKED`."""
    return f"{kind}{plan}"


def has_steps(name: str) -> bool:
    """Tell whether an algorithm is a plan of the convolution alone with what is fused otherwise behind it."""
    return name.startswith(WITH_STEPS)


def packs_filters(name: str) -> bool:
    """Tell whether an algorithm is a plan for filters that are laid out in channels last once."""
    return name.startswith(PACKED)


def plan_of(name: str) -> Plan | None:
    """Return the plan that an algorithm is, None where it is no plan; InputError where the name is of none."""
    kind = next((kind for kind in _PLANS if name.startswith(kind)), None)
    return Plan.named(name.removeprefix(kind)) if kind else None


def why_nothing_to_pack(name: str, weight: Sequence[int], layout: str) -> str | None:
    """Return why filters need no packing: they lie in channels last already; None where they do not, or are not packed.

    Args:
        weight: the filters' sizes K × C/groups × spatial, none where they are not known. With one channel, or one tap,
            both layouts are the same.
    """
    if not packs_filters(name) or (layout == "nchw" and (not weight or (weight[1] > 1 and max(weight[2:]) > 1))):
        return None
    return f"these filters lie in channels last as they are: {name.replace(PACKED, PLAN)} is the same"


def cudnn_number(name: str) -> int | None:
    """Return the number of an algorithm in a call of cuDNN, None to leave the choice to its heuristic."""
    return _DIRECT_NUMBER if name == "direct" else ALGORITHMS[name].cudnn_number


def why_not_on_device(algorithm: Algorithm, device_type: str) -> str | None:
    """Return why no library runs the algorithm on this kind of device ("cpu" or "cuda"), or None where one does."""
    if device_type == "cpu":
        return None if algorithm.cpu_provider else f"{algorithm.name} needs a CUDA device"
    return None if algorithm.cuda_providers else f"{algorithm.name} runs on a CPU only"


def why_not_here(algorithm: Algorithm, device_type: str) -> str | None:
    """Return why no library runs the algorithm on this kind of device, with what to do; None where one does."""
    reason = why_not_on_device(algorithm, device_type)
    on_cpu = "on a CPU choose direct, smm or torch, or run where a GPU is"
    return reason and f"{reason}: {on_cpu if device_type == 'cpu' else 'GPU cpu measures on the CPU'}"


def why_not_by_provider(algorithm: Algorithm, provider: str) -> str | None:
    """Return why this library ("cudnn" or "triton") does not run the algorithm on a GPU, or None where it does."""
    if provider in algorithm.cuda_providers:
        return None
    if provider == "cudnn" and algorithm.name == "direct":
        return "cuDNN implements no direct convolution"
    return f"{algorithm.name} is not one of {provider}'s"


def why_not_by_module(name: str, layer: Layer) -> str | None:
    """Return what a layer's module does besides the convolution that an algorithm computes, or None for nothing."""
    if layer.peculiarity:
        return f"only plain convolutions can be replaced, and {layer.peculiarity}"
    if layer.padding_mode != "zeros":
        return f"{name} pads with zeros only, not {layer.padding_mode!r}"
    if layer.uneven_padding:
        return f"{name} pads both sides alike: padding 'same' needs an odd extent of the kernel"
    return None


def why_not_by_rule(algorithm: Algorithm, layer: Layer, device_type: str) -> str | None:
    """Return why a layer cannot use the algorithm on this kind of device, or None where no rule is against it."""
    if algorithm.name == "torch":
        return None
    no_device = why_not_on_device(algorithm, device_type)
    if no_device:
        return no_device
    if by_module := why_not_by_module(algorithm.name, layer):
        return by_module
    if has_steps(algorithm.name) and not layer.fused.count:
        return f"nothing is fused with this layer: {algorithm.name.replace(WITH_STEPS, PLAN)} is the same"
    if by_filters := why_nothing_to_pack(algorithm.name, layer.weight, "nchw"):
        return by_filters
    if layer.fused.count and algorithm.cuda_providers != (GRAPH,):
        return f"{algorithm.name} has nothing fused into it: only plans take {layer.fused} with the convolution"
    if device_type == "cpu":
        return None if layer.groups == 1 else "ai3 has no grouped convolution on a CPU"
    return algorithm.rule(layer)


def why_not_on_generation(name: str, capability: tuple[int, int]) -> str | None:
    """Return why cuDNN lacks an algorithm on cards of this compute capability, or None where it has it."""
    if name == "winograd" and capability >= HOPPER:
        return "cuDNN has no fused Winograd on Hopper and later"
    return None


def why_not_for_dtype(name: str, dtype: str) -> str | None:
    """Return why cuDNN lacks an algorithm for a data type (of NCHW tensors), or None where it has it."""
    if dtype not in _TYPES.get(name, (dtype,)):
        return f"{name} needs {', '.join(_TYPES[name][:-1])} or {_TYPES[name][-1]}"
    return None


def why_not_for_layout(name: str, layout: str) -> str | None:
    """Return why cuDNN lacks an algorithm for a layout, or None where it has it, or where only the card can say."""
    if layout == "nhwc" and name in _NCHW_ONLY:
        return f"{name} reads NCHW only"
    return None


def why_not_in(algorithm: Algorithm, device_type: str, dtype: str, layout: str) -> str | None:
    """Return why no library runs the algorithm in this data type and layout on this kind of device, or None.

    Of an algorithm that cuDNN shares with another library only the card, and that library, can say.
    """
    if device_type == "cpu":
        is_plain = algorithm.cpu_provider != "ai3" or (dtype, layout) == ("float32", "nchw")
        return None if is_plain else f"ai3 computes {algorithm.name} on a CPU in float32 and NCHW only"
    if by_filters := why_nothing_to_pack(algorithm.name, (), layout):
        return by_filters
    if algorithm.cuda_providers != ("cudnn",):
        return None
    return why_not_for_dtype(algorithm.name, dtype) or why_not_for_layout(algorithm.name, layout)


def refusals(reasons: Iterable[str | None], model: str) -> tuple[str, ...]:
    """Sum up the reasons of a model's layers (None for a layer that can): one sentence a reason, most frequent first.

    "winograd needs 3×3 kernels with stride 1: 108 of 155 convolutions of resnet152 are not"
    """
    every = list(reasons)
    counted = Counter(reason for reason in every if reason is not None)
    return tuple(
        f"{reason}: {count} of {len(every)} convolutions of {model}{' are not' if ' needs ' in reason else ''}"
        for reason, count in counted.most_common()
    )
