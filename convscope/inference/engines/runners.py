"""Runners of built engines: called, timed and kept busy, in this process or in a worker process.

A latency is one call of a batch while nothing else runs, until its result is complete. On a GPU it is the time between
two CUDA events, the first recorded on the idle stream before the call, so that it includes the host's launch and
excludes the host's waiting. Input and output stay on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from convscope.cli import programs
from convscope.cli.signals import WARNING, kept_from_children
from convscope.errors import WorkerError
from convscope.inference.engines import worker
from convscope.inference.serving import mlperf
from convscope.inference.serving.mlperf import undisturbed
from convscope.timing import graphs

_QUEUED_S = 0.02  # of calls that the host may run ahead


def method(device: torch.device) -> str:
    """Return the timing method of a call on a device."""
    return "CUDA events around a call, launch included" if device.type == "cuda" else "time.perf_counter around a call"


class Runner(worker.Timed, Protocol):
    """An engine with its input."""

    timing_method: str

    def output(self, images: torch.Tensor) -> torch.Tensor:
        """Put images (N × 3 × H × W, float32 on the CPU) in the input's place; return their output as float32 there."""

    def close(self) -> None:
        """Free everything."""


class LocalRunner:
    """An engine in this process.

    Args:
        step: enqueues one inference of `given` and returns its output.
        given: the input, on the device.
        captured: make a CUDA graph of the step; a call is then a replay of it.
        counted: PyTorch's allocator sees all that the engine holds.

    Attributes:
        result: the output of the last run, on the device.
        held_before_bytes: memory in PyTorch's allocator before the engine was built: not the engine's. PyTorch keeps a
            workspace of cuBLAS for each thread and stream, also of those that have ended.
    """

    held_before_bytes: int | None = None
    _host: torch.Tensor | None = None

    def __init__(self, step: Callable[[], torch.Tensor], given: torch.Tensor, captured: bool, counted: bool) -> None:
        self.given, self._on_gpu, self._counted = given, given.is_cuda, counted and given.is_cuda
        self.timing_method = method(given.device)
        self._at_end: list[Callable[[], None]] = []
        self.result = step()
        self._wait()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()

        def run() -> None:
            self.result = step()

        self._run: Callable[[], None] = run
        if captured:
            self.timing_method += ", replay of a CUDA graph"
            graph = graphs.capture(run)
            self._run = graph.replay
            self._at_end.append(graph.close)

    def output(self, images: torch.Tensor) -> torch.Tensor:
        """Put images in the input's place, run once and copy the output."""
        (self.given if self._host is None else self._host).copy_(images)
        self.call()
        return self.result.float().cpu()

    def answer(self, images: str, output: str) -> None:
        """Run once on the images of a NumPy file and write the output as another, in float32."""
        np.save(output, self.output(torch.from_numpy(np.load(images))).numpy())

    def copy_images(self) -> None:
        """Have each call copy its images from host memory, on a GPU pinned, and its output there."""
        run = self._run
        source = torch.empty_like(self.given, device="cpu", pin_memory=self._on_gpu).copy_(self.given)
        target = torch.empty(self.result.shape, dtype=self.result.dtype, pin_memory=self._on_gpu)

        def copied() -> None:
            self.given.copy_(source, non_blocking=True)
            run()
            target.copy_(self.result, non_blocking=True)

        self._host, self._run = source, copied
        self.timing_method += ", images copied from host memory, output copied back"

    def call(self) -> None:
        """Run once and wait for the result."""
        self._run()
        self._wait()

    def enqueue(self) -> torch.Tensor:
        """Enqueue one run on the current stream and return its output, which the next one may overwrite."""
        self._run()
        return self.result

    def latencies_ms(self, count: int) -> list[float]:
        """Time a number of calls, each alone."""
        with undisturbed():
            return [self._latency_ms() for _ in range(count)]

    def _latency_ms(self) -> float:
        if not self._on_gpu:
            started_s = time.perf_counter()
            self._run()
            return (time.perf_counter() - started_s) * 1e3
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        self._run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def window(self, seconds: float) -> tuple[int, float]:
        """Call repeatedly for about this long; the host runs ahead of the GPU by a few calls at most.

        The calls are shifted against a power sensor (`graphs.Shifts`).
        """
        each_s = max(1e-6, min(self.latencies_ms(3)) / 1e3)
        shifts = graphs.Shifts(each_s * 1e3)
        chunk = max(1, round(_QUEUED_S / 2 / each_s))
        ahead: list[torch.cuda.Event] = []
        with undisturbed():
            calls, started_s = 0, time.perf_counter()
            while time.perf_counter() - started_s < seconds:
                for _ in range(chunk):
                    self._run()
                    if self._on_gpu and (cycles := shifts.next_cycles()):
                        torch.cuda._sleep(cycles)
                calls += chunk
                if self._on_gpu:
                    ahead.append(torch.cuda.Event())
                    ahead[-1].record()
                    if len(ahead) > 1:
                        ahead.pop(0).synchronize()
            self._wait()
            return calls, time.perf_counter() - started_s

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of PyTorch's allocator since the engine was built, less the memory it held before."""
        return torch.cuda.max_memory_allocated() - (self.held_before_bytes or 0) if self._counted else None

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Register a function to call once the graph is freed."""
        self._at_end.append(callback)

    def close(self) -> None:
        """Free the graph."""
        for callback in self._at_end:
            callback()

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


_PATIENCE_S = 20.0  # for an idle process to end


class RemoteRunner:
    """A model in a worker process (`worker`); its methods raise `WorkerError` where the process ends.

    Attributes:
        ready: the first answer of the process, of which `load_s` (to load the model and to run it once), `version`
            (of the library) and `has_torch` (PyTorch is imported there) are parts.
    """

    def __init__(
        self, engine: str, command: Sequence[str], files: Sequence[object], folder: Path, timing_method: str
    ) -> None:
        """Start the process with a folder for its output and errors, and wait until the model is loaded.

        Args:
            files: of the model, the last arguments of the command; or those of several models, by rising batch size.
        """
        self.timing_method = timing_method
        self._command, self._files = command, files
        self._engine, self._errors = engine, folder / "errors.txt"
        self._images, self._output = folder / "images.npy", folder / "output.npy"
        if torch.cuda.is_initialized():  # memory that this process no longer uses is the worker's
            gc.collect()
            torch.cuda.empty_cache()
        with self._errors.open("wb") as errors, kept_from_children(WARNING):
            self._process = subprocess.Popen(
                [*command, *map(str, files)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=programs.environment(),
            )
        try:
            self.ready = self._answer()
            self.load_s, self.version = float(self.ready["load_s"]), str(self.ready["version"])
            self.has_torch = bool(self.ready["has_torch"])
        except BaseException:
            self.close()
            raise

    def _ask(self, model: int = 0, **command: Sequence[object]) -> Any:
        """Have one method of `worker.Work` called with these arguments, of one of the models; return its value."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, or its lack, says why
            self._process.stdin.write(json.dumps({"model": model, **command}) + "\n")
            self._process.stdin.flush()
        return self._answer()["value"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):  # empty, or a line cut off where the process ended
            raise WorkerError(f"{self._engine}: {self._last_message()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(f"{self._engine}: its process said {line.strip()!r}") from None
        return answer

    def _last_message(self) -> str:
        code = self._exit_code()
        errors = self._errors.read_text(errors="replace").strip()
        if code < 0:  # the real-time signals have no names
            name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
            call = re.search(r'Current thread .*\n  File "(.*)", line (\d+) in (\S+)', errors)  # by `faulthandler`
            place = f" in {call[3]} ({Path(call[1]).name}:{call[2]})" if call else ""
            return f"its process was ended by {name}{place}"
        return errors.splitlines()[-1] if errors else "the process ended without a word"

    def _exit_code(self) -> int:
        """Wait for the process to end, kill it where it does not, and return its exit code."""
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def output(self, images: torch.Tensor, model: int = 0) -> torch.Tensor:
        """Run one of the models there once on these images, and fetch the output."""
        np.save(self._images, images.numpy())
        self._ask(answer=[str(self._images), str(self._output)], model=model)
        return torch.from_numpy(np.load(self._output).astype(np.float32))

    def latencies_ms(self, count: int) -> list[float]:
        """Time a number of calls there, each alone."""
        return [float(time_ms) for time_ms in self._ask(latencies_ms=[count])]

    def window(self, seconds: float) -> tuple[int, float]:
        """Call repeatedly there; return the calls and the seconds."""
        calls, passed_s = self._ask(window=[seconds])
        return int(calls), float(passed_s)

    def call(self) -> None:
        """Run once there, and wait for the result."""
        self._ask(call=[])

    def together(self, others: Sequence[RemoteRunner], folder: Path) -> RemoteRunner:
        """Start a process that has this model and others of the same engine, for `load`."""
        files = [file for each in (self, *others) for file in each._files]
        return RemoteRunner(self._engine, self._command, files, folder, self.timing_method)

    def load(self, load: mlperf.Load, library: Path | None) -> mlperf.Outcome:
        """Put the models there under a load of MLPerf's.

        Args:
            library: NumPy file of the images (float32) that requests name; None where they lie in the inputs.
        """
        return mlperf.Outcome(**self._ask(load=[dataclasses.asdict(load), str(library or "")]))

    def copy_images(self) -> None:
        """Have each call there copy its images from host memory, and its output there."""
        self._ask(copy_images=[])
        self.timing_method += ", images copied from host memory, output copied back"

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of its memory there."""
        peak_bytes: int | None = self._ask(peak_memory_bytes=[])
        return peak_bytes

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._exit_code()
        self._process.stdout.close()


def module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a worker module of this package."""
    return [sys.executable, "-m", f"convscope.inference.engines.{name}", *map(str, arguments)]
