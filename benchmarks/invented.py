"""Invented runs of `run_profile.py` on the disk, for benchmarks of what reads them."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

from convscope.convolution.layer import Layer
from convscope.profiling.request import Run
from convscope.profiling.rows import SCHEMA, SCHEMA_VERSION, LayerRow, OverallRow
from convscope.storage.paths import slug
from convscope.storage.table import columns, lines_of

ENVIRONMENT = {"host": "node", "device_type": "cuda", "gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"}
KERNELS = json.dumps({"sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x64x32": 1})


def write(folder: Path, model: str, layers: int, algorithm: str, sizes: list[int], seed: int = 0) -> None:
    """Write a run: `run.json`, a row a size, and a row a layer and size, with times that scatter by 1 %.

    Args:
        layers: the number of the model's.
    """
    folder.mkdir(parents=True)
    drawn = random.Random(f"{model} {algorithm} {seed}")
    run = dataclasses.asdict(Run(model, algorithm, "3_full", "h200", tuple(sizes), "cuda:0", math="tf32"))
    start: dict[str, object] = {"utc": "", "command": [], "environment": ENVIRONMENT, "asked": run, "error": None}
    document = {"schema_version": SCHEMA_VERSION, "run": run, "environment": ENVIRONMENT, "starts": [start]}
    (folder / "run.json").write_text(json.dumps(document))
    plain = Layer.of_sizes(
        "conv", 0, batch=1, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), padding=(1, 1)
    ).columns()
    plain = {name: plain[name] for name in columns(LayerRow) if name in plain and name not in ("layer", "position")}
    passes, of_layers = [], []
    for size in sizes:
        energy_j = drawn.gauss(2, 0.02)
        passes.append(
            OverallRow(model, algorithm, size, mean=drawn.gauss(10, 0.1), mean_ci95_ms=0.05, std=0.05, samples=20,
                       energy_per_inference_j=energy_j, energy_uncertainty_j=energy_j / 200, power_mean_w=450.0)
        )  # fmt: skip
        of_layers += [
            LayerRow(**plain, model=model, algorithm=algorithm, input_size=size, layer=f"layer{position}.conv",
                     position=position, mean_ms=drawn.gauss(0.05, 0.0005), percentage=0.5, mean_ci95_ms=0.0005,
                     samples=20, out_height_px=56, out_width_px=56, flops=231211008, bytes=1753088,
                     ran_algorithm=algorithm, kernels=KERNELS, relative_error=drawn.gauss(2e-4, 1e-6))
            for position in range(layers)
        ]  # fmt: skip
    for name, rows in (("overall", passes), ("layers", of_layers)):
        text = lines_of(SCHEMA.tables[name], rows, with_header=True)
        (folder / f"{slug(model)}_{slug(algorithm)}_{name}.csv").write_text(text)
