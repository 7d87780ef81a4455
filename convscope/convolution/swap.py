"""Convolution algorithms put into a model through ai3, and taken out again.

The stock ai3 replaces each `nn.Conv2d` by a module that calls the operator `ai3::conv2d` with the algorithm's name. On
a CPU ai3 computes it; on a GPU the kernel of `operator` does. A `Conv2d` takes the place of ai3's module: it runs the
same plans, and skips the operator where it may. A module that is more than a plain convolution is left to PyTorch
(`models.peculiarity`): ai3 would put a plain one in its place. A call outside such modules is replaced when it is made:
the model's `forward` then runs in a dispatch mode, which costs the host some microseconds for each operator.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ai3
import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from torch import nn
from torch.autograd import forward_ad

from convscope.convolution import backends, models, operator
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.operator import CudaOperator, cuda_operator, shape_of
from convscope.convolution.providers.legacy import CudnnPlan
from convscope.convolution.providers.plan import Execution, Plan
from convscope.errors import InputError
from convscope.kernels.operands import Operands
from convscope.timing import calls
from convscope.timing.calls import Call, CallMode
from convscope.timing.hooks import convolution_modules

_BATCHED = 4  # dimensions of N × C × H × W


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan, and everything that it was found for."""

    plan: weakref.ref[Plan]
    operator: CudaOperator
    releases: int
    settings: backends.Settings
    tf32: bool
    device: int
    operands: Operands
    memory: torch.memory_format

    def holds_for(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Tell whether the operator would find this plan for these tensors now; they are checked by that too."""
        return (
            self.operands.fit(x, weight, bias)
            and backends.settings_in_force() is self.settings
            and torch._C._get_cudnn_allow_tf32() is self.tf32  # what `allow_tf32` calls, at a sixth of its cost
            and torch._C._cuda_getDevice() == self.device
            and self.operator.releases == self.releases
        )


class DirectCalls:
    """Calls of one swapped layer that run its plan without PyTorch's dispatcher, to save time of the host.

    The last plan is kept with everything that it was found for. A call for which that does not hold looks for its plan
    in the operator again, which owns the plans: none is kept alive here. A copy of the layer, also a pickled one,
    begins without a plan.
    """

    device_type = "cuda"

    def __init__(self) -> None:
        self._found: _Found | None = None

    def __reduce__(self) -> tuple[type[DirectCalls], tuple[()]]:
        return DirectCalls, ()

    def forget(self) -> None:
        """Forget the plan: the layer's options have changed."""
        self._found = None

    def run(
        self, layer: Conv2d, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the layer's output, None where the call must go through `ai3::conv2d`.

        It must where PyTorch has anything else to do with the operator (gradients, transforms, modes, tracing,
        profiling), where calls are recorded, for other tensors than plain ones on the current GPU, and for an input
        without a batch. Errors are those of `CudaOperator.forward`.
        """
        if weight is None or not _is_plain(x, weight, bias):
            return None
        found = self._found
        plan = found.plan() if found is not None and found.holds_for(x, weight, bias) else None
        if found is None or plan is None:
            if not self._can_find(layer, x):
                return None
            found, plan = self._find(layer, x, weight, bias)
            return plan.run(x.contiguous(memory_format=found.memory), weight, bias)  # which checks the tensors
        x = x.contiguous(memory_format=found.memory)
        return plan.launch(x, weight, bias) if isinstance(plan, CudnnPlan) else plan.run(x, weight, bias)

    def _can_find(self, layer: Conv2d, x: torch.Tensor) -> bool:
        of_the_usual_kind = x.dim() == _BATCHED and layer.padding_mode == operator.ZEROS
        return of_the_usual_kind and x.device.type == self.device_type and x.get_device() == torch._C._cuda_getDevice()

    def _find(
        self, layer: Conv2d, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[_Found, Plan]:
        engine, settings, tf32 = cuda_operator(), backends.settings_in_force(), torch._C._get_cudnn_allow_tf32()
        releases = engine.releases  # read first: a plan that is released meanwhile holds for no later call
        options = layer.padding, layer.stride, layer.dilation, layer.groups
        plan = engine.find(x, weight, bias, options, layer.algorithm)
        device = x.get_device()
        operands, memory = Operands(shape_of(x, weight, options), device), backends.LAYOUTS[settings.layout]
        self._found = found = _Found(weakref.ref(plan), engine, releases, settings, tf32, device, operands, memory)
        return found, plan


def _is_plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Tell whether a call on these tensors comes to the operator's kernel and to nothing else.

    PyTorch's private questions are asked: the public ones take the host a microsecond each, or there is none.
    """
    return (
        type(x) is torch.Tensor
        and type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._functorch.peek_interpreter_stack() is None  # vmap, grad and their kin
        and not torch._C._get_tracing_state()
        and forward_ad._current_level < 0
        and not torch._C._autograd._profiler_enabled()
        and not (torch.is_grad_enabled() and _any_requires_grad(x, weight, bias))
        and not (x.is_neg() or weight.is_neg())  # a view that PyTorch negates when it is read
        and not operator.is_recording()
    )


def _any_requires_grad(*tensors: torch.Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


class Conv2d(SwappedConv2d):  # type: ignore[misc]  # ai3 has no types
    """ai3's module of a swapped convolution; on a GPU it runs the plan without PyTorch's dispatcher where it may.

    On a CPU, compiled, traced or trained it calls `ai3::conv2d`, as ai3's own does.
    """

    padding_mode: int

    def __init__(self, original: nn.Conv2d, algorithm: str, name: str) -> None:
        super().__init__(original, algorithm, name)
        self.padding_mode = int(self.padding_mode)  # ai3's own type cannot be followed by torch.compile of torch 2.11
        self.__dict__["original"] = original  # past nn.Module, which would make it a part of the model
        self._direct = DirectCalls()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if "_direct" in self.__dict__:  # not yet while ai3's part is made
            self._direct.forget()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve N × C × H × W or C × H × W; errors as in `CudaOperator.forward`."""
        if torch.compiler.is_dynamo_compiling():
            return self._by_operator(x)
        state = self.__dict__  # an attribute of a module takes the host many times as long, a parameter a microsecond
        parameters: dict[str, torch.Tensor | None] = state["_parameters"]
        bias = parameters.get("bias")
        if bias is None:
            bias = self.bias
        direct: DirectCalls = state["_direct"]
        output = direct.run(self, x, parameters.get("weight"), bias)
        return self._by_operator(x) if output is None else output

    def _by_operator(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = super().forward(x)
        return output


class _ReplacingForward:
    """Runs a model's `forward` with calls of convolutions replaced; in a copy of the model it runs the copy's."""

    def __init__(self, model: nn.Module, wanted: Mapping[str, str]) -> None:
        self._model, self._forward, self._wanted = model, model.forward, dict(wanted)
        self._mode: CallMode | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_mode": None}

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self._mode is None:
            self._mode = calls.substituting(self._model, self._substitute)
        with self._mode:
            return self._forward(*given, **named)

    def _substitute(self, name: str, call: Call, given: torch.Tensor) -> torch.Tensor | None:
        algorithm = self._wanted.get(name, "torch")
        if algorithm == "torch":
            return None
        if call.peculiarity or call.uneven_padding:
            why = call.peculiarity or "its padding 'same' is uneven"
            raise InputError(f"{name} cannot run {algorithm}: only plain convolutions can be replaced, and {why}")
        output: torch.Tensor = call.with_algorithm(algorithm)(given)
        return output


class Swap:
    """A model whose convolutions run algorithms by name, until they are restored.

    The model is changed in place; its weights are shared, never copied. A swapped module remembers its `original`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        found = convolution_modules(model)
        self.originals = {name: module for name, module in found.items() if isinstance(module, nn.Conv2d)}
        self._peculiar = {name: why for name, module in self.originals.items() if (why := models.peculiarity(module))}
        known = set(map(id, self.originals.values()))
        every_name = model.named_modules(remove_duplicate=False)
        self._names = {name: module for name, module in every_name if id(module) in known}
        self._assignment: dict[str, str] = dict.fromkeys(self.originals, "torch")
        self._calls: dict[str, str] = {}
        self._own_forward = vars(model).get("forward")
        operator.cpu_operator()
        if any(parameter.is_cuda for parameter in model.parameters()):
            cuda_operator()

    def apply(self, assignment: Mapping[str, str]) -> None:
        """Give each layer its algorithm; "torch", or no entry, leaves the layer to PyTorch.

        Raises:
            InputError: an algorithm is meant for a layer that is not a plain convolution; for a call, when it is made.
        """
        self._apply_to_modules({name: assignment.get(name, "torch") for name in self.originals})
        others = assignment.keys() - self.originals.keys()
        self._apply_to_calls({name: assignment[name] for name in others if assignment[name] != "torch"})

    def _apply_to_modules(self, whole: dict[str, str]) -> None:
        if whole == self._assignment:
            return
        for name, why in self._peculiar.items():
            if whole[name] != "torch":
                raise InputError(f"{name} cannot run {whole[name]}: only plain convolutions can be replaced, and {why}")
        self.restore()
        if set(whole.values()) != {"torch"}:
            self._swap(whole)
        self._assignment = whole

    def _apply_to_calls(self, wanted: dict[str, str]) -> None:
        """Have calls by name run these algorithms from now on, and only these."""
        if wanted == self._calls:
            return
        self._restore_forward()
        self._calls = wanted
        if not wanted:
            return
        # Past nn.Module, whose own attributes are parameters and modules.
        vars(self.model)["forward"] = _ReplacingForward(self.model, wanted)

    def _restore_forward(self) -> None:
        vars(self.model).pop("forward", None)
        if self._own_forward is not None:
            vars(self.model)["forward"] = self._own_forward

    def restore(self) -> None:
        """Put PyTorch's own modules back, and leave calls to PyTorch."""
        self._restore_forward()
        self._calls = {}
        for name, module in self._names.items():
            models.set_module(self.model, name, module)
        self._assignment = dict.fromkeys(self.originals, "torch")

    def _swap(self, assignment: Mapping[str, str]) -> None:
        by_module = {id(module): assignment[name] for name, module in self.originals.items()}

        def choose(module: nn.Module) -> str:
            if isinstance(module, FusedConv2d):
                return "torch"  # ai3 would put a convolution alone in its place
            return module.algorithm if isinstance(module, SwappedConv2d) else by_module.get(id(module), "torch")

        # ai3 follows a symbolic trace, which control flow and much else defeats, each with an error of its own; then,
        # and for layers off the traced path, the modules are walked instead.
        with _names_accepted(set(assignment.values())), contextlib.suppress(Exception):
            ai3.swap_conv2d(self.model, choose)
        for name, module in self.originals.items():
            if isinstance(module, FusedConv2d):
                if assignment[name] != "torch":
                    models.set_module(self.model, name, module.with_algorithm(assignment[name]))
                continue
            if assignment[name] != "torch" and self.model.get_submodule(name) is module:
                models.set_module(self.model, name, SwappedConv2d(module, assignment[name], name))
            swapped = self.model.get_submodule(name)
            if isinstance(swapped, SwappedConv2d):
                models.set_module(self.model, name, Conv2d(module, swapped.algorithm, name))
        now = {id(module): self.model.get_submodule(name) for name, module in self.originals.items()}
        for name, module in self._names.items():  # a module may have more than one name
            models.set_module(self.model, name, now[id(module)])


@contextlib.contextmanager
def _names_accepted(names: Collection[str]) -> Iterator[None]:
    """Let ai3 accept these algorithms for the length of the block; its own list lacks some."""
    listed: list[str] = ai3.utils.SUPPORTED_ALGORITHMS["conv2d"]
    before = list(listed)
    listed.extend(name for name in names if name not in listed)
    try:
        yield
    finally:
        listed[:] = before


def what_ran(module: nn.Module) -> Execution:
    """Return the execution of the last call of this convolution; ask right after the call.

    It is the last one recorded: the call must have been made in a block of `operator.recording`.
    """
    if carried(module) == "torch":
        return Execution("torch", "torch")
    executions = operator.recorded()
    assert executions, "a swapped convolution ran outside of operator.recording(), or without its kernel"
    return executions[-1]


def replaces_calls(model: nn.Module) -> bool:
    """Tell whether calls outside `nn.Conv2d` modules are replaced while this model runs."""
    return isinstance(vars(model).get("forward"), _ReplacingForward)


def original(module: nn.Module) -> nn.Module:
    """Return PyTorch's own module of a convolution: the one in whose place a swapped one stands, else itself."""
    if isinstance(module, (Call, FusedConv2d)):
        return module.with_algorithm("torch")
    return vars(module)["original"] if isinstance(module, SwappedConv2d) else module


def carried(module: nn.Module) -> str:
    """Return the algorithm's name that a convolution carries, "torch" where it is PyTorch's own module."""
    return str(module.algorithm) if isinstance(module, (SwappedConv2d, Call, FusedConv2d)) else "torch"
