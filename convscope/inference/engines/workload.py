"""Workload an engine is built for, and the cost of building it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from convscope.convolution import backends
from convscope.convolution.fusion import graphs
from convscope.errors import MissingError
from convscope.inference.engines.runners import LocalRunner, Runner
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Workload:
    """Model and its input (N × 3 × H × W), both in float32 on the CPU, and the setting of an engine.

    Attributes:
        folder: an empty directory for the engine's files, gone when the cell is done.
        make_bench: makes the bench that times a model's layers (`cudnn-best`).
        more: returns further images like `given`, so many (`fused-int8` takes ranges from them).
    """

    name: str
    model: nn.Module
    given: torch.Tensor
    device: torch.device
    dtype: str
    layout: str
    math: str
    folder: Path
    make_bench: Callable[[Run, nn.Module], Bench]
    note: Callable[[str], None]
    more: Callable[[int], torch.Tensor]

    @property
    def on_gpu(self) -> bool:
        """The device is a GPU."""
        return self.device.type == "cuda"

    def input(self, layout: str | None = None) -> torch.Tensor:
        """Return the input on the device, in the engine's data type and layout."""
        return self.as_input(self.given, layout)

    def as_input(self, images: torch.Tensor, layout: str | None = None) -> torch.Tensor:
        """Return images on the device, in the engine's data type and layout."""
        memory = backends.LAYOUTS[layout or self.layout]
        return images.to(self.device, DTYPES[self.dtype]).contiguous(memory_format=memory)

    def placed(self, model: nn.Module) -> nn.Module:
        """Move a model that nothing else uses to the device, in the engine's data type and layout."""
        return model.to(self.device, DTYPES[self.dtype]).to(memory_format=backends.LAYOUTS[self.layout])

    def local(
        self, step: Callable[[], torch.Tensor], given: torch.Tensor, captured: bool = False, counted: bool = True
    ) -> LocalRunner:
        """Return a runner in this process; see `runners.LocalRunner`."""
        return LocalRunner(step, given, captured, counted)

    def folded(self) -> tuple[nn.Module, str]:
        """Return the model with its batch normalisation folded, and a remark that counts it."""
        model, done, count = graphs.folded(self.model)
        return model, f"{done} of {count} batch normalisations folded"

    def needs_gpu(self, engine: str) -> None:
        """Raise `MissingError` where the device is no GPU."""
        if not self.on_gpu:
            raise MissingError(f"{engine} needs an NVIDIA GPU: run where one is, with --device cuda")


@dataclass(frozen=True)
class BuildCost:
    """Cost of building an engine: seconds of its steps, bytes of its files, a remark; and the layout it runs in.

    Attributes:
        files: what is deployed, in the workload's folder.
    """

    export_s: float | None = None
    compile_s: float | None = None
    disk_bytes: int | None = None
    remark: str | None = None
    layout: str | None = None
    files: tuple[Path, ...] = ()


Engine = tuple[Runner, BuildCost]
"""A built engine: its runner, and the cost of building it."""
