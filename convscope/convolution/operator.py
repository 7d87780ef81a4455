"""CUDA kernel of `ai3::conv2d`: a plan for each shape, by cuDNN with exactly the algorithm asked for, or by Triton."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from convscope.convolution import algorithms, backends
from convscope.convolution.layer import Layer
from convscope.cudnn import legacy, library
from convscope.cudnn.shape import Convolution, output_extents
from convscope.errors import NotSupportedError

if TYPE_CHECKING:
    from convscope.kernels.plan import TritonPlan as TritonPlan


_OPERATOR = "ai3::conv2d"
_DEFAULT = {"default": "implicit precomp gemm"}  # what ai3 built with cuDNN makes of no name at all
_ZEROS = 0  # ai3's number of the padding mode "zeros"


@dataclass(frozen=True)
class Execution:
    """What really computed a layer: the algorithm's name, the library, and the workspace it took."""

    algorithm: str
    provider: str
    workspace_bytes: int | None = None


class CudaOperator:
    """The CUDA kernel of `ai3::conv2d`: one cuDNN handle a device, one plan a shape.

    `provider` is the library to run algorithms with that more than one has; None takes the first that can. `tuned` says
    what was chosen for the Triton kernels of released plans.
    """

    def __init__(self) -> None:
        self._handles: dict[int, legacy.Handle] = {}
        self._plans: dict[tuple[object, ...], legacy.LegacyPlan | TritonPlan] = {}
        self.last: legacy.LegacyPlan | TritonPlan | None = None
        self.provider: str | None = None
        self.tuned: dict[str, str] = {}

    def forward(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding_h: int,
        padding_w: int,
        stride_h: int,
        stride_w: int,
        dilation_h: int,
        dilation_w: int,
        padding_mode: int,
        groups: int,
        algorithm: str,
    ) -> torch.Tensor:
        """Convolve N × C × H × W (or C × H × W) on the input's device and PyTorch's current stream.

        Computed in the layout in force (`modes.layout`), in which the output lies too.

        Raises:
            cudnn.NotSupportedError: cuDNN refuses the algorithm for this shape.
            NotImplementedError: a padding mode other than zeros, or a data type that the provider does not convolve.
        """
        if padding_mode != _ZEROS:
            raise NotImplementedError("cuDNN pads with zeros only: pad the input first, or leave this layer to PyTorch")
        if input.dim() == 3:
            given = padding_h, padding_w, stride_h, stride_w, dilation_h, dilation_w, padding_mode, groups, algorithm
            return self.forward(input.unsqueeze(0), weight, bias, *given).squeeze(0)
        memory = backends.LAYOUTS[backends.layout_in_force()]
        x, w = input.contiguous(memory_format=memory), weight.contiguous(memory_format=memory)
        options = (padding_h, padding_w), (stride_h, stride_w), (dilation_h, dilation_w), groups
        device = x.device.index
        with torch.cuda.device(device) if device != torch.cuda.current_device() else contextlib.nullcontext():
            self.last = plan = self._plan_of(x, w, options, algorithm)
            if not isinstance(plan, legacy.LegacyPlan):
                return plan.run(x, w, bias)
            y = self._run(plan, x, w)
        if bias is not None:
            y.add_(bias.view(1, -1, 1, 1))
        return y

    def _plan_of(
        self, x: torch.Tensor, w: torch.Tensor, options: tuple[Any, ...], algorithm: str
    ) -> legacy.LegacyPlan | TritonPlan:
        """Return the plan of this shape, algorithm and modes, made at the first call."""
        device, in_force = x.device.index, (torch.backends.cudnn.allow_tf32, backends.layout_in_force())
        key = (device, algorithm, self.provider, x.shape, w.shape, x.dtype, in_force, options)
        if key not in self._plans:
            self._plans[key] = self._plan(device, _convolution(x, w, *options), algorithm)
        return self._plans[key]

    def _run(self, plan: legacy.LegacyPlan, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        device = x.device
        # The public current_stream() builds an object each time, which costs as much as the rest of this function.
        self._handles[device.index].use_stream(torch._C._cuda_getCurrentRawStream(device.index))
        y = _empty(plan.output_shape, x)
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        plan.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), workspace.data_ptr())
        return y

    def _plan(self, device: int, convolution: Convolution, algorithm: str) -> legacy.LegacyPlan | TritonPlan:
        if convolution.dtype not in library.DATA_TYPES:
            raise NotImplementedError(f"cuDNN has no convolution of {convolution.dtype}")
        known = algorithms.ALGORITHMS.get(_DEFAULT.get(algorithm, algorithm))
        providers = () if known is None else known.cuda_providers
        if self.provider in providers:
            providers = (self.provider,)
        if known is None or not set(providers) & {"cudnn", "triton"}:
            raise NotImplementedError(f"{algorithm} is neither an algorithm of cuDNN nor one of the Triton kernels")
        if "cudnn" in providers:
            try:
                return legacy.LegacyPlan(self._handle(device), convolution, known.cudnn_number)
            except NotSupportedError as refused:
                try:
                    if "triton" in providers:
                        return _triton_plan(device, convolution, algorithm)
                except NotImplementedError:
                    raise refused from None
                raise
        return _triton_plan(device, convolution, algorithm)

    def _handle(self, device: int) -> legacy.Handle:
        if device not in self._handles:
            self._handles[device] = legacy.Handle()
        return self._handles[device]

    def convolve(self, x: torch.Tensor, w: torch.Tensor, layer: Layer, algorithm: str) -> torch.Tensor:
        """Convolve N × C × H × W with the options of a layer, without a bias; raises as `forward` does."""
        options = *layer.padding, *layer.stride, *layer.dilation
        return self.forward(x, w, None, *options, _ZEROS, layer.groups, algorithm)

    def workspace_bytes(self, device: torch.device, layer: Layer, algorithm: str, dtype: str = "float32") -> int:
        """Return the workspace that cuDNN wants for a layer with one of its algorithms; launches nothing.

        Any of cuDNN's eight names may be asked for, those too that no card has.

        Raises:
            cudnn.CudnnError: cuDNN refuses the algorithm for this layer.
        """
        number = {name: number for number, name in algorithms.NAMES_BY_CUDNN_NUMBER.items()}[algorithm]
        with torch.cuda.device(device):
            handle = self._handle(torch.cuda.current_device())
            with contextlib.closing(legacy.LegacyPlan(handle, _described(layer, dtype), number)) as plan:
                return plan.workspace_bytes

    def why_refused(
        self,
        device: torch.device,
        layer: Layer,
        algorithm: str,
        dtype: str = "float32",
        max_workspace_bytes: int | None = None,
    ) -> str | None:
        """Ask cuDNN whether it takes a layer with an algorithm on this card; the reason if not. Launches nothing.

        A workspace over the limit is a reason too: cuDNN is never asked for a smaller one in its place.
        """
        with torch.cuda.device(device):
            try:
                plan = self._plan(torch.cuda.current_device(), _described(layer, dtype), algorithm)
            except NotSupportedError:
                return refusal(algorithm, torch.cuda.get_device_name(device))
            except NotImplementedError as error:
                return str(error)
            plan.close()
        return why_too_large(algorithm, plan.workspace_bytes, max_workspace_bytes)

    def release(self) -> None:
        """Destroy every plan, keep the handles: the next call of a shape plans anew."""
        while self._plans:
            plan = self._plans.popitem()[1]
            if not isinstance(plan, legacy.LegacyPlan):
                self.tuned |= plan.tuned
            plan.close()

    def close(self) -> None:
        """Destroy every plan and handle."""
        self.release()
        while self._handles:
            self._handles.popitem()[1].close()


def _triton_plan(device: int, convolution: Convolution, algorithm: str) -> TritonPlan:
    if convolution.layout != "nchw":
        raise NotImplementedError(f"the Triton kernel of {algorithm} reads NCHW only")
    try:
        from convscope.kernels import plan
    except ModuleNotFoundError as error:
        raise NotImplementedError(f"{algorithm} needs Triton ({error}): it comes with PyTorch's CUDA wheels") from None
    return plan.TritonPlan(algorithm, convolution, torch.device("cuda", device))


def _convolution(
    x: torch.Tensor,
    w: torch.Tensor,
    padding: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Convolution:
    dtype = str(x.dtype).removeprefix("torch.")
    in_force = backends.math_in_force(), backends.layout_in_force()
    return Convolution(tuple(x.shape), tuple(w.shape), padding, stride, dilation, groups, dtype, *in_force)


def _described(layer: Layer, dtype: str) -> Convolution:
    return Convolution(
        input=(layer.batch, layer.in_channels, layer.in_height, layer.in_width),
        weight=(layer.out_channels, layer.in_channels // layer.groups, *layer.kernel),
        padding=layer.padding,
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
        dtype=dtype,
        math=backends.math_in_force(),
        layout=backends.layout_in_force(),
    )


def refusal(algorithm: str, device_name: str) -> str:
    """Return the sentence for a layer that meets the rules and that cuDNN refuses on this card all the same."""
    short = ".".join(library.version().split(".")[:2])
    if algorithm == "winograd":
        return f"cuDNN {short} has no fused Winograd on {device_name}"
    layout = "" if backends.layout_in_force() == "nchw" else f" in {backends.layout_in_force().upper()}"
    return f"cuDNN {short} refuses {algorithm} for this shape{layout} on {device_name}"


def why_too_large(algorithm: str, workspace_bytes: int, most_bytes: int | None) -> str | None:
    """Return the sentence for a workspace over the limit, None for one that it allows."""
    if most_bytes is None or workspace_bytes <= most_bytes:
        return None
    return f"workspace over the limit: {algorithm} takes more than {most_bytes / 1e6:g} MB (--max-workspace)"


@functools.lru_cache(maxsize=1)
def cuda_operator() -> CudaOperator:
    """Return the one engine of this process; the first call makes it the CUDA kernel of `ai3::conv2d`."""
    made = CudaOperator()
    torch.library.register_kernel(_OPERATOR, "cuda", made.forward)
    torch.library.register_fake(_OPERATOR, _empty_output)
    return made


def release(device: torch.device) -> None:
    """Give back what convolutions held on a GPU, plans and workspaces, and PyTorch's unused memory to the driver."""
    if device.type == "cuda":
        cuda_operator().release()
        torch.cuda.empty_cache()


def _empty_output(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding_h: int,
    padding_w: int,
    stride_h: int,
    stride_w: int,
    dilation_h: int,
    dilation_w: int,
    padding_mode: int,
    groups: int,
    algorithm: str,
) -> torch.Tensor:
    """Return the output without its content, for `torch.compile`: by ai3 it would lie on the CPU whatever the input."""
    options = (padding_h, padding_w), (stride_h, stride_w), (dilation_h, dilation_w)
    extents = output_extents(input.shape[-2:], weight.shape[-2:], *options)
    if input.dim() == 3:
        return _empty((1, weight.shape[0], *extents), input).squeeze(0)
    return _empty((input.shape[0], weight.shape[0], *extents), input)


def _empty(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return an output without its content, in the layout in force."""
    memory = backends.LAYOUTS[backends.layout_in_force()]
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory)


def card_check(
    device: torch.device, max_workspace_bytes: int | None = None, dtype: str = "float32"
) -> Callable[[Layer, str], str | None] | None:
    """Return the function that asks cuDNN on this card about a layer and an algorithm; None on a CPU."""
    if device.type != "cuda":
        return None
    return functools.partial(cuda_operator().why_refused, device, max_workspace_bytes=max_workspace_bytes, dtype=dtype)


@contextlib.contextmanager
def provider(name: str | None) -> Iterator[None]:
    """Run what more than one library has by this one, "cudnn" or "triton", for the length of the block."""
    if name is None:
        yield
        return
    cuda_operator().provider = name
    try:
        yield
    finally:
        cuda_operator().provider = None
