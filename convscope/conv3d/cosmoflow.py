"""CosmoFlow end to end: the network with any implementation put in for its convolutions, timed whole and by kind.

The network: five 3-D convolutions of 32 to 512 filters, each followed by a leaky ReLU and a pooling by 2, then layers
of 128, 64 and 4 (A. Mathuriya et al., "CosmoFlow", SC18; reference of MLPerf HPC). Input batch × 4 × 128³.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import nn

from convscope.conv3d import comparison, layersets
from convscope.conv3d.implementations import Implementations, Prepared
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import EndToEndRow, KindRow
from convscope.convolution import backends, tolerance
from convscope.kernels.conv3d.catalogue import FMA_ONLY
from convscope.timing import graphs, summary
from convscope.timing.stopwatch import sampler, times_ms

CHANNELS, SIDE, WIDTH, DEPTH = 4, 128, 32, 5
_TARGETS = 4
_SLOPE = 0.3  # of the leaky ReLU, Keras's default
_LEARNING_RATE = 0.001
KINDS = {"Swapped": "convolution", "LeakyReLU": "activation", "MaxPool3d": "pooling",
         "Linear": "dense"}  # fmt: skip


class Swapped(nn.Module):
    """A 3-D convolution computed by an implementation; its weights are the original's. Gradients are PyTorch's."""

    def __init__(self, original: nn.Conv3d, ready: Prepared) -> None:
        super().__init__()
        self.original, self._ready = original, ready

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve N × C × D × H × W and add the bias."""
        assert self.original.bias is not None
        bias = self.original.bias.view(1, -1, 1, 1, 1)
        if not torch.is_grad_enabled():
            return self._ready.call(x).add_(bias)
        self._ready.renew()
        y: torch.Tensor = _Forward.apply(x, self.original.weight, self._ready.call, self.original)
        return y + bias


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, call: Callable[..., Any], original: nn.Conv3d) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.original = original
        return call(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        of = ctx.original
        options = of.stride, of.padding, of.dilation, False, [0, 0, 0], of.groups
        wanted = [ctx.needs_input_grad[0], True, False]
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(gradients[0], x, weight, None, *options, wanted)
        return of_x, of_weight, None, None


def network(seed: int, side: int = SIDE, width: int = WIDTH) -> nn.Sequential:
    """Return the network on the CPU, weights drawn from the seed, for inputs of `side`³."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        channels = CHANNELS
        for step in range(DEPTH):
            layers += [nn.Conv3d(channels, width << step, 3, padding=1), nn.LeakyReLU(_SLOPE), nn.MaxPool3d(2)]
            channels = width << step
        features = channels * (side >> DEPTH) ** 3
        layers += [nn.Flatten(), nn.Linear(features, 128), nn.LeakyReLU(_SLOPE), nn.Linear(128, 64)]
        return nn.Sequential(*layers, nn.LeakyReLU(_SLOPE), nn.Linear(64, _TARGETS), nn.Tanh(), Scaled(1.2))


class Scaled(nn.Module):
    """Multiplies by a number, in its own type."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input times the factor."""
        return x * self._factor


def with_implementation(
    model: nn.Sequential, name: str, given: torch.Tensor, workshop: Implementations, asked: Conv3d
) -> nn.Sequential:
    """Return the network with its convolutions computed by an implementation; the weights are shared.

    Raises:
        cudnn.NotSupportedError, NotImplementedError: it cannot do one of them.
    """
    put: list[nn.Module] = []
    shape = tuple(given.shape)
    for module in model:
        if isinstance(module, nn.Conv3d):
            layer = layersets.describe("", 0, module, shape)
            convolution = layer.convolution(asked.dtype, asked.math)
            reason = workshop.why_not(name, convolution)
            if reason:
                raise NotImplementedError(reason)
            put.append(Swapped(module, workshop.prepare(name, convolution, module.weight)))
            shape = layer.output
        else:
            shape = (*shape[:2], *(extent // 2 for extent in shape[2:])) if isinstance(module, nn.MaxPool3d) else shape
            put.append(module)
    return nn.Sequential(*put)


class EndToEnd:
    """Times the network with one implementation after another; `rows` and `kinds` grow on the way.

    Args:
        side: of the input's cube, `width` filters of the first convolution: the network's own, smaller in tests.
    """

    def __init__(
        self, asked: Conv3d, workshop: Implementations, batch: int, side: int = SIDE, width: int = WIDTH
    ) -> None:
        self.rows: list[EndToEndRow] = []
        self.kinds: list[KindRow] = []
        self._asked, self._workshop, self._side, self._width = asked, workshop, side, width
        self._batch = batch
        self._expected: torch.Tensor | None = None

    def _model(self) -> nn.Sequential:
        made = network(self._asked.seed, self._side, self._width)
        return made.to(self._workshop.device, getattr(torch, self._asked.dtype))

    def run(self, note: Callable[[str], None], pause: Callable[[], bool]) -> None:
        """Time every implementation that was asked for.

        Args:
            pause: called after each; where it says True this ends there.

        Raises:
            DeviceFaultError: the GPU is lost.
        """
        asked = self._asked
        with backends.math(asked.math):
            for name in asked.implementations:
                note(f"end to end: {name}")
                row = EndToEndRow(
                    name, batch=self._batch, math=asked.math, dtype=asked.dtype, device=str(self._workshop.device)
                )
                try:
                    self._prepare()
                    self.rows.append(self._workshop.run(name, lambda row=row: self._one(row)))  # type: ignore[misc]
                except Exception as error:
                    failure = comparison.failure_of(error, self._workshop.device)
                    self.rows.append(dataclasses.replace(row, status=failure.status, reason=failure.reason))
                if pause():
                    return

    def _prepare(self) -> None:
        """Make the input and what the network makes of it in float32 without TF32, once."""
        if self._expected is not None:
            return
        dtype, device, side = getattr(torch, self._asked.dtype), self._workshop.device, self._side
        drawn = torch.Generator(device=device).manual_seed(self._asked.seed)
        self._given = torch.randn(self._batch, CHANNELS, side, side, side, generator=drawn, device=device).to(dtype)
        self._wanted = torch.zeros(self._batch, _TARGETS, dtype=dtype, device=device)
        with backends.math("fp32"), torch.inference_mode():
            self._expected = self._model().float()(self._given.float()).double()

    def _one(self, row: EndToEndRow) -> EndToEndRow:
        asked, device, model = self._asked, self._workshop.device, self._model()
        swapped = with_implementation(model, row.implementation, self._given, self._workshop, asked)
        with torch.inference_mode():
            output = swapped(self._given).double()
            assert self._expected is not None
            error = float((output - self._expected).norm() / self._expected.norm())
            most = self._tolerance(row.implementation)
            row = dataclasses.replace(row, relative_error=error, tolerance=most)
            if not error <= most:
                why = f"its output differs from float32 by {error:.1e}, {most:.1e} is allowed"
                return dataclasses.replace(row, status="failed", reason=why)
            work = lambda: swapped(self._given)  # noqa: E731
            passes = times_ms(work, device, asked.warmup, asked.measure, asked.budget_s)
            self.kinds += self._by_kind(row.implementation, swapped)
        steps = self._training_ms(model, swapped)
        low, high = summary.median_interval_ms(passes) or (None, None)
        first, last = summary.median_interval_ms(steps) or (None, None)
        return dataclasses.replace(
            row, inference_ms=median(passes), inference_low_ms=low, inference_high_ms=high,
            training_step_ms=median(steps), training_low_ms=first, training_high_ms=last,
        )  # fmt: skip

    def _tolerance(self, name: str) -> float:
        """Return the largest error to be expected: what a matrix unit cuts off is one-sided, so layers add up."""
        asked = self._asked
        matrix = "fp16" if asked.dtype == "float16" else asked.math
        arithmetic = "fp32" if name in FMA_ONLY else matrix
        terms = [weight[0].numel() for weight in self._model().parameters() if weight.dim() > 1]
        each = (tolerance.elementwise_tolerance(count, arithmetic, asked.dtype, "fft" in name) for count in terms)
        return sum(each)

    def _training_ms(self, model: nn.Sequential, swapped: nn.Sequential) -> list[float]:
        """Return the times of training steps: forward, backward, SGD; launched from Python behind a spin kernel."""
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(swapped(self._given), self._wanted).backward()
            optimizer.step()

        with torch.enable_grad():
            count, sample = max(6, self._asked.measure // 5), sampler(self._workshop.device)
            for _ in range(min(3, max(1, self._asked.warmup))):
                step()
            return [sample(step) for _ in range(count)]

    def _by_kind(self, name: str, model: nn.Sequential) -> list[KindRow]:
        """Return what each kind of layer takes of a pass: marks between the layers, inside one captured graph."""
        on_gpu = self._workshop.device.type == "cuda"
        spans = _spans_on_gpu(model, self._given) if on_gpu else _spans_on_cpu(model, self._given)
        kinds = [KINDS.get(type(module).__name__, "other") for module in model]
        totals: Mapping[str, float] = {
            kind: sum(span for span, each in zip(spans, kinds, strict=True) if each == kind)
            for kind in dict.fromkeys(kinds)
        }
        whole = sum(totals.values())
        return [KindRow(name, kind, kinds.count(kind), ms, 100 * ms / whole) for kind, ms in totals.items()]


_SPAN_SAMPLES = 20


def _spans_on_gpu(model: nn.Sequential, given: torch.Tensor) -> list[float]:
    marks = [graphs.timing_event() for _ in range(len(model) + 1)]

    def marked() -> torch.Tensor:
        x = given
        capturing = torch.cuda.is_current_stream_capturing()
        for mark, module in zip(marks[:-1], model, strict=True):
            if capturing:
                mark.record()
            x = module(x)
        if capturing:
            marks[-1].record()
        return x

    hider = graphs.LaunchHider()
    with graphs.capture(marked) as captured:
        samples = [
            hider.sample(
                captured.replay,
                lambda: [float(a.elapsed_time(b)) for a, b in itertools.pairwise(marks)],
            )
            for _ in range(_SPAN_SAMPLES)
        ]
    return [median(spans) for spans in zip(*samples, strict=True)]


def _spans_on_cpu(model: nn.Sequential, given: torch.Tensor) -> list[float]:
    spans, x = [], given
    for module in model:
        started_s = time.perf_counter()
        x = module(x)
        spans.append((time.perf_counter() - started_s) * 1e3)
    return spans
