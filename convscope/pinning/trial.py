"""Trial of a document of plans with a model: names and shapes, outputs against the unpinned model, times of both.

The one module of `convscope pin` that needs PyTorch. Names and shapes are checked without a GPU; the rest needs one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from convscope.convolution import backends, models, names, tolerance
from convscope.convolution.fusion import graphs
from convscope.convolution.layer import Layer
from convscope.convolution.operator import recording, release
from convscope.convolution.providers.plan import Execution
from convscope.convolution.reference import MARGIN, relative_distance, rounded
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs, first_tensor
from convscope.errors import InputError
from convscope.pinning import pinned
from convscope.pinning.document import SHAPE, TORCH, Pin, Pins
from convscope.pinning.pinned import PinnedConv2d, PinWarning
from convscope.timing import placement, summary
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, Summary

CONFIDENCE = 0.99
ABSENT = "not in the file"


@dataclass(frozen=True)
class LayerTrial:
    """One convolution of the model: the file's algorithm for it, and the one that ran.

    Attributes:
        pinned: the file's algorithm; "torch" where the file leaves the layer to PyTorch or does not have it.
        ran: None where nothing was run.
        relative_error: distance of the layer's output from that of the unpinned layer for the same input; None where it
            was not compared.
        why_left: why PyTorch's convolution runs although the file has another algorithm; None where that runs.
    """

    layer: str
    pinned: str
    ran: str | None = None
    provider: str | None = None
    workspace_bytes: int | None = None
    relative_error: float | None = None
    allowed: float | None = None
    why_left: str | None = None
    remark: str | None = None

    @property
    def why_wrong(self) -> str | None:
        """The reason why its output is wrong, None where it is not."""
        return None if self.allowed is None else tolerance.why_wrong(self.relative_error, self.allowed)


@dataclass(frozen=True)
class Trial:
    """Result of a trial; without a GPU the layers alone.

    Attributes:
        output_error: relative distance of the pinned model's output from the unpinned one's.
        before, after: times of a pass of the unpinned and the pinned model, in ms.
        less: the time before less the time after, round by round.
    """

    layers: Sequence[LayerTrial]
    output_error: float | None = None
    output_allowed: float | None = None
    before: Summary | None = None
    after: Summary | None = None
    less: Difference | None = None

    @property
    def why_wrong(self) -> str | None:
        """The reason why the model's output is wrong, None where it is not."""
        return None if self.output_allowed is None else tolerance.why_wrong(self.output_error, self.output_allowed)

    @property
    def exit_code(self) -> int:
        """0 where everything was pinned and is right, else 1."""
        return int(self.why_wrong is not None or any(each.why_left or each.why_wrong for each in self.layers))


@dataclass(frozen=True)
class Subject:
    """A model with the document for it, at the document's input size."""

    pins: Pins
    network: Network
    layers: Sequence[Layer]

    @property
    def size(self) -> int:
        """The input size in pixels."""
        return _size(self.pins, self.network)

    @property
    def shapes(self) -> Inputs:
        """The arguments of one call of the model, on the meta device."""
        return self.network.source.input_shapes(self.size, self.network.batch_size)

    def build(self, device: torch.device) -> nn.Module:
        """Return the unpinned model on a device, fused where the document is of a fused one."""
        return self.network.on(device, _change(self.pins, self.network))


def open_subject(model: str, pins: Pins, file: str, pretrained: bool = False, seed: int = 0) -> Subject:
    """Return a model with its document, of which every layer is in the model with the same shape; needs no GPU.

    Raises:
        InputError: there is no such model; it cannot take the input size or cannot be fused; a layer of the document is
            not in it, or has another shape there.
    """
    settings = pins.settings
    network = Network(
        models.find_source(model), settings["batch_size"], seed, pretrained, settings["dtype"], settings["layout"]
    )
    found = Subject(pins, network, _layers(pins, network))
    for pin in pins.layers:
        if why := _why_other(pin, found.layers, network.source.name, file):
            raise InputError(f"{why}; {file} was made for {settings['model']}: give that model, or export plans anew")
    return found


def checked(subject: Subject) -> Trial:
    """Return the trial of a machine without a GPU: the layers, and the file's algorithm for each."""
    asked = _asked(subject)
    return Trial([_of_file(name, asked) for name in dict.fromkeys(layer.name for layer in subject.layers)])


def tried(subject: Subject, device: torch.device, rounds: int) -> Trial:
    """Pin the model, run it beside the unpinned one, compare outputs and time both.

    Args:
        rounds: placements in memory, in each of which both models are timed.

    Raises:
        InputError: another GPU or version of cuDNN than the document's.
    """
    if why := pinned.other_stack(device, subject.pins):
        raise InputError(f"the plans are not for this machine ({why}): export plans that were measured here")
    math_mode = subject.pins.settings["math"]
    with torch.inference_mode(), backends.math(math_mode), _on(device):
        stock, inputs = subject.build(device), subject.network.inputs(subject.size, device)
        model = copy.deepcopy(stock)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PinWarning)  # the reasons are in the rows
            pinned.pin(model, subject.pins)
            layers, output = _observed(subject, model, inputs)
            _restore(model, layers)
            times = _timed((stock, model), inputs, rounds) if any(each.ran != TORCH for each in layers) else None
        expected = first_tensor(stock(*inputs))
        allowed = _output_allowed(subject, layers, stock, inputs)
    found = Trial(layers, relative_distance(output, expected.double()), allowed)
    if times is None:
        return found
    less = summary.paired_difference(*times, CONFIDENCE)
    before, after = map(summary.summarize, times)
    return dataclasses.replace(found, before=before, after=after, less=less)


def _restore(model: nn.Module, rows: Sequence[LayerTrial]) -> None:
    """Bring the own modules of layers back whose plan did not run: it would be tried again in each timed pass."""
    modules = dict(model.named_modules())
    for each in rows:
        module = modules.get(each.layer) if each.why_left and each.ran == TORCH else None
        if isinstance(module, PinnedConv2d):
            models.set_module(model, each.layer, module.original)


def _is_pinned(each: LayerTrial) -> bool:
    return each.pinned != TORCH


def _size(pins: Pins, network: Network) -> int:
    own: int = pins.settings["input_size"] if network.source.fixed_px is None else network.source.fixed_px
    return own


def _change(pins: Pins, network: Network) -> Callable[[nn.Module], nn.Module] | None:
    """Return what fuses the model, None where the document is of a plain one."""
    if not any(pin.shape["fused"] for pin in pins.layers):
        return None
    source = network.source
    example = source.inputs(_size(pins, network), source.own_batch or 1, network.seed)
    return lambda model: graphs.fused_whole(model, *example)


def _layers(pins: Pins, network: Network) -> Sequence[Layer]:
    """List the convolutions of the model; a fused one is built on the CPU for that."""
    size, change = _size(pins, network), _change(pins, network)
    if change is None:
        return network.layers(size)
    model = network.on(torch.device("cpu"), change)
    shapes = (given.shape for given in network.source.input_shapes(size, network.batch_size))
    return models.followed(network.source.name, model, *shapes)


def _why_other(pin: Pin, layers: Sequence[Layer], model: str, file: str) -> str | None:
    """Return why a layer of the document is not one of the model, None where it is."""
    same = [layer.columns() | {"fused": layer.steps} for layer in layers if layer.name == pin.layer]
    if not same:
        near = names.nearest(pin.layer, dict.fromkeys(layer.name for layer in layers))
        return f"{model} has no convolution {pin.layer!r}{near}"
    if any(all(sizes[name] == pin.shape[name] for name in SHAPE) for sizes in same):
        return None
    first = next(name for name in SHAPE if same[0][name] != pin.shape[name])
    here, there = (value or "nothing" for value in (same[0][first], pin.shape[first]))
    return f"{first} of {pin.layer} is {here} in {model} and {there} in {file}"


def _asked(subject: Subject) -> dict[str, Pin]:
    return {pin.layer: pin for pin in subject.pins.layers}


def _of_file(name: str, asked: dict[str, Pin]) -> LayerTrial:
    """Return the row of a layer before anything ran."""
    return LayerTrial(name, asked[name].algorithm) if name in asked else LayerTrial(name, TORCH, remark=ABSENT)


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one for the length of the block, and give the plans back at its end."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        try:
            yield
        finally:
            release(device)


def _observed(subject: Subject, model: nn.Module, inputs: Inputs) -> tuple[list[LayerTrial], torch.Tensor]:
    """Run a pinned model once; return each convolution, and the model's output."""
    asked, modules = _asked(subject), dict(model.named_modules())
    seen = {layer.name: _before_run(layer.name, asked, modules.get(layer.name)) for layer in subject.layers}
    by_name = {layer.name: layer for layer in subject.layers}
    with contextlib.ExitStack() as stack:
        executions = stack.enter_context(recording())
        for name, module in modules.items():
            if isinstance(module, PinnedConv2d):
                hook = partial(_note, subject, by_name[name], executions, seen)
                stack.callback(module.register_forward_hook(hook).remove)
        output = first_tensor(model(*inputs)).clone()
    return [*seen.values()], output


def _before_run(name: str, asked: dict[str, Pin], module: nn.Module | None) -> LayerTrial:
    """Return the row of a layer that PyTorch computes, until a call of its plan is seen."""
    begun = dataclasses.replace(_of_file(name, asked), ran=TORCH, provider=TORCH)
    if not _is_pinned(begun) or isinstance(module, PinnedConv2d):
        return begun
    return dataclasses.replace(begun, why_left=pinned.other_layer(module, asked[name]))


def _note(
    subject: Subject, layer: Layer, executions: list[Execution], seen: dict[str, LayerTrial], module: PinnedConv2d,
    given: tuple[torch.Tensor, ...], output: torch.Tensor,
) -> None:  # fmt: skip
    """Note a call of a pinned layer: the plan that ran, and its error against the unpinned layer."""
    before = seen[layer.name]
    if not executions:
        seen[layer.name] = dataclasses.replace(before, why_left=module.left)
        return
    ran = executions.pop()
    row = dataclasses.replace(
        before, ran=ran.algorithm, provider=ran.provider, workspace_bytes=ran.workspace_bytes
    )  # fmt: skip
    if not layer.fused.addition:  # a sum may be far shorter than its terms, whose errors stay
        settings = subject.pins.settings
        error = relative_distance(output, module.original(*given).double())
        both = (tolerance.tolerance(layer, name, settings["math"], settings["dtype"]) for name in (_of(ran), TORCH))
        worst = max((each for each in (error, before.relative_error) if each is not None), default=None)
        row = dataclasses.replace(row, relative_error=worst, allowed=math.hypot(*both))
    seen[layer.name] = row


def _of(ran: Execution) -> str:
    """Return the algorithm whose errors are to be expected of an execution."""
    return ran.arithmetic if ran.transforms else ran.algorithm


def _output_allowed(subject: Subject, rows: Sequence[LayerTrial], stock: nn.Module, inputs: Inputs) -> float:
    """Return the largest distance to be expected of the two models' outputs: the error allowed of each, combined.

    In 16 bits a deep model may enlarge each rounding: what roundings alone do to it is measured, and allowed too.
    """
    math_mode, dtype = subject.pins.settings["math"], subject.pins.settings["dtype"]
    ran = {each.layer: each.ran or TORCH for each in rows}
    sides = [
        tolerance.whole_model_tolerance(
            tolerance.tolerance(layer, name, math_mode, dtype)
            for layer, name in zip(subject.layers, algorithms, strict=True)
        )
        for algorithms in ([ran[layer.name] for layer in subject.layers], [TORCH] * len(subject.layers))
    ]
    moved = 0.0
    if dtype != "float32":
        wide = copy.deepcopy(stock).float()
        given = tuple(each.float() if each.is_floating_point() else each for each in inputs)
        moved = relative_distance(first_tensor(rounded(wide, dtype)(*given)), first_tensor(wide(*given)).double()) or 0
    return math.hypot(*(max(side, MARGIN * moved) for side in sides))


def _timed(both: tuple[nn.Module, nn.Module], inputs: Inputs, rounds: int) -> tuple[list[float], list[float]]:
    """Time a pass of each model in every round, both in the round's placement in memory; in ms."""
    stopwatch = Stopwatch(inputs[0].device)
    times_ms: tuple[list[float], list[float]] = [], []
    for place in range(rounds):
        for model, found_ms in zip(both, times_ms, strict=True):
            with placement.moved(model, inputs, place) as there:
                found_ms.append(stopwatch.pass_ms(partial(model, *there)))
            release(inputs[0].device)
    return times_ms
