"""Libraries that compute a convolution on a GPU, behind one protocol: cuDNN by its legacy calls and by plans of its
graph API, Triton kernels, PyTorch.

A provider makes a plan of one shape on one device; the plan is run many times. The operator (`operator`) and the 3-D
study use the same plans.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from convscope.convolution import algorithms, backends
from convscope.cudnn import legacy, library
from convscope.cudnn.graph.engines import Mode, Offer, Offers
from convscope.cudnn.graph.execution import ExecutablePlan
from convscope.cudnn.graph.operations import ALIGNED_BYTES
from convscope.cudnn.shape import Convolution
from convscope.errors import NotSupportedError
from convscope.kernels.operands import Operands

if TYPE_CHECKING:
    from convscope.kernels.catalogue import Conv2dPlan

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Execution:
    """The computation that really ran: the algorithm's name, the library, and its workspace.

    `copied_input_bytes` is the size of input and weight if they lay otherwise than the library reads them and were
    copied in the call, 0 where they were not, None where PyTorch ran the layer: it does not say. `transforms` says that
    a plan is Winograd's algorithm, by cuDNN's own note.
    """

    algorithm: str
    provider: str
    workspace_bytes: int | None = None
    copied_input_bytes: int | None = None
    transforms: bool = False

    @property
    def arithmetic(self) -> str:
        """The algorithm whose errors are to be expected of the result."""
        return "winograd" if self.transforms else self.algorithm


class Plan(Protocol):
    """One convolution on one device, prepared once and run many times."""

    @property
    def workspace_bytes(self) -> int | None:
        """The memory that a run takes besides its tensors, None where it is unknown."""

    @property
    def execution(self) -> Execution:
        """The computation that the last run was."""

    @property
    def tuned(self) -> Mapping[str, str]:
        """The block shapes that were chosen at the first run, by convolution; empty where nothing was."""

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve N × C × spatial on the current stream; the input is contiguous in the plan's layout.

        Raises:
            InputError: a tensor has another type, size or device than the plan was made for.
        """

    def close(self) -> None:
        """Give back everything that the plan holds; twice is once."""


class Provider(Protocol):
    """A library that makes plans."""

    name: str

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why the library has no such convolution, as far as that is known without a GPU, or None."""

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> Plan:
        """Make a plan; the device is the current one.

        Raises:
            NotSupportedError: the library refuses the algorithm for this shape on this card.
            NotImplementedError: `why_not` has a reason.
        """

    def close(self) -> None:
        """Give back everything that the library holds; its plans must be closed before."""


class CudnnCall(Protocol):
    """One call of cuDNN that convolves, prepared (`legacy.LegacyPlan`, `graph.execution.ExecutablePlan`)."""

    workspace_bytes: int

    def run(self, handle: legacy.Handle, x: int, w: int, y: int, workspace: int) -> None:
        """Launch on the handle's stream; `x`, `w`, `y` and `workspace` are device addresses."""

    def close(self) -> None:
        """Destroy the descriptors; twice is once."""


class CudnnPlan:
    """A plan of cuDNN: output and workspace by PyTorch, then one call, then the bias.

    Args:
        name: of the algorithm that the call is, by its identifier.
        provider: the way into cuDNN, "cudnn" or "cudnn graph".
    """

    tuned = _NOTHING

    def __init__(
        self, handles: legacy.ThreadHandles, shape: Convolution, call: CudnnCall, name: str, provider: str,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._operands = Operands(shape, -1 if device.type == "cpu" else device.index)
        self._handles, self._call = handles, call
        self._memory_format = backends.LAYOUTS[shape.layout]
        size, dtype = shape.output, getattr(torch, shape.dtype)
        # Of PyTorch's ways to an empty tensor the one that takes the host the least time.
        strides = legacy.strides(size, shape.layout)
        self._output = functools.partial(torch.empty_strided, size, strides, dtype=dtype, device=device)
        self._bias_shape = (1, -1, *(1 for _ in shape.size))
        self.workspace_bytes = call.workspace_bytes
        self.execution = Execution(name, provider, self.workspace_bytes)

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve on the current stream; NotSupportedError where cuDNN refuses only now, which happens."""
        self._operands.check(x, weight, bias)
        return self.launch(x, weight, bias)

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as `run` does; the caller has checked the tensors (`Operands.fit`)."""
        weight = weight.contiguous(memory_format=self._memory_format)
        handle, size_bytes = self._handles.mine(), self.workspace_bytes
        # The public current_stream() builds an object each time, which costs as much as the rest of this function.
        stream = torch._C._cuda_getCurrentRawStream(x.get_device())
        handle.use_stream(stream)
        y = self._output()
        # PyTorch's memory without a tensor around it. Given back at once: what gets it next runs on this stream, later.
        workspace = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, stream) if size_bytes else 0
        try:
            self._call.run(handle, x.data_ptr(), weight.data_ptr(), y.data_ptr(), workspace)
        finally:
            if workspace:
                torch._C._cuda_cudaCachingAllocator_raw_delete(workspace)
        if bias is not None:
            y.add_(bias.view(self._bias_shape))
        return y

    def close(self) -> None:
        """Destroy the descriptors; twice is once."""
        self._call.close()


class CudnnProvider:
    """cuDNN's legacy calls: one handle a device and thread; exactly the algorithm requested, in 2-D and 3-D."""

    name = "cudnn"

    def __init__(self) -> None:
        self._handles: dict[int | None, legacy.ThreadHandles] = {}

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why cuDNN has no convolution of this data type, or None where it has."""
        return None if shape.dtype in library.DATA_TYPES else f"cuDNN has no convolution of {shape.dtype}"

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> CudnnPlan:
        """Make a plan of one of cuDNN's algorithms, or of its heuristic's choice ("guess"); errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        handles = self.handles(device)
        call = legacy.LegacyPlan(handles.mine(), shape, algorithms.cudnn_number(algorithm))
        name = algorithms.NAMES_BY_CUDNN_NUMBER[call.algorithm]
        return CudnnPlan(handles, shape, call, name, self.name, device)

    def handles(self, device: torch.device) -> legacy.ThreadHandles:
        """Return the contexts of a device, the current one."""
        return self._handles.setdefault(device.index, legacy.ThreadHandles())

    def close(self) -> None:
        """Destroy the handles."""
        while self._handles:
            self._handles.popitem()[1].close()


class GraphPlan(CudnnPlan):
    """A plan of the graph API, which was promised aligned tensors: input and weight that lie otherwise are copied."""

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as `run` does; the caller has checked the tensors."""
        weight = weight.contiguous(memory_format=self._memory_format)
        return super().launch(self._aligned(x), self._aligned(weight), bias)

    def _aligned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor whose address is a multiple of `ALIGNED_BYTES`, as PyTorch's allocator gives them."""
        return tensor.clone(memory_format=self._memory_format) if tensor.data_ptr() % ALIGNED_BYTES else tensor


class GraphProvider:
    """Plans of cuDNN's graph API: the one that is named, or the first of a heuristic that is exact enough and builds.

    Args:
        cudnn: the provider whose contexts they run in; to be closed after this one.
    """

    name = algorithms.GRAPH
    _MODES: Mapping[str, Mode] = {"heuristic a": Mode.A, "heuristic b": Mode.B}

    def __init__(self, cudnn: CudnnProvider) -> None:
        self._cudnn = cudnn

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why no single plan is meant, or cuDNN has no convolution of this data type; None where it has one."""
        if algorithm in algorithms.MIXTURES:
            return f"{algorithm} is another plan in each layer of a model: a layer alone takes heuristic a, or a plan"
        return self._cudnn.why_not(algorithm, shape)

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> GraphPlan:
        """Make a plan; the error says why cuDNN, or the precision asked for, refuses. Errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        handles = self._cudnn.handles(device)
        offers = Offers(shape, handles.mine())
        try:
            with contextlib.closing(_offered(offers, algorithm, self._MODES)) as offered:
                call, transforms = _built(offers, offered, shape)
        except Exception:
            offers.close()
            raise
        plan = GraphPlan(handles, shape, call, algorithms.plan_name(call.plan), self.name, device)
        plan.execution = dataclasses.replace(plan.execution, transforms=transforms)
        return plan

    def offers(self, shape: Convolution, device: torch.device) -> list[Offer]:
        """Return every plan that cuDNN offers on a device, the current one."""
        with Offers(shape, self._cudnn.handles(device).mine()) as offers:
            return offers.plans()

    def close(self) -> None:
        """Do nothing: the contexts are the other provider's."""


def _offered(offers: Offers, algorithm: str, modes: Mapping[str, Mode]) -> Generator[Offer]:
    """Yield the plans that an algorithm's name may be, in the order in which they are tried."""
    if algorithm in modes:
        yield from offers.of_mode(modes[algorithm])
    elif named := algorithms.plan_of(algorithm):
        yield offers.offer(named)


def _built(offers: Offers, offered: Iterable[Offer], shape: Convolution) -> tuple[ExecutablePlan, bool]:
    """Build the first plan that is exact enough and that cuDNN builds, and tell whether it is Winograd's algorithm.

    The plan owns the offers then.
    """
    refusals: list[str] = []
    for offer in offered:
        if reason := offer.why_not_comparable(shape):
            refusals.append(reason)
            continue
        try:
            plan = ExecutablePlan(offers, offer.plan)
        except NotSupportedError as refused:
            refusals.append(str(refused))
        else:
            plan.own(offers)
            return plan, offer.transforms
    raise NotSupportedError(refusals[0] if refusals else "it has no plan for such a convolution")


class TritonPlan:
    """A plan of one of this project's 2-D kernels."""

    def __init__(self, plan: Conv2dPlan) -> None:
        self._plan = plan
        self.run, self.close = plan.run, plan.close  # not wrapped: that would cost time on the host in each call

    @property
    def workspace_bytes(self) -> int:
        """The memory for partial sums; known after the first run."""
        return self._plan.workspace_bytes

    @property
    def execution(self) -> Execution:
        """The computation that the last run was."""
        return Execution(self._plan.algorithm, "triton", self.workspace_bytes)

    @property
    def tuned(self) -> Mapping[str, str]:
        """The block shapes that were chosen at the first run, by convolution."""
        return self._plan.tuned


class TritonProvider:
    """This project's 2-D kernels in Triton, which is imported at the first question only."""

    name = "triton"

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why there is no kernel for a convolution, or None where there is."""
        try:
            from convscope.kernels import catalogue
        except ModuleNotFoundError as error:
            return f"{algorithm} needs Triton ({error}): it comes with PyTorch's CUDA wheels"
        return catalogue.why_no_kernel(algorithm, shape)

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> TritonPlan:
        """Make a plan, its block shapes chosen at the first run; errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        from convscope.kernels.catalogue import Conv2dPlan

        return TritonPlan(Conv2dPlan(algorithm, shape, device))

    def close(self) -> None:
        """Do nothing: only plans hold something."""


class TorchPlan:
    """A plan of PyTorch's own convolution, in 2-D or 3-D."""

    workspace_bytes, execution, tuned = None, Execution("torch", "torch"), _NOTHING

    def __init__(self, shape: Convolution) -> None:
        functions = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
        self._convolve, self._options = functions[len(shape.size)], shape.options

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as PyTorch does, on the current stream."""
        return self._convolve(x, weight, bias, *self._options)

    def close(self) -> None:
        """Do nothing: PyTorch keeps its own plans."""


class TorchProvider:
    """PyTorch's own convolutions, on any device; PyTorch says itself what it cannot do, when it is called."""

    name = "torch"

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return None."""
        return None

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> TorchPlan:
        """Make a plan; the algorithm is PyTorch's to choose."""
        return TorchPlan(shape)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def cudnn_refusal(algorithm: str, device_name: str, layout: str = "nchw", why: str = "") -> str:
    """Return the sentence for a layer that meets the rules and that cuDNN refuses on this card all the same.

    Args:
        why: the reason, where one is known.
    """
    short = ".".join(library.version().split(".")[:2])
    if algorithm == "winograd":
        return f"cuDNN {short} has no fused Winograd on {device_name}"
    where = "" if layout == "nchw" else f" in {layout.upper()}"
    return f"cuDNN {short} refuses {algorithm} for this shape{where} on {device_name}" + (f": {why}" if why else "")


def workspace_refusal(algorithm: str, workspace_bytes: int, most_bytes: int | None) -> str | None:
    """Return the sentence for a workspace over the limit, None for one that it allows."""
    if most_bytes is None or workspace_bytes <= most_bytes:
        return None
    return f"workspace over the limit: {algorithm} takes more than {most_bytes / 1e6:g} MB (--max-workspace)"
