"""Classification of errors: a row with a status and a reason, the loss of the device, or an error of the program.

Each study asks `of_cell` when a cell raises. Nothing slow is imported: Triton's and PyTorch's compilers' own error
classes are recognised by package and name.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch.nn.modules import module

from convscope import errors

_FAILED = (
    *(errors.CudnnError, errors.HostTooSlowError, errors.NotCapturableError, errors.WorkerError),
    errors.HookMismatchError,
    subprocess.CalledProcessError,
)
# Beginnings of the messages with which CUDA and its libraries refuse a call.
_REFUSED_BY_CUDA = ("CUDA error", "CUDA driver error", "cuDNN error", "FIND was unable", "GET was unable")
_REFUSED_BY_ONNX_RUNTIME = "Error in execution: Non-zero status code"  # a call with bound tensors
_REFUSED_BY_TRITON = ("Triton Error", "PassManager::run failed")  # a launch or a tensor map; the compiler
_REQUESTED = re.compile(r"tried to allocate ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_FULL_BY_CUDA = re.compile(r"(CUDA( driver)? error|Triton Error \[CUDA\]): out of memory")
_FULL_BY_ONNX_RUNTIME = re.compile(r"CUDA failure 2: out of memory|Failed to allocate memory for requested buffer")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# Classes of Triton's and PyTorch's by name: importing them takes seconds.
_TRITON_LIMITS = {"OutOfResources"}
_TRITON_FAILURES = {"PTXASError", "CompilationError"}
_ONNX_RUNTIME = {"Fail", "NotImplemented", "RuntimeException", "InvalidArgument", "InvalidGraph", "EPFail"}
_COMPILERS = {"TorchDynamoException", "OnnxExporterError", "CppCompileError", "InvalidCxxCompiler"}


_PACKAGE = os.path.dirname(__file__)
_OWN = _PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "profiler.py")
_MODULES = module.__file__  # through which each call of a module goes
_PASSES_ON = ("__torch_dispatch__", "__torch_function__")
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # as `cli.signals`


@dataclass(frozen=True)
class Failure:
    """Status and reason of a cell without figures, and the memory (bytes) that could not be allocated."""

    status: str
    reason: str
    asked_bytes: int | None = None


def of_cell(error: Exception, device: torch.device, where: str = "") -> Failure:
    """Return the row's status and reason for an error of one cell; `where` names it if the device is lost.

    Raises:
        DeviceFaultError: the device is lost with it.
        CompilerEndedError: as `classify` says.
        Exception: the error itself, where it is none of a cell's own.
    """
    raise_if_lost(device, where)
    failure = classify(error) or of_model(error)
    if failure is None:
        raise error
    return failure


def classify(error: Exception) -> Failure | None:
    """Return the row's status and reason for an error of one cell, None for an error of the program.

    Raises:
        CompilerEndedError: the signal that asks the run to end has ended a compiler.
    """
    if ended := _ended_compiler(error):
        command = ended.cmd.split() if isinstance(ended.cmd, str) else ended.cmd
        name, said = os.path.basename(command[0]), signal.Signals(-ended.returncode).name.removeprefix("SIG")
        raise errors.CompilerEndedError(f"{name} was ended by {said}: {errors.CONTINUE}") from error
    for link in chain(error):  # an allocation that fails during a graph's capture comes out as the capture's error
        if _is_out_of_memory(link):
            return Failure("oom", _line(link), asked_bytes(str(link)))
    status = "unsupported" if _is_unsupported(error) else "failed" if _is_failed(error) else None
    return Failure(status, _line(error)) if status else None


def of_model(error: Exception) -> Failure | None:
    """Return the row's status and reason for an error that a model's own code raised, None for one of the program.

    It is the model's where the program had called a module, and nothing of the program was called from there. What
    PyTorch passes each call through (`__torch_dispatch__`) is none of the callers. `classify` leaves this out: a graph
    that an engine rewrote is a module too, and its faults are the program's.
    """
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [at for at, code in enumerate(frames) if code.co_filename.startswith(_OWN) and code.co_name not in _PASSES_ON]
    called = frames[max(own, default=-1) + 1 :]
    if not any(code.co_filename == _MODULES for code in called):
        return None
    return Failure("failed", f"the model raised {type(error).__name__}: {_line(error)}")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it was raised from or beside, and so on to the first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "torch.OutOfMemoryError" in text  # the last line of another process
        # PyTorch's allocator on a CPU, and CUDA's libraries, have no type of their own for this.
        or "DefaultCPUAllocator: can't allocate memory" in text
        or bool(_FULL_BY_CUDA.match(text))
        or bool(_FULL_BY_ONNX_RUNTIME.search(text))
        or (isinstance(error, RuntimeError) and bool(re.search(r"(CUDNN|CUBLAS)_STATUS_\w*ALLOC\w*FAILED", text)))
    )


def _is_unsupported(error: Exception) -> bool:
    text = str(error)
    return (
        isinstance(error, (errors.NotSupportedError, errors.InputError, NotImplementedError))
        or _does_not_fit(error)
        or (isinstance(error, RuntimeError) and "does not have a deterministic implementation" in text)
        or (isinstance(error, ValueError) and "more than 1 value per channel when training" in text)
    )


def _is_failed(error: Exception) -> bool:
    if isinstance(error, errors.CudnnMissingError):
        return False
    return (
        isinstance(error, _FAILED)
        or str(error).startswith((*_REFUSED_BY_CUDA, _REFUSED_BY_ONNX_RUNTIME))
        or is_kernel_refusal(error)
        or _is_of(error, "torch", _COMPILERS)
        or _is_of(error, "onnxruntime", _ONNX_RUNTIME)
    )


def is_kernel_refusal(error: BaseException) -> bool:
    """Tell whether this card, its driver or Triton cannot run a kernel with the blocks it was given."""
    if _ended_compiler(error):
        return False
    return (
        _does_not_fit(error) or _is_of(error, "triton", _TRITON_FAILURES) or str(error).startswith(_REFUSED_BY_TRITON)
    )


def _ended_compiler(error: BaseException) -> subprocess.CalledProcessError | None:
    """Return the end of a compiler behind an error, if a signal that asks a run to end has also reached the compiler.

    SLURM, a terminal and `timeout` send it to all processes of a run.
    """
    ended = (each for each in chain(error) if isinstance(each, subprocess.CalledProcessError))
    return next((each for each in ended if -each.returncode in _ENDING), None)


def _does_not_fit(error: BaseException) -> bool:
    """Tell whether a Triton kernel asks for more shared memory, registers or threads than the card has."""
    return isinstance(error, errors.NothingFitsError) or _is_of(error, "triton", _TRITON_LIMITS)


def _is_of(error: BaseException, package: str, names: Collection[str]) -> bool:
    """Tell whether an error is of one of these classes of a package, or of a subclass."""
    kinds = type(error).__mro__
    return any(kind.__module__.split(".")[0] == package and kind.__name__ in names for kind in kinds)


def _line(error: BaseException) -> str:
    """Return the first line of a message that is not blank, else the name of the error's class.

    An exporter's first line names the step that failed; the error that it was raised from says why.
    """
    said = _first(error)
    if error.__cause__ is None or not _is_of(error, "torch", {"OnnxExporterError"}):
        return said
    return f"{said.removesuffix(' Next steps:')} {type(error.__cause__).__name__}: {_first(error.__cause__)}"


def _first(error: BaseException) -> str:
    plain = _COLOURS.sub("", str(error))
    return next(filter(None, map(str.strip, plain.splitlines())), type(error).__name__)


def asked_bytes(text: str) -> int | None:
    """Return the size of the allocation that an allocator's error names; CUDA rounds it to 1/100 of its unit."""
    match = _REQUESTED.search(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def raise_if_lost(device: torch.device, where: str = "") -> None:
    """Raise DeviceFaultError where this process can use the device no more; arguments as `of_cell` takes them."""
    fault = device_fault(device)
    if fault is not None:
        cell = f"{where}: " if where else ""
        raise errors.DeviceFaultError(f"{cell}the GPU is lost ({fault}): {errors.CONTINUE}")


def device_fault(device: torch.device) -> str | None:
    """Return the device's error where this process can use it no more (illegal address, ECC, GPU lost), else None.

    An error of one call is reported once and is over; one that the context is lost by comes back with every call.
    """
    if device.type != "cuda":
        return None
    return _synchronize_error(device) and _synchronize_error(device)


def _synchronize_error(device: torch.device) -> str | None:
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return _line(error)
    return None
