"""The engines that PyTorch's compiler makes: `compile`, `compile-max` and `aot`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from convscope.errors import MissingError
from convscope.inference.engines import runners
from convscope.inference.engines.runners import LocalRunner, RemoteRunner, method
from convscope.inference.engines.workload import BuildCost, Engine, Workload

# Weights are constants of what is compiled: their layout is chosen once, and on a CPU they are packed.
_FROZEN: dict[str, Any] = {"freezing": True}
# 1×1 convolutions as matrix products, for which there are more kernels to choose from, with the ReLU inside them.
_MOST: dict[str, Any] = {"conv_1x1_as_mm": True}
_MODE_MOST = "max-autotune-no-cudagraphs"  # the graph is captured here, as every engine's


def compiled(task: Workload) -> Engine:
    """`torch.compile` by its default, called from Python."""
    return _compiled(task, dict(_FROZEN), captured=False)


def compiled_most(task: Workload) -> Engine:
    """`torch.compile` that tries everything (max-autotune), as a CUDA graph where there is a GPU.

    In a process of its own: PyTorch's compiler has crashed over what it tried.
    """
    _needs_compiler_on_cpu(task)
    return apart("compile-max", task)


def _compiled_most_here(task: Workload) -> tuple[LocalRunner, BuildCost]:
    options = {**torch._inductor.list_mode_options(_MODE_MOST), **_FROZEN, **_MOST}
    return _compiled(task, options, captured=task.on_gpu)


def _compiled(task: Workload, options: dict[str, Any], captured: bool) -> tuple[LocalRunner, BuildCost]:
    _needs_compiler_on_cpu(task)
    model, remark = task.folded()
    model, given = task.placed(model), task.input()
    function = torch.compile(model, dynamic=False, options=options)
    compile_s = _first_s(task, lambda: function(given))
    return task.local(lambda: function(given), captured=captured), BuildCost(compile_s=compile_s, remark=remark)


APART: dict[str, Callable[[Workload], tuple[LocalRunner, BuildCost]]] = {"compile-max": _compiled_most_here}
_NOT_SENT = ("make_bench", "note")


def apart(name: str, task: Workload) -> Engine:
    """Set an engine of `APART` up in a process of its own (`torch_worker`)."""
    path = task.folder / "task.pt"
    torch.save(
        {field.name: getattr(task, field.name) for field in fields(Workload) if field.name not in _NOT_SENT}, path
    )
    command = runners.module("torch_worker", name, path, torch.get_num_threads())
    runner = RemoteRunner(name, command, task.folder, "")
    runner.timing_method = f"{runner.ready['timing_method']}, in a process of its own"
    return runner, BuildCost(**runner.ready["setup"])


def saved_task(path: str) -> Workload:
    """Read what `apart` saved: pickled objects, from this user's own temporary directory alone."""

    def unavailable(*_: object) -> Any:
        raise NotImplementedError("an engine in a process of its own has no bench")

    return Workload(**torch.load(path, weights_only=False), make_bench=unavailable, note=print)


def aot(task: Workload) -> Engine:
    """An AOTInductor package: compiled into a file, run in a process that never saw the Python model."""
    _needs_shared_library(_needs_compiler())
    model, remark = task.folded()
    model, given = task.placed(model), task.input()
    started_s = time.perf_counter()
    exported = torch.export.export(model, (given,))
    exported_s = time.perf_counter()
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(task.folder / "model.pt2"), inductor_configs=dict(_FROZEN)
    )
    compile_s = time.perf_counter() - exported_s
    torch.save(given, task.folder / "input.pt")
    del model, exported, given
    command = runners.module(
        "aot_worker", path, task.folder / "input.pt", task.device, task.math, torch.get_num_threads()
    )
    runner = RemoteRunner("aot", command, task.folder, f"{method(task.device)}, in a process of its own")
    return runner, BuildCost(exported_s - started_s, compile_s + runner.load_s, Path(path).stat().st_size, remark)


def _first_s(task: Workload, step: Callable[[], object]) -> float:
    """Run a step for the first time, which compiles, and return how long that took."""
    started_s = time.perf_counter()
    step()
    if task.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


def _needs_compiler_on_cpu(task: Workload) -> None:
    if not task.on_gpu:  # there Triton needs a C compiler only
        _needs_compiler()


def _needs_compiler() -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(_words(compiler)[0]) is None:
        raise MissingError(
            f"a C++ compiler is needed, and {compiler} is not here: install g++ (Debian: apt install g++), "
            "or name another in CXX"
        )
    return compiler


def _needs_shared_library(compiler: str) -> None:
    """Refuse a compiler that comes with a static libstdc++ alone.

    A package that has it inside ends the process that loads it, by SIGSEGV in `std::regex` (PyTorch 2.11, g++ 13.3):
    it meets the shared one of PyTorch.
    """
    if not _has(compiler, "libstdc++.so") and _has(compiler, "libstdc++.a"):
        raise MissingError(
            f"aot needs a C++ compiler with a shared libstdc++, and {compiler} has a static one only, with which a "
            "package crashes when it is loaded: name another in CXX (CXX=/usr/bin/g++)"
        )


def _has(compiler: str, library: str) -> bool:
    """Tell whether a compiler knows where a library is: it prints a path, and else the bare name."""
    command = [*_words(compiler), f"-print-file-name={library}"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return said.returncode == 0 and os.path.isabs(said.stdout.strip())


def _words(compiler: str) -> list[str]:
    """Split what CXX holds: `ccache g++` is two words."""
    return shlex.split(compiler) or [""]
