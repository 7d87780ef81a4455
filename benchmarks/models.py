#!/usr/bin/env python3
"""Models of many kinds: the work of a pass, its kernels, and the gain of a choice by layer. Prints, asserts nothing.

python benchmarks/models.py [--models timm:convnext_tiny …] [--settings fp32 tf32 float16,nhwc] [--batch-sizes 1 32]

Each line is two commands in a process of its own: `run_profile.py --algorithm torch` at one input size, and
`run_verify.py --choice`. A table that is there already in --results is not measured again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import run_profile
import run_verify
from convscope.cli.display import table
from convscope.storage.paths import slug
from convscope.timing.shares import shares_pct
from convscope.verification import candidates, choice, kernel_families

MODELS = (
    *("timm:convnext_tiny", "timm:vit_small_patch16_224", "timm:efficientnet_b0", "torchvision:regnet_y_400mf"),
    *("hf:resnet", "examples/own_model.py:make"),
)
SETTINGS = ("fp32", "tf32", "float16,nhwc")
HEADER = (
    *("model", "setting", "batch", "pass, ms", "work, %", "convolutions", "what ran", "largest error"),
    *("choice: pass, ms", "saves, µs", "of the pass"),
)


def settings_of(setting: str) -> dict[str, str]:
    """Return "fp32", "tf32", "float16" or "bfloat16,nhwc" as settings by name."""
    first, _, layout = setting.partition(",")
    return {"math" if first in ("fp32", "tf32") else "dtype": first, **({"layout": layout} if layout else {})}


def flags_of(setting: str) -> list[str]:
    """Return the settings of `settings_of` as options."""
    return [word for name, value in settings_of(setting).items() for word in (f"--{name}", value)]


def asked_for(asked: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield model, setting and batch size of each line."""
    for setting, batch_size, model in itertools.product(asked.settings, asked.batch_sizes, asked.models):
        yield model, setting, batch_size


def measure(commands: Sequence[Sequence[str]]) -> int:
    """Run a profile, and a choice after it, in this process: the one is timed without CUPTI, the other traces last."""
    for call, arguments in zip((run_profile.main, run_verify.main), commands, strict=False):
        if code := call(list(arguments)):
            return code
        gc.collect()  # models hold themselves in cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


def families(kernels: pd.Series) -> str:
    """Return the families of the kernels that convolve, and in how many layers each is: "direct 18, …"."""
    counts: Counter[str] = Counter()
    for text in kernels.dropna():
        counts.update({kernel_families.family(name) for name in kernel_families.working(json.loads(text))})
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "-"


def profiled(folder: Path) -> tuple[str, ...]:
    """Return the cells of a profile: the pass, its work, its convolutions, their kernels, the largest error."""
    overall, layers, work = (pd.read_csv(next(folder.glob(f"*_{name}.csv"))) for name in ("overall", "layers", "work"))
    row = overall.iloc[0]
    shares = shares_pct(zip(work["category"], work["kernel_ms"], strict=True))
    told = ", ".join(f"{kind} {share:.0f}" for kind, share in shares.items() if share >= 1)
    if layers.empty:
        return f"{row['mean']:.3f} ± {row['mean_ci95_ms']:.3f}", told, "0", "-", "-"
    errors = layers["relative_error"].dropna()
    worst = f"{errors.max():.1e}" if len(errors) else "-"
    cells = f"{row['mean']:.3f} ± {row['mean_ci95_ms']:.3f}", told, str(len(layers))
    return *cells, families(layers["kernels"]), worst


def chosen(folder: Path) -> tuple[str, ...]:
    """Return the cells of a choice: the pass of the fastest of each layer, and what it saves of PyTorch's."""
    passes = pd.read_csv(next(folder.glob("*/passes.csv"))).set_index("convolutions_by")
    if choice.TOGETHER not in passes.index or candidates.HEURISTIC not in passes.index:
        return "-", "-", "-"
    together, torchs = passes.loc[choice.TOGETHER], passes.loc[candidates.HEURISTIC]
    saved = f"{together['saved_us']:.1f} ± {together['saved_ci99_us']:.1f}"
    share = 100 * together["saved_us"] / (torchs["mean_ms"] * 1e3)
    return f"{together['mean_ms']:.3f}", saved, f"{share:.1f} %"


def line(model: str, setting: str, batch_size: int, asked: argparse.Namespace) -> tuple[str, ...]:
    """Measure one line where its tables are missing, and return its cells; where a command fails, its last words."""
    folder = Path(asked.results) / f"{slug(model)}_{setting.replace(',', '_')}_b{batch_size}"
    folder.mkdir(parents=True, exist_ok=True)
    named = ["--model", model, "--batch-size", str(batch_size), "--device", asked.device, *flags_of(setting)]
    size, log = str(asked.input_size), folder / "log.txt"
    profile = ["--algorithm", "torch", "--num-sizes", "1", "--input-range", size, size, "--no-energy"]
    verify = ["--choice", "--input-size", size, "--rounds", str(asked.rounds), "--output-dir", str(folder / "choice")]
    begun, dashes = (model, setting, str(batch_size)), ("-",) * (len(HEADER) - 3)
    commands = [[*named, *profile, "--output-dir", str(folder / "profile")]]
    commands += [] if asked.no_choice else [[*named, *verify]]
    with open(log, "a") as output:
        process = [sys.executable, __file__, "--commands", json.dumps(commands)]
        code = subprocess.run(process, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        return *begun, *dashes[1:], log.read_text().strip().splitlines()[-1]
    cells = profiled(folder / "profile")
    return *begun, *cells, *(dashes[len(cells) :] if asked.no_choice else chosen(folder / "choice"))


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    options.add_argument("--settings", nargs="+", default=SETTINGS, metavar="TYPE[,LAYOUT]")
    options.add_argument("--batch-sizes", nargs="+", type=int, default=(1, 32), metavar="N")
    options.add_argument("--input-size", type=int, default=224, metavar="PX")
    options.add_argument("--rounds", type=int, default=choice.ROUNDS, metavar="N", help="captures of each candidate")
    options.add_argument("--no-choice", action="store_true", help="the profiles alone")
    options.add_argument("--device", default="auto")
    options.add_argument("--results", default="results/models", metavar="DIR")
    options.add_argument("--commands", type=json.loads, help=argparse.SUPPRESS)  # to run in this process
    asked = options.parse_args()
    if asked.commands:
        return measure(asked.commands)
    lines = []
    for model, setting, batch_size in asked_for(asked):
        lines.append(line(model, setting, batch_size, asked))
        print(" | ".join(lines[-1]), flush=True)
    print(table(HEADER, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
