"""Convolutions outside `nn.Conv2d` modules: calls that a dispatch mode sees, named by the module that makes them.

Functional calls, `nn.Conv1d`, `nn.Conv3d` and transposed convolutions come as calls of `aten::convolution`, or in
inference mode, where PyTorch does not take the others apart first, of `aten::conv1d` and its kin. What a listed
`nn.Conv2d` module calls is a part of that module. Nothing is registered at the model's own modules: some of PyTorch's
leave their fast path where they have hooks.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from convscope.timing.hooks import After, Before, convolution_modules, hooked

SWAPPED = "ai3::conv2d"
_CONVOLUTIONS = frozenset({
    *(SWAPPED, "aten::convolution", "aten::_convolution", "aten::_convolution_mode", "aten::mkldnn_convolution"),
    *("aten::cudnn_convolution", "aten::cudnn_convolution_transpose"),
    *(f"aten::conv{kind}{dimensions}d" for kind in ("", "_transpose") for dimensions in (1, 2, 3)),
})  # fmt: skip
_NORMALISATION = torch.ops.aten.batch_norm.default
"""Keeps the shape of its input; on the meta device PyTorch takes longer to find that out than for all other layers."""

Compute = Callable[[], torch.Tensor]
Handler = Callable[[str, "Call", torch.Tensor, Compute], torch.Tensor]
Substitute = Callable[[str, "Call", torch.Tensor], torch.Tensor | None]

_UNSEEN: contextvars.ContextVar[bool] = contextvars.ContextVar("calls are not seen", default=False)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Let the block's convolutions pass unseen: they are not the model's."""
    before = _UNSEEN.set(True)
    try:
        yield
    finally:
        _UNSEEN.reset(before)


class Call(nn.Module):
    """One call of a convolution as a module: its weight, bias and options; it convolves N × C × spatial anew.

    Attributes:
        transposed: it is a transposed convolution; the weight is then C × K/groups × kernel.
        uneven_padding: padding 'same' of an even span, one more behind than in front; `padding` has the lesser.
        stored: weight and bias are parameters or buffers of the model, not computed in the pass.
        algorithm: that of the call of `ai3::conv2d` that was seen, "torch" for one of PyTorch's.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], groups: int = 1, transposed: bool = False, output_padding: Sequence[int] = (),
        uneven_padding: bool = False, stored: bool = True, algorithm: str = "torch",
    ) -> None:  # fmt: skip
        super().__init__()
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is None or isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self.dimensions = weight.dim() - 2
        self.stride, self.padding, self.dilation = tuple(stride), tuple(padding), tuple(dilation)
        self.groups, self.transposed, self.uneven_padding = groups, transposed, uneven_padding
        self.output_padding = tuple(output_padding) or (0,) * self.dimensions
        self.stored, self.algorithm = stored, algorithm

    @property
    def kind(self) -> str:
        """The name of PyTorch's function: "conv1d", "conv_transpose2d"."""
        return f"conv{'_transpose' * self.transposed}{self.dimensions}d"

    @property
    def peculiarity(self) -> str:
        """The reason why no other algorithm can take its place, "" where one can."""
        if self.transposed:
            return f"{self.kind} is transposed"
        if self.dimensions != 2:
            return f"{self.kind} is not 2-D"
        return "" if self.stored else f"the weight of a call of {self.kind} is computed in the pass"

    def with_algorithm(self, algorithm: str) -> Call:
        """Return the same convolution by another algorithm, "torch" for PyTorch's own."""
        return Call(
            self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation,
            groups=self.groups, transposed=self.transposed, output_padding=self.output_padding,
            uneven_padding=self.uneven_padding, stored=self.stored, algorithm=algorithm,
        )  # fmt: skip

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Convolve an input with or without a batch, by this call's algorithm."""
        if given.dim() < self.weight.dim():
            return self.forward(given.unsqueeze(0)).squeeze(0)
        if self.algorithm != "torch":
            options = (*self.padding, *self.stride, *self.dilation, 0, self.groups, self.algorithm)
            output: torch.Tensor = torch.ops.ai3.conv2d(given, self.weight, self.bias, *options)
            return output
        if self.uneven_padding:
            given = nn.functional.pad(given, _behind(self))
        options = self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups
        return torch.convolution(given, self.weight, self.bias, *options)


def _behind(call: Call) -> list[int]:
    """Return the arguments of `pad` that bring padding 'same' to its larger side, the last dimension first."""
    spans = [step * (extent - 1) for step, extent in zip(call.dilation, call.weight.shape[2:], strict=True)]
    return [amount for span in reversed(spans) for amount in (0, span % 2)]


def call_of(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], stored: frozenset[int]
) -> tuple[Call, torch.Tensor]:
    """Return a call of one of PyTorch's convolutions, or of `ai3::conv2d`, and its input.

    Args:
        function: the overload that is called.
        stored: the `id` of each parameter and buffer of the model.
    """
    schema = function._schema.arguments
    named = {each.name: each.default_value for each in schema if each.has_default_value()}
    named |= dict(zip((each.name for each in schema), args, strict=False)) | dict(kwargs)
    given: torch.Tensor = named["input"] if "input" in named else named["self"]
    weight, bias = named["weight"], named.get("bias")
    if function._schema.name == SWAPPED:
        for name in ("stride", "padding", "dilation"):
            named[name] = [named[f"{name}_h"], named[f"{name}_w"]]
    sizes = {name: _expanded(named[name], weight.dim() - 2) for name in ("stride", "dilation")}
    padding, is_uneven = _padding(named["padding"], weight.shape[2:], sizes["dilation"])
    call = Call(
        weight, bias, **sizes, padding=padding, groups=int(named["groups"]), uneven_padding=is_uneven,
        transposed=bool(named.get("transposed", "transpose" in function._schema.name)),
        output_padding=_expanded(named.get("output_padding") or 0, weight.dim() - 2),
        stored={id(weight), id(weight if bias is None else bias)} <= stored,
        algorithm=named.get("algorithm", "torch"),
    )  # fmt: skip
    return call, given


def _expanded(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(map(int, value))
    return values * dimensions if len(values) == 1 else values


def _padding(
    value: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], bool]:
    """Return the padding in numbers, and whether one side has one more."""
    if not isinstance(value, str):
        return _expanded(value, len(kernel)), False
    spans = [step * (extent - 1) if value == "same" else 0 for step, extent in zip(dilation, kernel, strict=True)]
    return tuple(span // 2 for span in spans), any(span % 2 for span in spans)


def _fits(x: torch.Tensor, means: torch.Tensor | None) -> bool:
    """Tell whether a normalisation has a mean for each channel: PyTorch says what is wrong where it has not."""
    return means is not None and means.shape == x.shape[1:2]


@dataclass
class _Frame:
    """A module that runs: whether its convolution is listed as a module, and its calls so far by kind."""

    module: nn.Module | None
    name: str
    listed: bool = False
    counts: Counter[str] = field(default_factory=Counter)


class CallMode(TorchDispatchMode):
    """Hands each convolution outside the listed modules of a model to a function, in a `with` block.

    A call's name is the module's and the function's, "block.conv2d"; of the second in one run of a module
    "block.conv2d#2".
    """

    def __init__(self, model: nn.Module, handle: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        listed = convolution_modules(model)
        inside = {id(module) for module in listed.values()}
        self._names = {id(module): (name, id(module) in inside) for name, module in model.named_modules()}
        self._stored = frozenset(map(id, (*model.parameters(), *model.buffers())))
        self._taken, self._handle = frozenset(listed), handle
        self._frames: list[_Frame] = []
        self._hooks = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler at the first call of `__torch_dispatch__`: that takes seconds."""
        return False

    def __enter__(self) -> CallMode:
        self._frames[:] = [_Frame(None, "")]
        self._hooks.enter_context(global_hooks.register_module_forward_pre_hook(self._begin))
        self._hooks.enter_context(global_hooks.register_module_forward_hook(self._end, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _begin(self, module: nn.Module, given: object) -> None:
        if id(module) in self._names and not _UNSEEN.get():
            name, listed = self._names[id(module)]
            self._frames.append(_Frame(module, name, listed or self._frames[-1].listed))

    def _end(self, module: nn.Module, given: object, output: object) -> None:
        if self._frames[-1].module is module and not _UNSEEN.get():
            self._frames.pop()

    def _name(self, kind: str) -> str:
        frame = self._frames[-1]
        while True:
            frame.counts[kind] += 1
            number = "" if frame.counts[kind] == 1 else f"#{frame.counts[kind]}"
            name = f"{frame.name}{'.' if frame.name else ''}{kind}{number}"
            if name not in self._taken:
                return name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand a convolution to the function, run anything else."""
        named = kwargs or {}
        if func is _NORMALISATION and args[0].is_meta and _fits(args[0], args[3]):
            return torch.empty_like(args[0])
        if func._schema.name not in _CONVOLUTIONS or self._frames[-1].listed or _UNSEEN.get():
            return func(*args, **named)
        call, given = call_of(func, args, named, self._stored)
        return self._handle(self._name(call.kind), call, given, lambda: func(*args, **named))


@contextlib.contextmanager
def watched(
    model: nn.Module, before: Before | None = None, after: After | None = None, calls: bool = True
) -> Iterator[None]:
    """Call `before(name, module, input)` and `after(name, module, input, output)` around every convolution.

    Args:
        calls: those outside `nn.Conv2d` modules too, with a `Call` as their module; False attaches hooks alone.
    """
    if not calls:
        with hooked(model, before, after):
            yield
        return

    def begin(name: str, module: nn.Module, given: torch.Tensor) -> None:
        if before is not None and not _UNSEEN.get():
            with unseen():
                before(name, module, given)

    def end(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        if after is not None and not _UNSEEN.get():
            with unseen():
                after(name, module, given, output)

    def handle(name: str, call: Call, given: torch.Tensor, compute: Compute) -> torch.Tensor:
        begin(name, call, given)
        output = compute()
        end(name, call, given, output)
        return output

    with hooked(model, begin if before else None, end if after else None), CallMode(model, handle):
        yield


def substituting(model: nn.Module, substitute: Substitute) -> CallMode:
    """Return the mode in which `substitute(name, call, input)` gives the outputs of calls; None is PyTorch's own."""

    def handle(name: str, call: Call, given: torch.Tensor, compute: Compute) -> torch.Tensor:
        output = substitute(name, call, given)
        return compute() if output is None else output

    return CallMode(model, handle)
