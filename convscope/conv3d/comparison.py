"""The study of 3-D convolutions, layer by layer: verified against float64, timed, held against roofline and cuDNN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from convscope import failures
from convscope.conv3d.implementations import BENCHMARK, CUDNN, Implementations, Prepared, computes_in, provider
from convscope.conv3d.layersets import Layer3d, Triple
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import Conv3dRow, SampleRow
from convscope.convolution import backends, tolerance
from convscope.convolution.reference import Reference, reference
from convscope.convolution.roofline import Ceilings
from convscope.cudnn.shape import Convolution
from convscope.failures import Failure
from convscope.timing import summary
from convscope.timing.stopwatch import Stopwatch


def tensors(shape: Convolution, device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input and filters drawn from a normal distribution; the filters scaled so that outputs are near 1."""
    drawn = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    x = torch.randn(shape.input, generator=drawn, device=device)
    weight = torch.randn(shape.weight, generator=drawn, device=device)
    terms = weight[0].numel()
    return x.to(dtype), (weight / terms**0.5).to(dtype)


def allowed_error(name: str, layer: Layer3d, shape: Convolution) -> float:
    """Return the largest elementwise error to be expected of an implementation."""
    return tolerance.elementwise_tolerance(layer.terms, computes_in(name, shape), shape.dtype, "fft" in name)


class LayerComparison:
    """Goes through layers and implementations; `rows` and `samples` grow on the way.

    Args:
        limits: the ceilings of the device, None where nothing is timed.
        note: told of each layer in one line.
    """

    def __init__(
        self, asked: Conv3d, layers: Sequence[Layer3d], workshop: Implementations, limits: Ceilings | None,
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.asked, self.layers, self.rows = asked, layers, list[Conv3dRow]()
        self.samples: list[SampleRow] = []
        self._workshop, self._limits, self._note = workshop, limits, note

    def run(self, pause: Callable[[], bool]) -> None:
        """Do what was asked for, layer by layer.

        Args:
            pause: called after each layer; where it says True the study ends there.

        Raises:
            DeviceFaultError: the GPU is lost.
        """
        with torch.inference_mode(), backends.math(self.asked.math):
            for layer in self.layers:
                self._note(f"{layer.name}: {layer}")
                self.rows += with_ratios(self._layer(layer))
                if self._workshop.device.type == "cuda":
                    torch.cuda.empty_cache()
                if pause():
                    return

    def _layer(self, layer: Layer3d) -> list[Conv3dRow]:
        shape = layer.shape(self.asked.dtype, self.asked.math)
        try:
            x, weight = tensors(shape, self._workshop.device, self.asked.seed)
            expected = reference(x, weight, shape) if self.asked.verify else None
        except RuntimeError as error:
            found = failures.of_cell(error, self._workshop.device)
            return [self._failed(self._row(layer, name, shape), found) for name in self.asked.implementations]
        return [self._one(layer, name, shape, x, weight, expected) for name in self.asked.implementations]

    def _one(
        self, layer: Layer3d, name: str, shape: Convolution, x: torch.Tensor, weight: torch.Tensor,
        expected: Reference | None,
    ) -> Conv3dRow:  # fmt: skip
        row = self._row(layer, name, shape)
        reason = self._workshop.why_not(name, shape)
        if reason:
            return self._failed(row, Failure("unsupported", reason))
        try:
            return self._workshop.run(name, lambda: self._measured(row, layer, shape, x, weight, expected))
        except Exception as error:
            return self._failed(row, failures.of_cell(error, self._workshop.device))

    def _measured(
        self, row: Conv3dRow, layer: Layer3d, shape: Convolution, x: torch.Tensor, weight: torch.Tensor,
        expected: Reference | None,
    ) -> Conv3dRow:  # fmt: skip
        name = row.implementation
        with torch.inference_mode():
            ready = self._workshop.prepare(name, shape, weight)
            output = ready.call(x)
            row = dataclasses.replace(row, blocks=ready.said(), workspace_bytes=ready.workspace_bytes)
            if expected is not None:
                error, most = expected.error(output), allowed_error(name, layer, shape)
                row = dataclasses.replace(row, elementwise_error=error, tolerance=most)
                if not error <= most:
                    return self._failed(row, Failure("failed", f"elementwise error {error:.1e} over {most:.1e}"))
            del output
            return self._timed(row, layer, ready, x) if self.asked.compare else row

    def _timed(self, row: Conv3dRow, layer: Layer3d, ready: Prepared, x: torch.Tensor) -> Conv3dRow:
        asked = self.asked
        stopwatch = Stopwatch(self._workshop.device)
        times = stopwatch.measure(
            lambda: ready.call(x), samples=asked.measure, warmup=asked.warmup, budget_s=asked.budget_s
        ).all_ms
        self.samples += [SampleRow(row.layer, row.position, row.implementation, time) for time in times]
        found, interval = summary.summarize(times), summary.median_interval_ms(times)
        least_ms = None
        if self._limits is not None and row.arithmetic in self._limits.tflops:
            least_ms = self._limits.attainable_ms(layer.flops, row.bytes or 0, row.arithmetic)
        return dataclasses.replace(
            row,
            median_ms=found.median_ms,
            median_low_ms=interval[0] if interval else None,
            median_high_ms=interval[1] if interval else None,
            mean_ms=found.mean_ms,
            std_ms=found.std_ms,
            min_ms=found.min_ms,
            p95_ms=found.p95_ms,
            samples=found.count,
            tflops=layer.flops / found.median_ms / 1e9,
            attainable_ms=least_ms,
            ratio_to_roofline=None if least_ms is None else least_ms / found.median_ms,
        )

    def _row(self, layer: Layer3d, name: str, shape: Convolution) -> Conv3dRow:
        return Conv3dRow(
            layer=layer.name,
            position=layer.position,
            implementation=name,
            provider=provider(name),
            flops=layer.flops,
            bytes=layer.minimum_bytes(2 if shape.dtype == "float16" else 4),
            batch=layer.batch,
            channels=layer.channels,
            filters=layer.filters,
            groups=layer.groups,
            arithmetic=computes_in(name, shape),
            math=self.asked.math,
            dtype=self.asked.dtype,
            device=str(self._workshop.device),
            size=_dimensions(layer.size),
            kernel=_dimensions(layer.kernel),
            stride=_dimensions(layer.stride),
            padding=_dimensions(layer.padding),
            dilation=_dimensions(layer.dilation),
        )

    @staticmethod
    def _failed(row: Conv3dRow, failure: Failure) -> Conv3dRow:
        return dataclasses.replace(row, status=failure.status, reason=failure.reason)


def _dimensions(triple: Triple) -> str:
    return "x".join(map(str, triple))


def with_ratios(rows: Sequence[Conv3dRow]) -> list[Conv3dRow]:
    """Return the rows of one layer with what each takes beside cuDNN's fastest algorithm and PyTorch's benchmark."""
    times_ms = {row.implementation: row.median_ms for row in rows if row.median_ms is not None}
    best = min((name for name in times_ms if name in CUDNN), key=lambda name: times_ms[name], default=None)
    found = []
    for row in rows:
        if row.median_ms is not None and best is not None:
            row = dataclasses.replace(row, ratio_to_cudnn_best=times_ms[best] / row.median_ms, cudnn_best=best)
        if row.median_ms is not None and BENCHMARK in times_ms:
            row = dataclasses.replace(row, ratio_to_torch_benchmark=times_ms[BENCHMARK] / row.median_ms)
        found.append(row)
    return found


def is_broken(rows: Sequence[Conv3dRow]) -> bool:
    """Tell whether a row failed; what cannot be used is no failure."""
    return any(row.status not in ("ok", "unsupported") for row in rows)
