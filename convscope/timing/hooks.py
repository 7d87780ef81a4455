"""Hooks around every convolution of a model, attached for the length of a block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from torch import nn
from torch.nn.modules import module as every_module
from torch.profiler import record_function

Before = Callable[[str, nn.Module, torch.Tensor], None]
After = Callable[[str, nn.Module, torch.Tensor, torch.Tensor], None]


def convolution_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the model's convolutions by name, swapped or not; a convolution inside another is a part of that one."""
    found: dict[str, nn.Module] = {}
    inside = " "  # no name begins with it
    for name, module in model.named_modules():  # the parts of a module follow it
        if isinstance(module, (nn.Conv2d, SwappedConv2d)) and not name.startswith(inside):
            found[name], inside = module, f"{name}."
    return found


@contextlib.contextmanager
def hooked(model: nn.Module, before: Before | None = None, after: After | None = None) -> Iterator[None]:
    """Call `before(name, module, input)` and `after(name, module, input, output)` around every convolution."""
    with contextlib.ExitStack() as attached:
        for name, module in convolution_modules(model).items():
            if before is not None:
                attached.enter_context(module.register_forward_pre_hook(functools.partial(_before, before, name)))
            if after is not None:
                attached.enter_context(module.register_forward_hook(functools.partial(_after, after, name)))
        yield


@contextlib.contextmanager
def module_ranges(model: nn.Module, prefix: str) -> Iterator[None]:
    """Put a profiler's range around each run of a module, named by `prefix` and the module's name.

    Nothing is registered at the modules themselves: some of PyTorch's leave their fast path where they have hooks.
    """
    names = {id(module): name for name, module in model.named_modules()}
    opened: list[tuple[nn.Module, record_function]] = []

    def begin(module: nn.Module, given: object) -> None:
        if id(module) in names:
            opened.append((module, record_function(f"{prefix}{names[id(module)]}")))
            opened[-1][1].__enter__()

    def end(module: nn.Module, given: object, output: object) -> None:
        if opened and opened[-1][0] is module:
            opened.pop()[1].__exit__(None, None, None)

    with contextlib.ExitStack() as attached:
        attached.enter_context(every_module.register_module_forward_pre_hook(begin))
        attached.enter_context(every_module.register_module_forward_hook(end, always_call=True))
        yield


def _before(call: Before, name: str, module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    call(name, module, given[0])


def _after(call: After, name: str, module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    call(name, module, given[0], output)
