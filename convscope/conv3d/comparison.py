"""The study of 3-D convolutions, layer by layer: verified against float64, timed, held against roofline and cuDNN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from convscope import failures
from convscope.conv3d.implementations import CUDNN, TORCHS, Implementations, Prepared, computes_in, provider
from convscope.conv3d.request import LAYOUTS, Conv3d
from convscope.conv3d.rows import Conv3dRow, EndToEndRow, SampleRow, StressRow
from convscope.convolution import backends, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.reference import Reference, reference
from convscope.convolution.roofline import Ceilings
from convscope.convolution.sources.table import EXTENTS
from convscope.cudnn.shape import Convolution, dimensions
from convscope.failures import Failure
from convscope.storage.table import fill
from convscope.timing import summary
from convscope.timing.stopwatch import Stopwatch

Row = TypeVar("Row", Conv3dRow, StressRow, EndToEndRow)
Verified = TypeVar("Verified", Conv3dRow, StressRow)


def tensors(shape: Convolution, device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input and filters in the layout of a shape, drawn from a normal distribution.

    The same numbers in each layout; the filters are scaled so that outputs are near 1.
    """
    drawn = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    x = torch.randn(shape.input, generator=drawn, device=device)
    weight = torch.randn(shape.weight, generator=drawn, device=device)
    terms = weight[0].numel()
    return backends.laid(x.to(dtype), shape.layout), backends.laid((weight / terms**0.5).to(dtype), shape.layout)


def allowed_error(name: str, layer: Layer, shape: Convolution) -> float:
    """Return the largest elementwise error to be expected of an implementation."""
    return tolerance.elementwise_tolerance(layer.terms, computes_in(name, shape), shape.dtype, "fft" in name)


def verified(row: Verified, error: float, layer: Layer, shape: Convolution) -> Verified:
    """Return the row of an implementation with its elementwise error: wrong where that is more than is allowed."""
    most = allowed_error(row.implementation, layer, shape)
    row = dataclasses.replace(row, elementwise_error=error, tolerance=most)
    wrong = Failure(tolerance.WRONG, f"elementwise error {error:.1e} over {most:.1e}")
    return row if error <= most else failed(row, wrong)


def failed(row: Row, failure: Failure) -> Row:
    """Return the row with the status and the reason of a failure."""
    return dataclasses.replace(row, status=failure.status, reason=failure.reason)


class LayerComparison:
    """One layer in one layout by the implementations that are asked for; `run` fills `rows` and `samples`.

    Args:
        limits: the ceilings of the device, None where nothing is timed.
    """

    def __init__(
        self, request: Conv3d, layer: Layer, layout: str, implementations: Implementations, limits: Ceilings | None
    ) -> None:
        self.rows: list[Conv3dRow] = []
        self.samples: list[SampleRow] = []
        self._request, self._layer, self._implementations, self._limits = request, layer, implementations, limits
        self._layout, self._shape = layout, layer.convolution(request.dtype, request.math, LAYOUTS[layout])

    def run(self) -> None:
        """Verify and time what was asked for.

        Raises:
            DeviceFaultError: the GPU is lost.
        """
        with torch.inference_mode(), backends.math(self._request.math):
            self.rows = with_ratios(self._rows())
            if self._implementations.device.type == "cuda":
                torch.cuda.empty_cache()

    def _rows(self) -> list[Conv3dRow]:
        rows = [self._row(name) for name in self._request.implementations]
        reasons = [self._implementations.why_not(row.implementation, self._shape) for row in rows]
        refused = [failed(row, Failure("unsupported", reason or "")) for row, reason in zip(rows, reasons, strict=True)]
        if all(reasons):
            return refused
        try:
            x, weight = tensors(self._shape, self._implementations.device, self._request.seed)
            expected = reference(x, weight, self._shape) if self._request.verify else None
        except RuntimeError as error:
            found = failures.of_cell(error, self._implementations.device)
            return [failed(row, found) for row in rows]
        return [
            no if reason else self._one(row, x, weight, expected)
            for row, no, reason in zip(rows, refused, reasons, strict=True)
        ]

    def _one(self, row: Conv3dRow, x: torch.Tensor, weight: torch.Tensor, expected: Reference | None) -> Conv3dRow:
        name = row.implementation

        def measured() -> Conv3dRow:
            with torch.inference_mode():
                ready = self._implementations.prepare(name, self._shape, weight)
                output = ready.call(x)
                found = dataclasses.replace(row, blocks=ready.said(), workspace_bytes=ready.workspace_bytes)
                memory = backends.memory_format(self._shape.layout, len(self._shape.kernel))
                if not output.is_contiguous(memory_format=memory):
                    return failed(found, Failure("unsupported", f"its output is not in {self._layout.upper()} here"))
                if expected is not None:
                    found = verified(found, expected.error(output), self._layer, self._shape)
                del output
                return self._timed(found, ready, x) if self._request.compare and found.status == "ok" else found

        try:
            return self._implementations.run(name, measured)
        except Exception as error:
            return failed(row, failures.of_cell(error, self._implementations.device))

    def _timed(self, row: Conv3dRow, ready: Prepared, x: torch.Tensor) -> Conv3dRow:
        times = self._times_ms(lambda: ready.call(x))
        self.samples += [SampleRow(row.layer, row.position, row.implementation, time, row.layout) for time in times]
        packing_ms = None if ready.pack is None else summary.summarize(self._times_ms(ready.pack)).median_ms
        found = summary.summarize(times)
        low_ms, high_ms = summary.median_interval_ms(times) or (None, None)
        least_ms = None
        if self._limits is not None and row.arithmetic in self._limits.tflops:
            least_ms = self._limits.attainable_ms(self._layer.flops, row.bytes or 0, row.arithmetic)
        return fill(
            Conv3dRow, found, row, samples=found.count, median_low_ms=low_ms, median_high_ms=high_ms,
            tflops=self._layer.flops / found.median_ms / 1e9, attainable_ms=least_ms, packing_ms=packing_ms,
            ratio_to_roofline=None if least_ms is None else least_ms / found.median_ms,
        )  # fmt: skip

    def _times_ms(self, work: Callable[[], object]) -> list[float]:
        request, stopwatch = self._request, Stopwatch(self._implementations.device)
        return stopwatch.measure(work, samples=request.measure, warmup=request.warmup, budget_s=request.budget_s).all_ms

    def _row(self, name: str) -> Conv3dRow:
        layer, shape = self._layer, self._shape
        return fill(
            Conv3dRow, layer, self._request, layer=layer.name, implementation=name, provider=provider(name),
            layout=self._layout,
            bytes=layer.minimum_bytes(2 if shape.dtype == "float16" else 4), channels=layer.in_channels,
            filters=layer.out_channels, arithmetic=computes_in(name, shape), device=str(self._implementations.device),
            **{extent: dimensions(getattr(layer, extent)) for extent in EXTENTS},
        )  # fmt: skip


def with_ratios(rows: Sequence[Conv3dRow]) -> list[Conv3dRow]:
    """Return the rows of one layer with what each takes beside cuDNN's fastest algorithm and PyTorch's fastest way.

    Each is compared with those of its own layout. Where filters are packed once, calls with that, by whom it concerns,
    are compared too: for whoever cannot keep packed filters.
    """
    timed = [(row.layout, row.implementation, row.median_ms, row.packing_ms or 0.0) for row in rows if row.median_ms]
    found = []
    for row in rows:
        own = {name: time_ms for layout, name, time_ms, _ in timed if layout == row.layout}
        whole = {name: time_ms + packing_ms for layout, name, time_ms, packing_ms in timed if layout == row.layout}
        cudnn = min((name for name in own if name in CUDNN), key=own.__getitem__, default=None)
        torchs = min((name for name in own if name in TORCHS), key=own.__getitem__, default=None)
        if row.median_ms is not None and cudnn is not None:
            row = dataclasses.replace(row, ratio_to_cudnn_best=own[cudnn] / row.median_ms, cudnn_best=cudnn)
        if row.median_ms is not None and torchs is not None:
            least_ms = min(whole[name] for name in whole if name in TORCHS)
            packed = None if row.packing_ms is None else least_ms / whole[row.implementation]
            ratio = own[torchs] / row.median_ms
            row = dataclasses.replace(row, ratio_to_torch_best=ratio, torch_best=torchs, ratio_with_packing=packed)
        found.append(row)
    return found


def is_broken(rows: Sequence[Conv3dRow]) -> bool:
    """Tell whether a row failed; what cannot be used is no failure."""
    return any(row.status not in ("ok", "unsupported") for row in rows)
