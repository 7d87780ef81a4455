#!/usr/bin/env python3
"""Plans of cuDNN over models: what PyTorch's choice costs against the fastest of all. Prints, asserts nothing.

python benchmarks/plans.py [--models resnet50 …] [--settings tf32 float16,nhwc] [--batch-sizes 1 32] [--minutes N]

Each line is `run_verify.py --plans` in a process of its own. An atlas that is there already in --results is not
measured again; one whose time was up goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models import asked_for, flags_of

from convscope.atlas.rows import LESS_PRECISE, OK, SLOW
from convscope.cli.display import table
from convscope.storage.paths import ROOT, slug
from convscope.verification import kernel_families
from convscope.verification.candidates import BENCHMARK, HEURISTIC
from convscope.verification.choice import TOGETHER

MODELS = (
    *("resnet50", "vgg16", "densenet121", "torchvision:mobilenet_v2", "torchvision:efficientnet_b0"),
    "torchvision:convnext_tiny",
)
SETTINGS = ("tf32", "float16,nhwc")
HEADER = (
    *(
        "model",
        "setting",
        "batch",
        "shapes",
        "plans of a shape",
        "wrong or refused",
        "PyTorch: pass, ms",
        "its convolutions, µs",
    ),
    *("fastest: saves of a pass, µs", "of its convolutions", "benchmark saves, µs", "PyTorch's not plan 0"),
)


def cells_of(folder: Path) -> tuple[str, ...]:
    """Return the cells of an atlas."""
    plans = pd.read_csv(folder / "plans.csv", keep_default_na=True)
    passes = pd.read_csv(folder / "passes.csv").set_index("convolutions_by").to_dict("index")
    offered = plans[plans["engine"].notna()]
    counts = offered.groupby("position").size()
    wrong = offered[~offered["outcome"].isin((OK, SLOW, LESS_PRECISE))]
    together, torchs, searched = passes[TOGETHER], passes[HEURISTIC], passes.get(BENCHMARK)
    less = 100 * (torchs["layers_us"] - together["layers_us"]) / torchs["layers_us"]
    return (
        *(str(len(counts)), f"{counts.min()} to {counts.max()}, {fmean(counts):.0f}", str(len(wrong))),
        *(f"{torchs['mean_ms']:.3f}", f"{torchs['layers_us']:.0f}", saved(together), f"{less:.1f} %"),
        *("-" if searched is None else saved(searched), others(plans)),
    )


def saved(row: Mapping[Any, Any]) -> str:
    """Return what an assignment saves of PyTorch's pass, with half the 99 % interval."""
    return f"{row['saved_us']:+.1f} ± {row['saved_ci99_us']:.1f}"


def others(plans: pd.DataFrame) -> str:
    """Return what PyTorch launches where that is not the first comparable plan of mode A, with the number of shapes."""
    found: Counter[str] = Counter()
    for _, shape in plans[plans["outcome"].isin((OK, SLOW))].groupby("position"):
        ranked = shape[shape["rank_a"].notna()].sort_values("rank_a")
        torchs = shape[shape["candidate"] == HEURISTIC]
        first, own = ranked["kernels"].head(1).dropna(), torchs["kernels"].dropna()
        if len(first) and len(own) and not launches(json.loads(own.iloc[0]), json.loads(first.iloc[0])):
            found[f"{name_of(json.loads(own.iloc[0]))} in {dimensions_of(torchs.iloc[0])}"] += 1
    return ", ".join(f"{count} × {name}" for name, count in found.most_common()) or "none"


def launches(kernels: Mapping[str, int], of_plan: Mapping[str, int]) -> bool:
    """Tell whether PyTorch launched what a plan does, copies to other layouts too, besides kernels of its own."""
    return of_plan in (kernels, kernel_families.of_library(kernels))


def name_of(kernels: Mapping[str, int]) -> str:
    """Return the name of the first kernel that convolves, without its types and arguments."""
    name = next(iter(kernel_families.working(kernels) or kernels)).replace("(anonymous namespace)::", "")
    return name.partition("<")[0].partition("(")[0].split("::")[-1].removeprefix("void ")


def dimensions_of(row: pd.Series[Any]) -> str:
    """Return the kind of a layer: its kernel, and whether it is grouped."""
    return f"{row['kernel_size']}" + (" depthwise" if row["groups"] == row["in_channels"] > 1 else "")


def atlas_of(model: str, setting: str, batch_size: int, asked: argparse.Namespace, *more: str) -> Path | str:
    """Return the folder of an atlas, measured where it is missing; where the command fails, its last words.

    Args:
        more: further options of the command.
    """
    more = more if asked.first is None else (*more, f"--first={asked.first}")
    name = "_".join(map(slug, (model, setting, f"b{batch_size}", *(each.strip("-") for each in more))))
    home = Path(asked.results) / name
    home.mkdir(parents=True, exist_ok=True)
    limit = [] if asked.minutes is None else ["--minutes", str(asked.minutes)]
    what = ["--model", model, "--batch-size", str(batch_size), "--plans", *flags_of(setting), *more]
    how = ["--rounds", str(asked.rounds), *limit, "--output-dir", str(home)]
    with open(home / "log.txt", "a") as log:
        command = [sys.executable, str(ROOT / "run_verify.py"), *what, *how]
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        return (home / "log.txt").read_text().strip().splitlines()[-1]
    return next(folder for folder in home.iterdir() if folder.is_dir())


def line(model: str, setting: str, batch_size: int, asked: argparse.Namespace) -> tuple[str, ...]:
    """Measure one line where it is missing, and return its cells."""
    begun, found = (model, setting, str(batch_size)), atlas_of(model, setting, batch_size, asked)
    return (*begun, *("-",) * (len(HEADER) - 4), found) if isinstance(found, str) else (*begun, *cells_of(found))


def add_options(options: argparse.ArgumentParser, models: Sequence[str], batch_sizes: Sequence[int]) -> None:
    """Add the options that say what is measured, with these defaults."""
    options.add_argument("--models", nargs="+", default=models, metavar="NAME")
    options.add_argument("--settings", nargs="+", default=SETTINGS, metavar="TYPE[,LAYOUT]")
    options.add_argument("--batch-sizes", nargs="+", type=int, default=batch_sizes, metavar="N")
    options.add_argument("--rounds", type=int, default=5, metavar="N", help="of an atlas")
    options.add_argument("--minutes", type=float, metavar="N", help="of each atlas: begin no round after them")
    options.add_argument("--first", type=int, metavar="N", help="plans of each heuristic; default all")
    options.add_argument("--results", default="results/plans_of_models", metavar="DIR")


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    add_options(options, MODELS, (1, 32))
    asked = options.parse_args()
    lines = []
    for model, setting, batch_size in asked_for(asked):
        lines.append(line(model, setting, batch_size, asked))
        print(" | ".join(lines[-1]), flush=True)
    print(table(HEADER, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
