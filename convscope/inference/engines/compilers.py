"""Engines of PyTorch's compiler: `compile`, `compile-max` and `aot`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from convscope.errors import MissingError
from convscope.inference.engines import runners, variants
from convscope.inference.engines.runners import LocalRunner, RemoteRunner
from convscope.inference.engines.workload import BuildCost, Engine, Workload

# Weights are constants of the compiled model: their layout is chosen once, and on a CPU they are packed.
_FROZEN: dict[str, Any] = {"freezing": True}
# Autotuning does not choose between these: it times a matrix product only where the convolution is made one.
_WAYS_OF_1X1: Mapping[str, Mapping[str, Any]] = {
    "1x1 as convolutions": {},
    "1x1 as matrix products": {"conv_1x1_as_mm": True},
}


def compiled(workload: Workload) -> Engine:
    """Build the model compiled by `torch.compile`'s default, called from Python."""
    return _compiled(workload, dict(_FROZEN), captured=False)


def compiled_graph(workload: Workload) -> Engine:
    """Build the model compiled by `torch.compile`'s default, as a CUDA graph."""
    workload.needs_gpu("compile-graph")
    return _compiled(workload, dict(_FROZEN), captured=True)


def compiled_overhead(workload: Workload) -> Engine:
    """Build the model compiled by the mode "reduce-overhead": PyTorch's compiler makes the CUDA graphs.

    It runs in a worker process: those graphs belong to the main thread.
    """
    workload.needs_gpu("compile-overhead")
    return _in_worker(workload, "compile-overhead")


def compiled_most(workload: Workload) -> Engine:
    """Build the model compiled by max-autotune, on a GPU as a CUDA graph.

    It runs in a worker process: PyTorch's compiler has crashed over candidates that it tried.
    """
    if not workload.on_gpu:
        _needs_compiler()
    return _in_worker(workload, "compile-max")


def _in_worker(workload: Workload, name: str) -> Engine:
    path = workload.folder / "workload.pt"
    torch.save(replace(workload, make_bench=_not_here, note=print, more=_not_here), path)
    command = runners.module("torch_worker", "engine", name, torch.get_num_threads())
    runner = RemoteRunner(name, command, [path], workload.folder, "")
    runner.timing_method = f"{runner.ready['timing_method']}, in a separate process"
    return runner, BuildCost(**runner.ready["setup"])


def _not_here(*_: object) -> Any:
    raise NotImplementedError("an engine in a worker process has neither a bench nor further images")


def compiled_here(name: str, workload: Workload) -> tuple[LocalRunner, BuildCost]:
    """Build the engine of a worker process by its name, in this process."""
    if name == "compile-overhead":
        options = torch._inductor.list_mode_options("reduce-overhead")
        return _compiled(workload, {**options, **_FROZEN}, captured=False)
    options = torch._inductor.list_mode_options("max-autotune-no-cudagraphs") | _FROZEN  # captured here, as every graph
    if not workload.on_gpu:
        return _compiled(workload, options, captured=False)
    _, remark = workload.folded()
    started_s = time.perf_counter()

    def build(changes: Mapping[str, Any]) -> LocalRunner:
        return _compiled(workload, {**options, **changes}, captured=True)[0]

    builds = {way: partial(build, changes) for way, changes in _WAYS_OF_1X1.items()}
    runner, best, tried = variants.fastest_of(builds)  # the compiler's cache has the best one
    remark = f"{remark}; best of {tried}: {best}"
    return runner, BuildCost(compile_s=time.perf_counter() - started_s, remark=remark)


def _compiled(workload: Workload, options: dict[str, Any], captured: bool) -> tuple[LocalRunner, BuildCost]:
    if not workload.on_gpu:  # there Triton needs a C compiler only
        _needs_compiler()
    model, remark = workload.folded()
    model, given = workload.placed(model), workload.input()
    function = torch.compile(model, dynamic=False, options=options)
    started_s = time.perf_counter()
    function(given)  # the first call compiles
    if workload.on_gpu:
        torch.cuda.synchronize()
    compile_s = time.perf_counter() - started_s
    return workload.local(lambda: function(given), given, captured), BuildCost(compile_s=compile_s, remark=remark)


def aot(workload: Workload) -> Engine:
    """Build an AOTInductor package: compiled into a file, run in a worker process without the Python model."""
    return _package(workload, "aot", captured=False)


def aot_graph(workload: Workload) -> Engine:
    """Build an AOTInductor package that is run as a CUDA graph."""
    workload.needs_gpu("aot-graph")
    return _package(workload, "aot-graph", captured=True)


def _package(workload: Workload, name: str, captured: bool) -> Engine:
    _needs_shared_library(_needs_compiler())
    model, remark = workload.folded()
    model, given = workload.placed(model), workload.input()
    started_s = time.perf_counter()
    exported = torch.export.export(model, (given,))
    exported_s = time.perf_counter()
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(workload.folder / "model.pt2"), inductor_configs=dict(_FROZEN)
    )
    compile_s = time.perf_counter() - exported_s
    input_path, threads = workload.folder / "input.pt", torch.get_num_threads()
    torch.save(given, input_path)
    del model, exported, given
    command = runners.module("torch_worker", "package", workload.device, workload.math, threads, int(captured))
    runner = RemoteRunner(name, command, [path, input_path], workload.folder, "")
    runner.timing_method = f"{runner.ready['timing_method']}, in a separate process"
    size_bytes, compile_s = Path(path).stat().st_size, compile_s + runner.load_s
    return runner, BuildCost(exported_s - started_s, compile_s, size_bytes, remark, files=(Path(path),))


def _needs_compiler() -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which((shlex.split(compiler) or [""])[0]) is None:  # `ccache g++` is two words
        raise MissingError(
            f"a C++ compiler is needed, and {compiler} is not here: install g++ (Debian: apt install g++), "
            "or name another in CXX"
        )
    return compiler


def _needs_shared_library(compiler: str) -> None:
    """Refuse a compiler that has only a static libstdc++.

    A package with it inside ends the process that loads it by SIGSEGV in `std::regex` (PyTorch 2.11, g++ 13.3): it
    meets PyTorch's shared one.
    """
    if not _has(compiler, "libstdc++.so") and _has(compiler, "libstdc++.a"):
        raise MissingError(
            f"aot needs a C++ compiler with a shared libstdc++, and {compiler} has a static one only, with which a "
            "package crashes when it is loaded: name another in CXX (CXX=/usr/bin/g++)"
        )


def _has(compiler: str, library: str) -> bool:
    """Tell whether a compiler finds a library: it prints a path, and else the bare name."""
    command = [*shlex.split(compiler), f"-print-file-name={library}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and os.path.isabs(done.stdout.strip())
