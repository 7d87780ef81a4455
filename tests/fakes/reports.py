"""Result folders of all studies on two GPUs, and hostile ones, for what reads them; the figures are invented."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.atlas.rows import PLANS, PlanLayerRow, PlanRow
from convscope.conv3d.rows import SCHEMA as CONV3D
from convscope.conv3d.rows import Conv3dRow, EndToEndRow, KindRow
from convscope.inference.rows import SCHEMA as INFERENCE
from convscope.inference.rows import InferenceRow
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.report import folders
from convscope.report.exhibits import Content, content
from convscope.storage.schema import Schema
from convscope.storage.table import lines_of
from convscope.training.rows import SCHEMA as TRAINING
from convscope.training.rows import EpochRow, TrainingRow
from convscope.verification.rows import FIRST_CALL, SUPPORT, FirstPassRow, PassRow, SupportRow
from fakes import LAYER, OVERALL, compared

SCRIPT = re.compile(r"<script(?P<of>[^>]*)>(?P<text>.*?)</script>", re.DOTALL)
"""A script of a page."""
SIZES = (128, 224, 320)
ALGORITHMS = {"gemm": 1.0, "fft tiling": 2.5, "torch": 0.8}
A100 = {"gpu_name": "NVIDIA A100-SXM4-80GB", "gpu_uuid": "GPU-a", "host": "node2"}
HOSTILE = '<script>document.title="broken"</script>"\'`&amp;</script><img src=x onerror=alert(1)>\u2028\x1b[31m=cmd|'


def profile(
    results: Path, model: str, algorithm: str, gpu: str = "h200", slower: float = 1.0,
    environment: Mapping[str, Any] | None = None, **changes: Any,
) -> Path:  # fmt: skip
    """Write a run at three sizes with two layers, energy and memory; return its folder."""
    factor = ALGORITHMS.get(algorithm, 1.5) * slower
    passes, layers = [], list[LayerRow]()
    for at, size in enumerate(SIZES):
        mean_ms = factor * (1 + at)
        passes.append(
            compared.overall(
                model=model, algorithm=algorithm, input_size=size, mean=mean_ms, std=0.01, mean_ci95_ms=0.02 * mean_ms,
                placements=5, placement_spread_pct=1.0, energy_per_inference_j=0.4 * mean_ms / 1e3 * (2 - slower / 2),
                energy_uncertainty_j=0.002 * mean_ms / 1e3, power_mean_w=400.0, peak_memory_bytes=2**28,
                convolutions=2, **changes,
            )
        )  # fmt: skip
        for position in range(2):
            layers.append(
                compared.layer(
                    layer=f"features.{position}", position=position, model=model, algorithm=algorithm, input_size=size,
                    mean_ms=mean_ms * (0.5 - 0.2 * position), mean_ci95_ms=0.01, ran_algorithm=algorithm, flops=10**9,
                    bytes=10**7, kernels='{"implicit_gemm_kernel": 2}', relative_error=2e-4,
                )
            )  # fmt: skip
    card = (A100 if gpu == "a100" else {}) | dict(environment or {})
    path = results / "2_quick" / f"{model}_{algorithm.replace(' ', '_')}_{gpu}"
    return compared.written(
        path, passes, layers, card, model=model, algorithm=algorithm, gpu=gpu, input_sizes=SIZES, energy=True
    )


def shown(path: Path) -> Content:
    """Return what the report shows of the folders below a path."""
    return content(folders.read([path]))


def only(rows: pd.DataFrame, **values: Any) -> Any:
    """Return the only row with these values."""
    for name, value in values.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def page_data(text: str) -> dict[str, Any]:
    """Return the data block of a page."""
    block = next(found for found in SCRIPT.finditer(text) if 'id="data"' in found["of"])
    plain = gzip.decompress(base64.b64decode(block["text"])).decode() if "gzip" in block["of"] else block["text"]
    document: dict[str, Any] = json.loads(plain)
    return document


def write(path: Path, schema: Schema, request: Mapping[str, Any], **tables: Sequence[Any]) -> Path:
    """Write a folder of another study: `run.json`, and its tables as its store has them."""
    path.mkdir(parents=True)
    environment = {"host": "node1", "gpu_name": "NVIDIA H200", "cudnn": "9.19.0", "torch": "2.11.0"}
    start = {"utc": "2026-01-01T00:00:00+00:00", "command": ["run.py"], "environment": environment, "asked": {}}
    document = {"schema_version": schema.version, schema.request: request, "environment": environment}
    document |= {"starts": [start | {"ended_utc": None, "error": None}], "ended_utc": None, "error": None}
    (path / "run.json").write_text(json.dumps(document | dict(schema.entries)))
    for name, rows in tables.items():
        (path / f"{name}.csv").write_text(lines_of(schema.tables[name], rows, with_header=True))
    return path


REQUEST = {
    "model": "resnet50", "algorithm": "torch", "gpu": "h200", "batch_size": 1, "dtype": "float32", "layout": "nchw",
    "math": "tf32", "input_sizes": [224], "device": "cuda:0",
}  # fmt: skip
KEY: dict[str, Any] = {"model": "resnet50", "input_size": 224, "batch_size": 1, "math": "tf32"}


def atlas(results: Path) -> Path:
    """Write an atlas of plans of two layers that have one shape."""
    plan = {
        **KEY, "layer": "conv1", "layers": 2, "position": 0, "outcome": "ok", "rounds": 5, "is_fastest": False,
        "in_channels": 64, "out_channels": 64, "kernel_size": "3x3", "stride": "1x1", "padding": "1x1",
        "dilation": "1x1", "groups": 1, "in_height_px": 56, "in_width_px": 56, "dtype": "float32", "layout": "nchw",
        "gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19",
    }  # fmt: skip
    plans = [
        PlanRow(**plan | {"candidate": "plan:28:k2=4", "mean_ms": 0.010, "std_ms": 0.0001, "regret_us": 0.0,
                          "workspace_bytes": 2**20, "energy_j": 0.005, "is_fastest": True}),
        PlanRow(**plan | {"candidate": "plan:1", "mean_ms": 0.012, "std_ms": 0.0001, "regret_us": 2.0,
                          "workspace_bytes": 0, "energy_j": 0.004}),
        PlanRow(**plan | {"candidate": "torch", "mean_ms": 0.013, "std_ms": 0.0001, "regret_us": 3.0}),
        PlanRow(**plan | {"candidate": "plan:9", "outcome": "refused", "rounds": 0, "reason": "no workspace"}),
    ]  # fmt: skip
    layers = [
        PlanLayerRow(**KEY, layer=f"conv{at + 1}", position=at, shape_layer="conv1", shape_position=0) for at in (0, 1)
    ]
    shared = KEY | {"std_ms": 0.001, "rounds": 5, "dtype": "float32", "layout": "nchw"}
    passes = [
        PassRow(**shared | {"convolutions_by": "fastest of each layer", "mean_ms": 0.87, "saved_us": 17.0,
                            "saved_ci99_us": 2.1}),
        PassRow(**shared | {"convolutions_by": "torch", "mean_ms": 0.89, "saved_us": 0.0, "saved_ci99_us": 0.0}),
    ]  # fmt: skip
    path = results / "plans" / "resnet50_h200"
    return write(path, PLANS, REQUEST | {"question": "plans"}, plans=plans, plan_layers=layers, passes=passes)


def studies(results: Path) -> None:
    """Write one folder of each study beside the profiles."""
    atlas(results)
    shape = {
        name: getattr(LAYER, name, 1) for name in ("in_channels", "out_channels", "groups")
    } | dict.fromkeys(("kernel_size", "stride", "padding", "dilation"), "3x3")  # fmt: skip
    support = SupportRow(
        **KEY, **shape, layer="conv1", position=0, algorithm="fft", status="unsupported", reason="stride 2",
        predicted_status="unsupported", predicted_reason="stride", agrees=True, same_kernels_as=None, families=None,
        kernels=None, workspace_bytes=None, relative_error=None, in_height_px=56, in_width_px=56, dtype="float32",
        gpu_name="NVIDIA H200", compute_capability="9.0", driver="580", cudnn="9.19",
    )  # fmt: skip
    write(results / "support" / "resnet50_h200", SUPPORT, REQUEST, support=[support])
    first = FirstPassRow(
        **KEY, convolutions_by="torch benchmark", extra_ms=900.0, first_layers_ms=901.0, library_ms=20.0, pass_ms=0.9,
        saved_us=3.0, saved_ci99_us=1.0, pays_after=300000, layers=53, layers_by_torch=0, dtype="float32",
        layout="nchw", gpu_name="NVIDIA H200", driver="580", cudnn="9.19",
    )  # fmt: skip
    write(results / "first_call" / "resnet50_h200", FIRST_CALL, REQUEST, first_passes=[first])
    cell: dict[str, Any] = {"model": "resnet18", "processes": 1, "compiled": False, "captured": False}
    phases = {"step_ms": 10.0, "data_ms": 1.0, "forward_ms": 3.0, "backward_ms": 5.0, "optimizer_ms": 1.0}
    trained = [TrainingRow(**cell, batch_size=batch, **phases, accuracy_pct=90.0) for batch in (16, 64)]
    epochs = [
        EpochRow(
            **cell, batch_size=16, epoch=epoch, steps=9, train_loss=1 / epoch, test_loss=1.0, accuracy_pct=80.0 + epoch
        )
        for epoch in (1, 2, 3)
    ]
    settings = {name: value for name, value in REQUEST.items() if name not in ("model", "batch_size", "input_sizes")}
    write(results / "training" / "digits_torch_h200", TRAINING, settings, training=trained, epochs=epochs)
    engines = [
        InferenceRow("resnet50", engine, batch, 1, "batch", latency_mean_ms=batch / 9, images_per_s=factor * batch)
        for engine, factor in (("eager", 300.0), ("graph", 900.0))
        for batch in (1, 8)
    ]
    engines.append(InferenceRow("resnet50", "tensorrt", 1, 1, "batch", status="unsupported", reason="not installed"))
    write(results / "inference" / "resnet50_h200", INFERENCE, REQUEST | {"image_size_px": 224}, inference=engines)
    volumes = [
        Conv3dRow("conv1", 0, name, "triton", "ncdhw", median_ms=time_ms, tflops=1.0, flops=10**9, bytes=10**6,
                  channels=4, filters=16, kernel="3x3x3")
        for name, time_ms in (("gemm", 1.0), ("direct", 4.0))
    ]  # fmt: skip
    write(results / "conv3d" / "cosmoflow_h200", CONV3D, settings | {"params": "cosmoflow"}, conv3d=volumes)
    network(results / "conv3d" / "network_h200")


def network(path: Path) -> Path:
    """Write a study of a 3-D network at batch 4: a pass of two kinds of layers by two implementations."""
    times = {"gemm": 2.0, "torch": 3.0}
    passes = [
        EndToEndRow(name, "ncdhw", inference_ms=time_ms + 1, training_step_ms=9.0, batch=4)
        for name, time_ms in times.items()
    ]
    kinds = [
        KindRow(name, kind, 5, each_ms, 100 * each_ms / (time_ms + 1), "ncdhw")
        for name, time_ms in times.items()
        for kind, each_ms in (("convolution", time_ms), ("pooling", 1.0))
    ]
    asked = {"gpu": "h200", "params": "cosmoflow", "math": "tf32", "dtype": "float32"}
    return write(path, CONV3D, asked, end_to_end=passes, breakdown=kinds)


def every(results: Path) -> Path:
    """Write profiles on two cards, the other studies, and folders with faults; return the folder of all."""
    for algorithm in ALGORITHMS:
        profile(results, "alexnet", algorithm)
    profile(results, "resnet50", "torch")
    profile(results, "alexnet", "gemm", "a100", slower=1.5, throttle_reasons="thermal")
    studies(results)
    cut = profile(results, "vgg16", "gemm") / "vgg16_gemm_layers.csv"
    cut.write_text(cut.read_text()[:-20])
    (results / "2_quick" / "odd").mkdir()
    (results / "2_quick" / "odd" / "run.json").write_text("{")
    return results


def hostile(results: Path) -> Path:
    """Write runs whose names and values are an attack; return the folder of all."""
    names = {"layer": HOSTILE, "reason": HOSTILE + "x" * 10_000, "kernels": json.dumps({HOSTILE: 1})}
    layers = [
        compared.layer(**names, model=HOSTILE, algorithm="gemm"),
        compared.layer(
            layer='=HYPERLINK("x")',
            position=1,
            model=HOSTILE,
            algorithm="gemm",
            mean_ms=float("nan"),
            percentage=float("inf"),
        ),
        compared.layer(layer=" +cmd", position=2, model=HOSTILE, algorithm="gemm"),
    ]
    row = OverallRow(
        model=HOSTILE, algorithm="gemm", input_size=64, mean=1.0, std=float("nan"), max=float("inf"),
        mean_ci95_ms=float("inf"), power_mean_w=float("-inf"), timing_method=HOSTILE, reason=names["reason"],
    )  # fmt: skip
    environment = {"host": HOSTILE, "driver": "</title>" + "d" * 10_000}
    path = compared.written(
        results / "hostile", [row], layers, environment, model=HOSTILE, algorithm="gemm", input_sizes=(64,)
    )
    document = json.loads((path / "run.json").read_text())
    document["starts"][0]["command"] = [HOSTILE, "</script><script>alert(1)</script>"]
    (path / "run.json").write_text(json.dumps(document))
    infinite = dataclasses.replace(OVERALL, mean=float("inf"), algorithm="torch")
    compared.written(results / "infinite", [infinite], [], model="alexnet", algorithm="torch", input_sizes=(64,))
    return results
