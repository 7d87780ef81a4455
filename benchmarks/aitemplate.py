"""ResNet-50 by AITemplate as it published it, each card against its own floor; beside it a folder of this study.

The published figures are of examples/01_resnet-50/README.md of AITemplate (commit 44026ba): float16, means of calls one
after another, A100-40GB with CUDA 11.6.2 and one die of a MI-250 with ROCm 5.2.3 (its clock held at 1700 MHz); eager is
PyTorch 1.12. The floor is `roofline.hardware_limit` of torchvision's ResNet-50 with the vendor's peaks.

    python benchmarks/aitemplate.py [--results results/inference/resnet50_float16_h200]     needs no GPU
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope import gpus
from convscope.cli.display import or_dash, table
from convscope.convolution import models, roofline
from convscope.gpus import Gpu

MI250_DIE = Gpu("mi250", "MI250", 22.6, None, 181.0, 1638, "AMD Instinct MI250 data sheet, half of the card")
# Batch size: eager's and AITemplate's latency (ms) and images/s on an A100-40GB; the same on one die of a MI-250.
PUBLISHED = {
    1: (7.68, 130.29, 0.58, 1730.17, 3.94, 254.06, 2.28, 438.60),
    2: (7.16, 279.36, 0.62, 3250.74, 3.89, 514.48, 2.25, 888.89),
    4: (7.17, 557.68, 0.69, 5773.20, 3.82, 1047.11, 2.38, 1680.67),
    8: (7.02, 1138.83, 0.88, 9104.44, 4.40, 1819.27, 2.62, 3053.44),
    16: (7.01, 2280.97, 1.33, 12012.81, 6.48, 2468.65, 3.41, 4692.08),
    32: (7.53, 4251.30, 2.40, 13350.58, 10.40, 3076.97, 4.86, 6584.36),
    64: (13.98, 4578.09, 4.53, 14140.83, 18.35, 3488.12, 8.26, 7748.18),
    128: (26.57, 4816.71, 8.57, 14935.82, 34.36, 3724.76, 15.38, 8322.50),
    256: (50.93, 5026.40, 16.58, 15444.57, 65.35, 3917.29, 29.62, 8642.81),
}
HEADER = ("batch", "A100: eager, ms", "images/s", "AITemplate, ms", "images/s", "× floor", "MI-250 die: eager, ms",
          "images/s", "AITemplate, ms", "images/s", "× floor")  # fmt: skip


def floor_ms(gpu: Gpu, batch_size: int) -> float:
    """Return the least time of a pass of ResNet-50 in float16 on a card."""
    layers = roofline.layers_of("resnet50", models.build("resnet50"), (batch_size, 3, 224, 224))
    return roofline.hardware_limit(layers, gpu, "float16", "tf32").time_ms


def lines(results: Path | None) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the header and a line for each batch size."""
    a100, found, names = gpus.by_label("a100"), None, list[str]()
    assert a100 is not None
    if results is not None:
        rows = pd.read_csv(results / "inference.csv")
        plain = (rows["scenario"] == "batch") & (rows["processes"] == 1) & rows["inputs"].isna()
        found = rows[plain & (rows["status"] == "ok")]
        names = list(dict.fromkeys(found["engine"]))
    made = []
    for size, published in PUBLISHED.items():
        line = [str(size)]
        for gpu, (eager_ms, eager_rate, ms, rate) in ((a100, published[:4]), (MI250_DIE, published[4:])):
            over = size / rate * 1e3 / floor_ms(gpu, size)
            line += [f"{eager_ms:.2f}", f"{eager_rate:,.0f}", f"{ms:.2f}", f"{rate:,.0f}", f"{over:.1f}"]
        for name in names:
            assert found is not None
            cell = found[(found["engine"] == name) & (found["batch_size"] == size)]
            line += [or_dash(cell[column].mean(), spec) for column, spec in (
                ("latency_mean_ms", ".2f"), ("images_per_s", ",.0f"), ("times_floor", ".1f"))]  # fmt: skip
        made.append(line)
    own = [title for name in names for title in (f"{name}: mean, ms", "images/s", "× floor")]
    return (*HEADER, *own), made


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, metavar="DIR", help="folder of run_inference.py")
    print(table(*lines(options.parse_args().results)))


if __name__ == "__main__":
    main()
