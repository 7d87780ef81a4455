"""Kernels of `ai3::conv2d`. On CUDA: check the call, look up or make the plan of its shape, run it.

A swapped layer runs the same plans without PyTorch's dispatcher where nothing needs it (`swap.DirectCalls`).
On a CPU ai3 computes; it reads addresses and knows no strides, so that it gets copies of tensors that lie otherwise.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from ai3 import swap_torch

from convscope.convolution import algorithms, backends
from convscope.convolution.layer import Layer
from convscope.convolution.providers.graph import FusedPlan, GraphPlan, GraphProvider, PlanWithSteps
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.convolution.providers.others import TritonPlan, TritonProvider
from convscope.convolution.providers.plan import Execution, Plan, Provider, cudnn_refusal, workspace_refusal
from convscope.cudnn.graph.engines import Offer
from convscope.cudnn.shape import Convolution, Fused, output_extents
from convscope.errors import CudnnError, DeviceFaultError, InputError, NotSupportedError
from convscope.kernels.operands import Operands

_OPERATOR = "ai3::conv2d"
_DEFAULT = {"default": "implicit precomp gemm"}  # what ai3 built with cuDNN takes where no name is given
ZEROS = 0  # ai3's number of the padding mode "zeros"
SPARES_MOST = 2048  # plans, of some 0.2 MB of the host's memory each
_SAME_DEVICE = contextlib.nullcontext()
Options = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]  # padding, stride, dilation, groups
_RECORDED: contextvars.ContextVar[list[Execution] | None] = contextvars.ContextVar("executions", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[Execution]]:
    """Record the execution of each call of the operator in the block, in order; inside another, only here."""
    before, executions = _RECORDED.get(), list[Execution]()
    _RECORDED.set(executions)
    try:
        yield executions
    finally:
        _RECORDED.set(before)


def recorded() -> Sequence[Execution]:
    """Return the executions of the recording in force so far; none where nothing is being recorded."""
    return _RECORDED.get() or ()


def is_recording() -> bool:
    """Tell whether executions are recorded here."""
    return _RECORDED.get() is not None


def _record(execution: Execution, *operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Record an execution, where one is asked for; each operand as it was given, and as the library got it."""
    executions = _RECORDED.get()
    if executions is not None:
        copied_bytes = sum(taken.nbytes for given, taken in operands if taken is not given)
        executions.append(dataclasses.replace(execution, copied_input_bytes=copied_bytes))


def _taken(execution: Execution, weight: torch.Tensor, memory: torch.memory_format) -> torch.Tensor:
    """Return the weight as it is laid out in each call: as it is, where its filters are packed once from any layout."""
    packs_once = execution.provider == "triton" or algorithms.packs_filters(execution.algorithm)
    return weight if packs_once else weight.contiguous(memory_format=memory)


class CudaOperator:
    """The CUDA kernel of `ai3::conv2d`: one plan for each shape, algorithm and setting.

    Attributes:
        tuned: the block shapes that were chosen for the Triton kernels of released plans.
        releases: the number of times that all plans were closed or handed over.
        built: the number of plans that `find` has made.
    """

    def __init__(self) -> None:
        self._cudnn = CudnnProvider()
        self._graph = GraphProvider(self._cudnn)
        every = (self._graph, TritonProvider(), self._cudnn)
        self._providers: dict[str, Provider] = {provider.name: provider for provider in every}
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._spare: dict[tuple[object, ...], GraphPlan] | None = None
        self.tuned: dict[str, str] = {}
        self.releases = self.built = 0

    def forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding_h: int, padding_w: int,
        stride_h: int, stride_w: int, dilation_h: int, dilation_w: int, padding_mode: int, groups: int, algorithm: str,
    ) -> torch.Tensor:  # fmt: skip
        """Convolve N × C × H × W (or C × H × W) on the input's device and PyTorch's current stream.

        Computed in the layout in force (`backends.settings`), in which the output lies too.

        Raises:
            InputError: input, weight and bias are not of one type and device, or their sizes do not fit.
            NotSupportedError: cuDNN refuses the algorithm for this shape.
            NotImplementedError: a padding mode other than zeros, or a data type that the provider does not convolve.
        """
        if padding_mode != ZEROS:
            raise NotImplementedError("cuDNN pads with zeros only: pad the input first, or leave this layer to PyTorch")
        if input.dim() == 3:
            rest = padding_h, padding_w, stride_h, stride_w, dilation_h, dilation_w, padding_mode, groups, algorithm
            return self.forward(input.unsqueeze(0), weight, bias, *rest).squeeze(0)
        memory = backends.LAYOUTS[backends.settings_in_force().layout]
        x = input.contiguous(memory_format=memory)
        device = x.device
        with torch.cuda.device(device.index) if device.index != torch.cuda.current_device() else _SAME_DEVICE:
            options = (padding_h, padding_w), (stride_h, stride_w), (dilation_h, dilation_w), groups
            plan = self.find(x, weight, bias, options, algorithm)
            y = plan.run(x, weight, bias)
        if is_recording():
            _record(plan.execution, (input, x), (weight, _taken(plan.execution, weight, memory)))
        return y

    def fused(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None,
        options: Options, fused: Fused, algorithm: str,
    ) -> torch.Tensor:  # fmt: skip
        """Convolve N × C × H × W by a plan of the graph API that does what is fused in the same call.

        Args:
            added: N × K × H × W, where an addition is fused.

        Raises:
            InputError, NotSupportedError, NotImplementedError: as `forward`.
        """
        memory = backends.LAYOUTS[backends.settings_in_force().layout]
        laid = x.contiguous(memory_format=memory)
        more = None if added is None else added.contiguous(memory_format=memory)
        with torch.cuda.device(x.device):
            plan = self.find(laid, weight, bias, options, algorithm, fused)
            assert isinstance(plan, (FusedPlan, PlanWithSteps)), "only plans of the graph API take fused convolutions"
            y = plan.run(laid, weight, None if bias is None else bias.contiguous(), more)
        if is_recording():
            _record(plan.execution, (x, laid), (weight, _taken(plan.execution, weight, memory)))
        return y

    def find(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, options: Options, algorithm: str,
        fused: Fused | None = None,
    ) -> Plan:  # fmt: skip
        """Return the plan for N × C × H × W under the settings in force; made where there is none. Errors: `forward`.

        The device of `x` is the current one. The input may lie anyhow: a plan's input is laid out by its caller.
        """
        settings = backends.settings_in_force()
        tf32, device = torch.backends.cudnn.allow_tf32, x.device
        asked = device.index, algorithm, settings.provider, settings.layout, settings.max_workspace_bytes, tf32
        key = (*asked, x.dtype, x.shape, weight.shape, options, fused)
        plan = self._plans.get(key)
        if plan is None and self._spare and key in self._spare:
            plan = self._plans[key] = self._spare.pop(key)
        if plan is None:
            shape = shape_of(x, weight, options)
            shape = shape if fused is None else dataclasses.replace(shape, fused=fused)
            Operands(shape).check(x, weight, bias)
            plan = self._plans[key] = self.plan(shape, algorithm, device)
            self.built += 1
        return plan

    def plan(self, shape: Convolution, algorithm: str, device: torch.device) -> Plan:
        """Make a plan by the first of the algorithm's providers that takes the shape; the device is the current one.

        Raises:
            NotSupportedError: cuDNN refuses the algorithm, and no other provider has it for this shape.
            NotImplementedError: no provider has the algorithm, or a convolution of this data type.
        """
        name = _DEFAULT.get(algorithm, algorithm)
        refusals: list[NotSupportedError | NotImplementedError] = []
        try:
            libraries = algorithms.find(name).cuda_providers
        except InputError as unknown:
            raise NotImplementedError(str(unknown)) from None
        preferred = backends.settings_in_force().provider
        for library in (preferred,) if preferred in libraries else libraries:
            provider = self._providers.get(library)
            try:
                if provider:
                    return provider.plan(name, shape, device)
            except (NotSupportedError, NotImplementedError) as refused:
                refusals.append(refused)
        if not refusals:
            raise NotImplementedError(f"{algorithm} is neither an algorithm of cuDNN nor one of the Triton kernels")
        raise refusals[0]

    def convolve(self, x: torch.Tensor, w: torch.Tensor, layer: Layer, algorithm: str) -> torch.Tensor:
        """Convolve N × C × H × W with the options of a layer, without a bias; raises as `forward` does."""
        (pad_h, pad_w), (stride_h, stride_w), (dil_h, dil_w) = layer.padding, layer.stride, layer.dilation
        options = pad_h, pad_w, stride_h, stride_w, dil_h, dil_w
        return self.forward(x, w, None, *options, ZEROS, layer.groups, algorithm)

    def workspace_bytes(self, device: torch.device, layer: Layer, algorithm: str, dtype: str = "float32") -> int:
        """Return the workspace that cuDNN wants for a layer with any of its eight algorithms; launches nothing.

        Raises:
            CudnnError: cuDNN refuses the algorithm for this layer.
        """
        with _current(device) as current:
            plan = self._cudnn.plan(algorithm, described(layer, dtype), current)
            plan.close()
        return plan.workspace_bytes

    def offers(self, convolution: Convolution, device: torch.device) -> list[Offer]:
        """Return every plan that cuDNN's graph API offers for a convolution on this card."""
        with _current(device) as current:
            return self._graph.offers(convolution, current)

    def why_refused(
        self, device: torch.device, layer: Layer, algorithm: str, dtype: str = "float32",
        max_workspace_bytes: int | None = None,
    ) -> str | None:  # fmt: skip
        """Return why no library takes a layer with an algorithm on this card, or None where one does.

        A plan is made and closed; nothing is launched. A workspace over the limit is a reason too: cuDNN never gets a
        smaller one in its place.
        """
        with _current(device) as current:
            try:
                plan = self.plan(described(layer, dtype), algorithm, current)
            except NotSupportedError as error:
                layout = backends.settings_in_force().layout
                why = str(error) if algorithms.find(algorithm).cuda_providers == (algorithms.GRAPH,) else ""
                return cudnn_refusal(algorithm, torch.cuda.get_device_name(device), layout, why)
            except NotImplementedError as error:
                return str(error)
            plan.close()
        return workspace_refusal(algorithm, plan.workspace_bytes or 0, max_workspace_bytes)

    def release(self) -> None:
        """Destroy every plan, keep the handles: the next call of a shape makes a new plan. No call may be under way."""
        self.releases += 1
        while self._plans:
            key, plan = self._plans.popitem()
            self.tuned |= plan.tuned
            if self._spare is not None and isinstance(plan, GraphPlan) and len(self._spare) < SPARES_MOST:
                plan.forget_filters()
                self._spare[key] = plan
            else:
                plan.close()

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Have `release` spare plans of the graph API for later calls of the block: to build one takes milliseconds.

        They hold no memory of the card. Inside another such block this one does nothing; nothing is closed after a
        DeviceFaultError of the block.
        """
        if self._spare is not None:
            yield
            return
        self._spare = {}
        try:
            yield
        except DeviceFaultError:
            self._spare = None
            raise
        except BaseException:
            with contextlib.suppress(CudnnError):  # in place of which the block's error is to be seen
                self._close_spares()
            raise
        self._close_spares()

    def _close_spares(self) -> None:
        spares, self._spare = self._spare or {}, None
        for plan in spares.values():
            plan.close()

    def renew(self) -> None:
        """Have every plan that keeps packed filters pack them again at its next run."""
        for plan in self._plans.values():
            if isinstance(plan, (GraphPlan, TritonPlan)):
                plan.renew()

    def hand_over(self) -> list[Plan]:
        """Return every plan and keep none: `release` closes them no more, the caller does."""
        self.releases += 1
        plans, self._plans = [*self._plans.values()], {}
        return plans

    def close(self) -> None:
        """Destroy every plan and handle."""
        self._close_spares()
        self.release()
        for provider in self._providers.values():
            provider.close()


def shape_of(x: torch.Tensor, weight: torch.Tensor, options: Options) -> Convolution:
    """Return the convolution of these tensors as it is computed under the settings in force."""
    dtype, layout = str(x.dtype).removeprefix("torch."), backends.settings_in_force().layout
    return Convolution(tuple(x.shape), tuple(weight.shape), *options, dtype, backends.math_in_force(), layout)


@contextlib.contextmanager
def _current(device: torch.device) -> Iterator[torch.device]:
    """Make a GPU the current one for the length of the block; give it with its number."""
    with torch.cuda.device(device):
        yield torch.device("cuda", torch.cuda.current_device())


def described(layer: Layer, dtype: str = "float32") -> Convolution:
    """Return a layer as it is computed under the settings in force."""
    return layer.convolution(dtype, backends.math_in_force(), backends.settings_in_force().layout)


@functools.lru_cache(maxsize=1)
def cuda_operator() -> CudaOperator:
    """Return the one operator of this process; the first call makes it the CUDA kernel of `ai3::conv2d`.

    Raises:
        InputError: PyTorch runs another cuDNN.
    """
    backends.check_cudnn()
    operator = CudaOperator()
    torch.library.register_kernel(_OPERATOR, "cuda", operator.forward)
    torch.library.register_fake(_OPERATOR, _empty_output)
    return operator


def _convolve_on_cpu(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding_h: int, padding_w: int,
    stride_h: int, stride_w: int, dilation_h: int, dilation_w: int, padding_mode: int, groups: int, algorithm: str,
) -> torch.Tensor:  # fmt: skip
    """Convolve N × C × H × W (or C × H × W) by ai3, which gets addresses: copies of tensors that lie otherwise.

    Raises:
        NotImplementedError: the weight or the bias has another data type than the input.
    """
    tensors = [input, weight] if bias is None else [input, weight, bias]
    if len({tensor.dtype for tensor in tensors}) > 1:
        types = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        raise NotImplementedError(f"ai3 convolves tensors of one data type: input, weight and bias are {types}")
    x, w, *rest = (tensor.contiguous() for tensor in tensors)
    options = padding_h, padding_w, stride_h, stride_w, dilation_h, dilation_w, padding_mode, groups, algorithm
    output: torch.Tensor = swap_torch.conv2d(x, w, rest[0] if rest else None, *options)
    _record(Execution(algorithm, "ai3"), (input, x), (weight, w))
    return output


def convolve_on_cpu(x: torch.Tensor, w: torch.Tensor, layer: Layer, algorithm: str) -> torch.Tensor:
    """Convolve N × C × H × W with the options of a layer by ai3, without a bias."""
    (pad_h, pad_w), (stride_h, stride_w), (dil_h, dil_w) = layer.padding, layer.stride, layer.dilation
    options = pad_h, pad_w, stride_h, stride_w, dil_h, dil_w
    return _convolve_on_cpu(x, w, None, *options, ZEROS, layer.groups, algorithm)


@functools.lru_cache(maxsize=1)
def cpu_operator() -> None:
    """Make `_convolve_on_cpu` the CPU kernel of `ai3::conv2d`, once in this process."""
    torch.library.register_kernel(_OPERATOR, "cpu", _convolve_on_cpu)


def release(device: torch.device) -> None:
    """Give back the plans and workspaces of convolutions on a GPU, and PyTorch's unused memory to the driver."""
    if device.type == "cuda":
        cuda_operator().release()
        torch.cuda.empty_cache()


def sparing(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return `CudaOperator.sparing` for a GPU, a block that does nothing for a CPU."""
    return cuda_operator().sparing() if device.type == "cuda" else contextlib.nullcontext()


def hand_over(device: torch.device) -> list[Plan]:
    """Return the plans of convolutions on a GPU, to be closed when the graph that runs them is freed; none of a CPU.

    Until then no `release`, such as a bench's, closes them.
    """
    return cuda_operator().hand_over() if device.type == "cuda" else []


def _empty_output(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding_h: int, padding_w: int,
    stride_h: int, stride_w: int, dilation_h: int, dilation_w: int, padding_mode: int, groups: int, algorithm: str,
) -> torch.Tensor:  # fmt: skip
    """Return the output without its content, for `torch.compile`: ai3's own lies on the CPU whatever the input."""
    options = (padding_h, padding_w), (stride_h, stride_w), (dilation_h, dilation_w)
    extents = output_extents(input.shape[-2:], weight.shape[-2:], *options)
    batch = 1 if input.dim() == 3 else input.shape[0]
    memory = backends.LAYOUTS[backends.settings_in_force().layout]
    size = (batch, weight.shape[0], *extents)
    output = torch.empty(size, dtype=input.dtype, device=input.device, memory_format=memory)
    return output.squeeze(0) if input.dim() == 3 else output


def card_check(
    device: torch.device, max_workspace_bytes: int | None = None, dtype: str = "float32"
) -> Callable[[Layer, str], str | None] | None:
    """Return the function that asks the card about a layer and an algorithm; None on a CPU."""
    if device.type != "cuda":
        return None
    return functools.partial(cuda_operator().why_refused, device, max_workspace_bytes=max_workspace_bytes, dtype=dtype)
