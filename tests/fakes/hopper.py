"""Kernels compiled for Hopper in place of launched, and what the compiler made of them: no GPU is needed for that."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from convscope.kernels import descriptors, following

META = torch.device("meta")
COPIES = "copy_channels_last", "copy_rounded", "pack_filters"  # kernels that let the next one start at their end


class Hopper:
    """A driver of a card that only compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return META


def compiling(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list that every kernel launched from here on is added to, compiled in place of launched."""
    found: list[Any] = []
    launch = JITFunction.run

    def only_compile(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found.append(launch(self, *arguments, grid=grid, warmup=True, **options))
        return found[-1]

    monkeypatch.setattr(JITFunction, "run", only_compile)
    monkeypatch.setattr(following, "options", lambda x: {"EARLY": True, "launch_pdl": True})
    monkeypatch.setattr(descriptors, "can_round", lambda device=None: True)
    monkeypatch.setattr(driver, "_active", Hopper())
    return found


def assembled(ptx: str, folder: Path) -> str:
    """Return what the assembler says of a kernel: its registers, spills and warnings."""
    path = folder / "kernel.ptx"
    path.write_text(ptx)
    command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(path), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def check_wait(made: Any) -> None:
    """Check that a kernel waits for the one before it before it touches memory, and when it lets the next one start.

    A copy does so after all that it writes, any other kernel at once.
    """
    ptx = made.asm["ptx"]
    waits, lets = ptx.index("griddepcontrol.wait"), ptx.index("griddepcontrol.launch_dependents")
    touches = r"ld\.global|st\.global|cp\.async\.c[ag]|cp\.async\.bulk\.tensor|atom\."
    touched = [each.start() for each in re.finditer(touches, ptx)]
    assert touched
    assert waits < min(touched)
    if made.name in COPIES:
        assert max(touched) < lets
    else:
        assert waits < lets < min(touched)
