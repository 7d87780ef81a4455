"""CosmoFlow end to end: the network with an implementation in place of its convolutions, timed whole and by kind.

The network: five 3-D convolutions of 32 to 512 filters, each followed by a leaky ReLU and a pooling by 2, then layers
of 128, 64 and 4 (A. Mathuriya et al., "CosmoFlow", SC18; reference of MLPerf HPC). Input batch × 4 × 128³.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from convscope import failures
from convscope.conv3d import layersets
from convscope.conv3d.comparison import failed
from convscope.conv3d.implementations import Implementations, Prepared, why_not_here, why_not_in
from convscope.conv3d.request import LAYOUTS, Conv3d
from convscope.conv3d.rows import EndToEndRow, KindRow
from convscope.convolution import backends, tolerance
from convscope.failures import Failure
from convscope.kernels.conv3d import FMA_ONLY
from convscope.timing import summary
from convscope.timing.stopwatch import Stopwatch

CHANNELS, SIDE, WIDTH, DEPTH = 4, 128, 32, 5
_TARGETS = 4
_SLOPE = 0.3  # of the leaky ReLU, Keras's default
_LEARNING_RATE = 0.001
KINDS = {"Swapped": "convolution", "LeakyReLU": "activation", "MaxPool3d": "pooling", "Linear": "dense"}


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
        conv = ctx.original
        options = conv.stride, conv.padding, conv.dilation, False, [0, 0, 0], conv.groups
        needed = [ctx.needs_input_grad[0], True, False]
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(gradients[0], x, weight, None, *options, needed)
        return grad_x, grad_weight, None, None


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
        return nn.Sequential(*layers, nn.LeakyReLU(_SLOPE), nn.Linear(64, _TARGETS), nn.Tanh(), Scaled())


class Scaled(nn.Module):
    """Widens the range of the hyperbolic tangent, in the type of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input times 1.2."""
        return x * 1.2


def with_implementation(
    model: nn.Sequential, name: str, given: torch.Tensor, implementations: Implementations, request: Conv3d,
    layout: str = "ncdhw",
) -> nn.Sequential:  # fmt: skip
    """Return the network with its convolutions computed by an implementation in a layout; the weights are shared.

    Raises:
        NotSupportedError, NotImplementedError: the implementation cannot compute one of them.
    """
    modules: list[nn.Module] = []
    shape = tuple(given.shape)
    for module in model:
        if isinstance(module, nn.Conv3d):
            layer = layersets.describe("", 0, module, shape)
            convolution = layer.convolution(request.dtype, request.math, LAYOUTS[layout])
            reason = implementations.why_not(name, convolution)
            if reason:
                raise NotImplementedError(reason)
            modules.append(Swapped(module, implementations.prepare(name, convolution, module.weight)))
            shape = layer.output
        else:
            shape = (*shape[:2], *(extent // 2 for extent in shape[2:])) if isinstance(module, nn.MaxPool3d) else shape
            modules.append(module)
    return nn.Sequential(*modules)


class EndToEnd:
    """Times the network in one layout with one implementation after another and collects `rows` and `kinds`.

    In channels last the whole network is in it, weights too.

    Args:
        side: of the input's cube, in voxels; `width` is the number of filters of the first convolution. Both are the
            paper's by default, smaller in tests.
    """

    def __init__(
        self, request: Conv3d, implementations: Implementations, batch: int, layout: str = "ncdhw", side: int = SIDE,
        width: int = WIDTH,
    ) -> None:  # fmt: skip
        self.rows: list[EndToEndRow] = []
        self.kinds: list[KindRow] = []
        self._request, self._implementations, self._side, self._width = request, implementations, side, width
        self._stopwatch = Stopwatch(implementations.device)
        self._batch, self._layout = batch, layout
        self._memory = backends.memory_format(LAYOUTS[layout], 3)
        self._expected: torch.Tensor | None = None

    def _model(self) -> nn.Sequential:
        model = network(self._request.seed, self._side, self._width)
        model = model.to(self._implementations.device, getattr(torch, self._request.dtype))
        return model.to(memory_format=self._memory)

    def run(self, note: Callable[[str], None], pause: Callable[[], bool]) -> None:
        """Time every implementation of the request.

        Args:
            pause: called after each; the study ends where it returns True.

        Raises:
            DeviceFaultError: the GPU is lost.
        """
        request, device = self._request, self._implementations.device
        with backends.math(request.math):
            for name in request.implementations:
                note(f"end to end, {self._layout.upper()}: {name}")
                row = EndToEndRow(
                    name, self._layout, batch=self._batch, math=request.math, dtype=request.dtype, device=str(device)
                )
                self.rows.append(self._one(row))
                if pause():
                    return

    def _one(self, row: EndToEndRow) -> EndToEndRow:
        device = self._implementations.device
        if reason := why_not_here(row.implementation, device) or why_not_in(row.implementation, LAYOUTS[self._layout]):
            return failed(row, Failure("unsupported", reason))
        try:
            self._prepare()
            row, model, swapped = self._implementations.run(row.implementation, partial(self._measured, row))
            if row.status != "ok":
                return row
            train = partial(self._training_ms, model, swapped)
            steps = self._implementations.train(row.implementation, train)
        except Exception as error:
            return failed(row, failures.of_cell(error, device))
        first, last = summary.median_interval_ms(steps) or (None, None)
        return dataclasses.replace(row, training_step_ms=median(steps), training_low_ms=first, training_high_ms=last)

    def _prepare(self) -> None:
        """Draw the input and compute the network's output in float32 without TF32, once."""
        if self._expected is not None:
            return
        dtype, device, side = getattr(torch, self._request.dtype), self._implementations.device, self._side
        generator = torch.Generator(device=device).manual_seed(self._request.seed)
        given = torch.randn(self._batch, CHANNELS, side, side, side, generator=generator, device=device).to(dtype)
        self._given = backends.laid(given, LAYOUTS[self._layout])
        self._target = torch.zeros(self._batch, _TARGETS, dtype=dtype, device=device)
        with backends.math("fp32"), torch.inference_mode():
            self._expected = self._model().float()(self._given.float()).double()

    def _measured(self, row: EndToEndRow) -> tuple[EndToEndRow, nn.Sequential, nn.Sequential]:
        """Return the row with the inference pass, the network and the one with the implementation put in."""
        request, model = self._request, self._model()
        swapped = with_implementation(
            model, row.implementation, self._given, self._implementations, request, self._layout
        )
        with torch.inference_mode():
            output = swapped(self._given).double()
            assert self._expected is not None
            error = float((output - self._expected).norm() / self._expected.norm())
            allowed = self._tolerance(row.implementation)
            row = dataclasses.replace(row, relative_error=error, tolerance=allowed)
            if not error <= allowed:
                why = f"its output differs from float32 by {error:.1e}, {allowed:.1e} is allowed"
                return failed(row, Failure(tolerance.WRONG, why)), model, swapped
            passes = self._stopwatch.measure(
                partial(swapped, self._given), samples=request.measure, warmup=request.warmup, budget_s=request.budget_s
            ).all_ms
            self.kinds += self._by_kind(row.implementation, swapped)
        low, high = summary.median_interval_ms(passes) or (None, None)
        row = dataclasses.replace(row, inference_ms=median(passes), inference_low_ms=low, inference_high_ms=high)
        return row, model, swapped

    def _tolerance(self, name: str) -> float:
        """Return the largest error to be expected: a matrix unit truncates to one side, so layers add up."""
        request = self._request
        matrix = "fp16" if request.dtype == "float16" else request.math
        arithmetic = "fp32" if name in FMA_ONLY else matrix
        terms = [weight[0].numel() for weight in self._model().parameters() if weight.dim() > 1]
        return sum(tolerance.elementwise_tolerance(count, arithmetic, request.dtype, "fft" in name) for count in terms)

    def _training_ms(self, model: nn.Sequential, swapped: nn.Sequential) -> list[float]:
        """Time training steps: forward, backward, SGD; launched from Python behind a spin kernel."""
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(swapped(self._given), self._target).backward()
            optimizer.step()

        with torch.enable_grad():
            samples, warmup = max(6, self._request.measure // 5), min(3, max(1, self._request.warmup))
            return self._stopwatch.launched(step, samples=samples, warmup=warmup).all_ms

    def _by_kind(self, name: str, model: nn.Sequential) -> list[KindRow]:
        """Return the time of each kind of layer in a pass."""
        spans = self._stopwatch.spans_ms(list(model), self._given)
        kinds = [KINDS.get(type(module).__name__, "other") for module in model]
        totals = dict.fromkeys(kinds, 0.0)
        for kind, span in zip(kinds, spans, strict=True):
            totals[kind] += span
        whole = sum(totals.values())
        return [
            KindRow(name, kind, kinds.count(kind), ms, 100 * ms / whole, self._layout) for kind, ms in totals.items()
        ]
