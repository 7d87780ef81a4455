"""An engine in a process of its own: what it says is taken, and whatever ends it is an error and not the end."""

from __future__ import annotations

import json
import re
import signal
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from convscope.errors import WorkerError
from convscope.inference.engines import exported, runners
from convscope.inference.engines.runners import RemoteRunner

READY = json.dumps({"load_s": 0.5, "version": "1", "has_torch": False})


def of_script(folder: Path, *lines: str) -> RemoteRunner:
    """Return one whose process is a script; it has said that it is ready."""
    script = "\n".join(["import os, signal, sys, time", f"print({READY!r}, flush=True)", *lines])
    return RemoteRunner("it", [sys.executable, "-c", script], [], folder, "by nobody")


def relu(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the command and the files of a worker that has a ReLU."""
    path, given = folder / "model.onnx", folder / "input.npy"
    torch.onnx.export(nn.ReLU().eval(), (torch.ones(2, 3),), str(path), dynamo=True, verbose=False)
    np.save(given, np.array([[1, -1, 2]] * 2, np.float32))
    return runners.module("onnx_worker", 1), [path, given]


def test_a_worker_does_what_it_is_asked(tmp_path: Path):
    with closing(RemoteRunner("it", *relu(tmp_path), tmp_path, "by nobody")) as found:
        assert found.output(torch.tensor([[1.0, -1, 2]] * 2)).tolist() == [[1.0, 0.0, 2.0]] * 2
        assert found.output(torch.tensor([[-3.0, 4, 5]] * 2)).tolist() == [[0.0, 4.0, 5.0]] * 2
        assert len(found.latencies_ms(3)) == 3
        calls, seconds = found.window(0.05)
        assert calls > 0
        assert seconds >= 0.05
        found.call()
        with pytest.raises(WorkerError, match=r"^it: ValueError: nothing is known of '\{\"model\": 0, \"jump\": 1\}"):
            found._ask(jump=1)


@pytest.mark.parametrize(("math", "permitted"), [("fp32", "0"), ("tf32", "1")])
def test_onnxruntime_is_told_whether_it_may_use_tf32(math: str, permitted: str):
    assert exported.tf32_option(math) == {"use_tf32": permitted}


def test_the_warning_before_the_end_does_not_end_a_worker(tmp_path: Path):
    ready = f"print({READY!r}, flush=True)"
    echo = f"for line in sys.stdin: print({json.dumps({'value': [0.5]})!r}, flush=True)"
    with closing(of_script(tmp_path, echo)) as found:
        found._process.send_signal(signal.SIGUSR2)
        assert found.latencies_ms(1) == [0.5]
        found._process.send_signal(signal.SIGTERM)
        with pytest.raises(WorkerError, match="ended by SIGTERM"):
            found.latencies_ms(1)
    loading = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2)"  # before it has loaded its model
    command = [sys.executable, "-c", f"{loading}; {ready}; input()"]
    with closing(RemoteRunner("it", command, [], tmp_path, "by nobody")) as found:
        assert found.load_s == 0.5


def test_a_process_that_crashes_says_where(tmp_path: Path):
    with closing(RemoteRunner("it", *relu(tmp_path), tmp_path, "by nobody")) as found:
        found._process.send_signal(signal.SIGSEGV)
        with pytest.raises(WorkerError, match=r"^it: its process was ended by SIGSEGV in \w+ \(\w+\.py:\d+\)$"):
            found.latencies_ms(1_000_000)


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path):
    command = relu(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"this is no model")
    with pytest.raises(WorkerError, match=r"^it: .*(INVALID|Protobuf|failed)"):
        RemoteRunner("it", *command, tmp_path, "by nobody")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the process ended without a word"),
        ("sys.exit('no more')", "no more"),
        ("""print('{"latencies_ms": [0.1, 0.', end='', flush=True); sys.exit('cut off')""", "cut off"),
        ("print('a library speaks', flush=True); sys.stdin.read()", "its process said 'a library speaks'"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", f"its process was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_every_end_is_a_message(line: str, said: str, tmp_path: Path):
    with closing(of_script(tmp_path, line)) as found, pytest.raises(WorkerError, match=f"^it: {re.escape(said)}$"):
        found.latencies_ms(1)


def test_what_begins_with_something_else_is_closed(tmp_path: Path):
    with pytest.raises(KeyError, match="load_s"):
        RemoteRunner("it", [sys.executable, "-c", "print('{}', flush=True); input()"], [], tmp_path, "by nobody")


def test_a_process_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runners, "_PATIENCE_S", 0.2)
    found = of_script(tmp_path, "while True: time.sleep(1)")
    found.close()
    assert found._process.returncode == -signal.SIGKILL
