"""cuDNN by plans of its graph API: the one that is named, or the first of a heuristic; alone or fused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Mapping

import torch

from convscope.convolution import algorithms, backends
from convscope.convolution.providers.legacy import CudnnCall, CudnnPlan, CudnnProvider
from convscope.convolution.providers.plan import NOTHING, why_no_dtype
from convscope.cudnn import legacy
from convscope.cudnn.graph.engines import Mode, Offer, Offers
from convscope.cudnn.graph.execution import ExecutablePlan
from convscope.cudnn.graph.operations import ALIGNED_BYTES, Tensor
from convscope.cudnn.shape import ALONE, Convolution
from convscope.errors import InputError, NotSupportedError
from convscope.kernels.packing import PackedFilters


class GraphPlan(CudnnPlan):
    """A plan of the graph API, which was promised aligned tensors: input and weight that lie otherwise are copied.

    Where the plan is for packed filters, they are laid out at the first run, and again where the weight was written to.
    In a graph that is captured before any run they are laid out at each replay.
    """

    def __init__(
        self, handles: legacy.ThreadHandles, shape: Convolution, call: CudnnCall, name: str, provider: str,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(handles, shape, call, name, provider, device)
        self._packed = PackedFilters() if shape.packed else None
        if shape.packed:
            self._filter_format = backends.memory_format("nhwc", len(shape.kernel))

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as `run` does; the caller has checked the tensors."""
        return super().launch(_aligned(x), self._filters(weight), bias)

    def _filters(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight as the plan reads it."""
        if self._packed is None:
            return _aligned(weight.contiguous(memory_format=self._filter_format))
        return self._packed.of(weight, lambda: _aligned(weight.detach().contiguous(memory_format=self._filter_format)))

    def renew(self) -> None:
        """Have the filters packed again at the next run, as when they were written to."""
        if self._packed is not None:
            self._packed.renew()

    def forget_filters(self) -> None:
        """Give back packed filters that no graph reads; the next run packs again."""
        if self._packed is not None:
            self._packed.clear()

    def close(self) -> None:
        """Destroy the descriptors, give back packed filters that no graph reads; twice is once."""
        super().close()
        self.forget_filters()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor whose address is a multiple of `ALIGNED_BYTES`, as PyTorch's allocator gives them."""
    return tensor if tensor.data_ptr() % ALIGNED_BYTES == 0 else tensor.clone()


class _Steps:
    """Steps behind a convolution, and the tensors that they take.

    Raises:
        InputError: a tensor is missing, too many, or of another type, size, device or layout than the output.
    """

    def __init__(self, shape: Convolution) -> None:
        self._fused, self._size = shape.fused, torch.Size(shape.output)
        self._memory_format = backends.memory_format(shape.layout, len(shape.kernel))

    def check(self, bias: torch.Tensor | None, added: torch.Tensor | None, x: torch.Tensor) -> None:
        given = added is not None, bias is not None
        if given != (self._fused.addition, self._fused.bias):
            raise InputError(f"this plan does {self._fused} after the convolution: give it the tensors of these alone")
        if added is not None and (added.shape, added.dtype, added.device) != (self._size, x.dtype, x.device):
            raise InputError(f"what is added must be as the output: {tuple(self._size)}, {x.dtype} on {x.device}")
        if added is not None and not added.is_contiguous(memory_format=self._memory_format):
            raise InputError("what is added must lie as the plan's output does")


class FusedPlan(GraphPlan):
    """A plan of the graph API that does more than convolve: an addition, the bias and ReLU are in the same call."""

    _call: ExecutablePlan

    def __init__(
        self, handles: legacy.ThreadHandles, shape: Convolution, call: ExecutablePlan, name: str, provider: str,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(handles, shape, call, name, provider, device)
        self._steps = _Steps(shape)

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Convolve and do what is fused, on the current stream.

        Args:
            added: of the output's size, type and layout, where an addition is fused.

        Raises:
            InputError: a tensor is missing, too many, or of another type, size or device.
            NotSupportedError: cuDNN refuses only now.
        """
        self._operands.check(x, weight, bias)
        self._steps.check(bias, added, x)
        given = {Tensor.X: x, Tensor.W: self._filters(weight), Tensor.BIAS: bias, Tensor.ADDED: added}
        tensors = {number: _aligned(tensor) for number, tensor in given.items() if tensor is not None}
        y = tensors[Tensor.Y] = self._output()
        handle = self._handles.mine()
        handle.use_stream(torch.cuda.current_stream(x.device).cuda_stream)
        workspace = torch.empty(self.workspace_bytes or 0, dtype=torch.uint8, device=x.device)
        self._call.launch(handle, {number: each.data_ptr() for number, each in tensors.items()}, workspace.data_ptr())
        return y


class PlanWithSteps:
    """A plan of the convolution alone, and one kernel of this project behind it for what is fused otherwise.

    Args:
        plan: of the convolution alone; it is closed with this one.
        shape: the convolution and what is fused.
    """

    tuned = NOTHING

    def __init__(self, plan: GraphPlan, shape: Convolution, name: str) -> None:
        from convscope.kernels import steps

        self._plan, self._steps, self._do = plan, _Steps(shape), steps.do
        self._relu, self._last = shape.fused.relu, shape.layout == "nhwc"
        self.workspace_bytes = plan.workspace_bytes
        self.execution = dataclasses.replace(plan.execution, algorithm=name)

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, added: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Convolve, and do the steps in the output; arguments and errors as those of `FusedPlan.run`."""
        self._steps.check(bias, added, x)
        if bias is not None and (bias.shape, bias.dtype, bias.device) != (weight.shape[:1], x.dtype, x.device):
            raise InputError(f"the bias must have {len(weight)} numbers of {x.dtype} on {x.device}")
        return self._do(self._plan.run(x, weight, None), bias, added, self._relu, self._last)

    def close(self) -> None:
        """Close the plan; twice is once."""
        self._plan.close()


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
        if algorithms.has_steps(algorithm) and not shape.fused.count:
            return f"{algorithm} is for fused convolutions, and nothing is fused with this one"
        if by_filters := algorithms.why_nothing_to_pack(algorithm, shape.weight, shape.layout):
            return by_filters
        return _why_no_steps(algorithm, shape) or why_no_dtype(shape.dtype)

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> GraphPlan | PlanWithSteps:
        """Make a plan; the error says why cuDNN, or the precision asked for, refuses. Errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        if not algorithms.has_steps(algorithm):
            packs = algorithms.packs_filters(algorithm)
            return self._plan(algorithm, dataclasses.replace(shape, packed=True) if packs else shape, device)
        alone = dataclasses.replace(shape, fused=ALONE)
        plan = self._plan(algorithm, alone, device)
        return PlanWithSteps(plan, shape, algorithm)

    def _plan(self, algorithm: str, shape: Convolution, device: torch.device) -> GraphPlan:
        handles = self._cudnn.handles(device)
        offers = Offers(shape, handles.mine())
        try:
            with contextlib.closing(_offered(offers, algorithm, self._MODES)) as offered:
                call, transforms = _built(offers, offered, shape)
        except Exception:
            offers.close()
            raise
        kind = FusedPlan if shape.fused.count else GraphPlan
        name = algorithms.plan_name(call.plan, algorithms.PACKED if shape.packed else algorithms.PLAN)
        plan = kind(handles, shape, call, name, self.name, device)
        plan.execution = dataclasses.replace(plan.execution, transforms=transforms)
        return plan

    def offers(self, shape: Convolution, device: torch.device) -> list[Offer]:
        """Return every plan that cuDNN offers on a device, the current one."""
        with Offers(shape, self._cudnn.handles(device).mine()) as offers:
            return offers.plans()

    def close(self) -> None:
        """Do nothing: the contexts are the other provider's."""


def _why_no_steps(algorithm: str, shape: Convolution) -> str | None:
    """Return why there is no kernel for the steps of an algorithm that has some, None where there is."""
    if not algorithms.has_steps(algorithm):
        return None
    try:
        from convscope.kernels import steps
    except ModuleNotFoundError as error:
        return f"{algorithm} needs Triton ({error}): it comes with PyTorch's CUDA wheels"
    if shape.fused.swish:
        return f"the steps of {algorithm} end with ReLU or nothing"
    return None if shape.dtype in steps.DTYPES else f"the steps of {algorithm} are done in float32, not {shape.dtype}"


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
