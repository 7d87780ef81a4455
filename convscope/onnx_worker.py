"""A process that runs an ONNX model with ONNX Runtime and NumPy alone: PyTorch is never imported here.

`python -m convscope.onnx_worker MODEL INPUT OUTPUT PROVIDER THREADS` loads the model and the input, answers with one
line of JSON, and then one line to each command on its standard input (`runner.Remote` sends them). The output of the
model lies in OUTPUT once the first line is out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def main(arguments: list[str]) -> None:
    """Load, answer, and do what is asked until there is nothing more."""
    model, given, output, provider, threads = arguments
    started_s = time.perf_counter()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    feed = {session.get_inputs()[0].name: np.load(given)}
    np.save(output, _step(session, feed))
    _say(
        load_s=time.perf_counter() - started_s,
        version=onnxruntime.__version__,
        has_torch="torch" in sys.modules,
    )
    for line in sys.stdin:
        _answer(json.loads(line), lambda: _step(session, feed))


def _step(session: Any, feed: dict[str, Any]) -> Any:
    return session.run(None, feed)[0]


def _answer(asked: dict[str, Any], step: Callable[[], Any]) -> None:
    if "latencies" in asked:
        _say(latencies_ms=[_timed_s(step) * 1e3 for _ in range(asked["latencies"])])
    elif "window_s" in asked:
        calls, started_s = 0, time.perf_counter()
        while (passed_s := time.perf_counter() - started_s) < asked["window_s"] or not calls:
            step()
            calls += 1
        _say(calls=calls, seconds=passed_s)
    else:
        step()
        _say()


def _timed_s(step: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    step()
    return time.perf_counter() - started_s


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
