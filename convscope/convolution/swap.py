"""Convolution algorithms put into a model through ai3, and taken out again.

The stock ai3 replaces each `nn.Conv2d` by a module that calls the operator `ai3::conv2d` with the algorithm's name. On
a CPU ai3 computes it; on a GPU the kernel of `operator` does. A module that is more than a plain convolution is left to
PyTorch (`models.peculiarity`): ai3 would put a plain one in its place. A call outside such modules is replaced when it
is made: the model's `forward` then runs in a dispatch mode, which costs the host some microseconds for each operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import ai3
import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from torch import nn
from torch.fx.proxy import TraceError

from convscope.convolution import algorithms, models, operator
from convscope.convolution.operator import cuda_operator
from convscope.convolution.providers import Execution
from convscope.errors import InputError
from convscope.timing import calls
from convscope.timing.calls import Call
from convscope.timing.hooks import convolution_modules


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
        forward, mode = self.model.forward, calls.substituting(self.model, self._substitute)

        def replaced(*given: Any, **named: Any) -> Any:
            with mode:
                return forward(*given, **named)

        replaced.replaces_calls = True  # type: ignore[attr-defined]
        vars(self.model)["forward"] = replaced  # past nn.Module, whose own attributes are parameters and modules

    def _substitute(self, name: str, call: Call, given: torch.Tensor) -> torch.Tensor | None:
        algorithm = self._calls.get(name, "torch")
        if algorithm == "torch":
            return None
        if call.peculiarity or call.uneven_padding:
            why = call.peculiarity or "its padding 'same' is uneven"
            raise InputError(f"{name} cannot run {algorithm}: only plain convolutions can be replaced, and {why}")
        output: torch.Tensor = call.with_algorithm(algorithm)(given)
        return output

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
            return module.algorithm if isinstance(module, SwappedConv2d) else by_module.get(id(module), "torch")

        # ai3 follows a symbolic trace, which data-dependent control flow defeats; then, and for layers off the
        # traced path, the modules are walked instead.
        with _names_accepted(), contextlib.suppress(TraceError, TypeError):
            ai3.swap_conv2d(self.model, choose)
        for name, module in self.originals.items():
            if assignment[name] != "torch" and self.model.get_submodule(name) is module:
                models.set_module(self.model, name, SwappedConv2d(module, assignment[name], name))
            swapped = self.model.get_submodule(name)
            if isinstance(swapped, SwappedConv2d):
                # ai3's own type for it cannot be followed by torch.compile of torch 2.11.
                swapped.padding_mode = int(swapped.padding_mode)
                vars(swapped)["original"] = module  # past nn.Module, which would make it a part of the model
        now = {id(module): self.model.get_submodule(name) for name, module in self.originals.items()}
        for name, module in self._names.items():  # a module may have more than one name
            models.set_module(self.model, name, now[id(module)])


@contextlib.contextmanager
def _names_accepted() -> Iterator[None]:
    """Let ai3 accept every algorithm of the catalogue for the length of the block; its own list lacks some."""
    listed: list[str] = ai3.utils.SUPPORTED_ALGORITHMS["conv2d"]
    before = list(listed)
    listed.extend(name for name in algorithms.ALGORITHMS if name not in listed)
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
    return getattr(vars(model).get("forward"), "replaces_calls", False)


def original(module: nn.Module) -> nn.Module:
    """Return PyTorch's own module of a convolution: the one in whose place a swapped one stands, else itself."""
    if isinstance(module, Call):
        return module.with_algorithm("torch")
    return vars(module)["original"] if isinstance(module, SwappedConv2d) else module


def carried(module: nn.Module) -> str:
    """Return the algorithm's name that a convolution carries, "torch" where it is PyTorch's own module."""
    return str(module.algorithm) if isinstance(module, (SwappedConv2d, Call)) else "torch"
