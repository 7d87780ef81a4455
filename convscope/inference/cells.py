"""Cells of an inference study: the keys that a request asks for."""

from __future__ import annotations

import dataclasses

from convscope.inference.request import Inference
from convscope.inference.rows import InferenceKey
from convscope.inference.serving.mlperf import SERVER
from convscope.storage.paths import slug


def key_of(request: Inference, engine: str, batch_size: int, qps: float | None = None) -> InferenceKey:
    """Return the key of a cell of a request; under a server's load also of one of its rates."""
    inputs = "host" if request.copies_images else None
    key = InferenceKey(slug(request.model), engine, batch_size, request.processes, request.scenario, inputs=inputs)
    if request.scenario != SERVER:
        return key
    sizes = "|".join(map(str, sorted(request.batch_sizes)))
    delay_ms = float(request.max_delay_ms)
    return dataclasses.replace(key, target_qps=qps, slo_ms=request.slo_ms, max_delay_ms=delay_ms, sizes=sizes)


def cells_of(request: Inference) -> list[InferenceKey]:
    """Return the keys of all cells of a request that are known before it is measured: not a server's unstated rates."""
    if request.scenario != SERVER:
        return [key_of(request, engine, size) for size in request.batch_sizes for engine in request.engines]
    largest = request.batch_sizes[-1]
    return [key_of(request, engine, largest, rate) for engine in request.engines for rate in request.qps]


def covers(request: Inference, key: InferenceKey) -> bool:
    """Tell whether a cell is one of a server's rates that a request without rates asks for."""
    if request.scenario != SERVER or request.qps:
        return False
    own = [key_of(request, engine, request.batch_sizes[-1]) for engine in request.engines]
    return dataclasses.replace(key, target_qps=None) in own


def is_asked(request: Inference, key: InferenceKey) -> bool:
    """Tell whether a cell of a folder is one of a request; a server's engine that could not be built has no rate."""
    own = key_of(request, key.engine, key.batch_size)
    unbuilt = key == own and key.engine in request.engines and key.batch_size in request.batch_sizes
    return unbuilt or key in cells_of(request) or covers(request, key)
