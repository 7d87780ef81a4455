#!/usr/bin/env python3
"""Tables of docs/conv3d.md, from folders that benchmarks/conv3d.sh or run_conv3d.py wrote. Nothing is measured.

python benchmarks/conv3d_tables.py DIR/batch4 DIR/batch16     `gemm` beside PyTorch's search: means, and layer by layer
python benchmarks/conv3d_tables.py DIR/batch4 --every         each implementation and layer
python benchmarks/conv3d_tables.py DIR/end_to_end             the network
python benchmarks/conv3d_tables.py DIR/batch16 --csv FILE     the columns that docs/ publishes, of one folder
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

OURS, PEER = "gemm", "torch benchmark"
LAYOUTS = "ncdhw", "ndhwc"
PUBLISHED = [
    *("layer", "layout", "implementation", "provider", "status", "reason", "median_ms", "median_low_ms"),
    *("median_high_ms", "samples", "ratio_to_torch_best", "torch_best", "ratio_with_packing", "ratio_to_cudnn_best"),
    *("ratio_to_roofline", "attainable_ms", "elementwise_error", "tolerance", "blocks", "workspace_bytes"),
    *("arithmetic", "math", "dtype", "batch"),
]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column begins at the left."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def digits(value: float) -> str:
    """Return a number with three digits that count, a dash for none."""
    if pd.isna(value):
        return "-"
    return f"{value:.{max(0, 2 - int(np.floor(np.log10(value))))}f}"


def spread(ratios: pd.Series[float]) -> str:
    """Return the geometric mean of ratios, and the lowest and highest."""
    return f"{np.exp(np.log(ratios).mean()):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def paired(rows: pd.DataFrame, layout: str) -> pd.DataFrame:
    """Return a row for each layer, in order, with the columns of OURS and, with `_peer`, those of PEER."""
    some = rows[(rows["layout"] == layout) & (rows["status"] == "ok")]
    ours, peer = (some[some["implementation"] == name].set_index("layer") for name in (OURS, PEER))
    both = ours.join(peer, rsuffix="_peer", how="inner")
    return both.assign(speed=both["median_ms_peer"] / both["median_ms"])


def means(name: str, rows: pd.DataFrame) -> list[str]:
    """Return a line of a folder: in both layouts the speed, and with filters packed in each call."""
    cells = [name]
    for layout in LAYOUTS:
        both = paired(rows, layout)
        cells += [spread(both["speed"]), spread(both["ratio_with_packing"])]
    return cells


def counts(rows: pd.DataFrame, layout: str) -> str:
    """Return how many layers OURS computes faster or slower than PEER, beyond the intervals, and the sums of both."""
    both = paired(rows, layout)
    faster = int((both["median_high_ms"] < both["median_low_ms_peer"]).sum())
    slower = int((both["median_low_ms"] > both["median_high_ms_peer"]).sum())
    sums = f"{digits(both['median_ms'].sum())} and {digits(both['median_ms_peer'].sum())} ms"
    return f"{layout}: {OURS} faster in {faster}, slower in {slower} of {len(both)} layers; all layers {sums}"


def layers(name: str, rows: pd.DataFrame) -> str:
    """Return the table of a folder: each layer, both layouts."""
    both = {layout: paired(rows, layout) for layout in LAYOUTS}
    header, lines = [name], []
    for layout in both:
        header += [f"{layout.upper()}: `{OURS}`, ms", f"`{PEER}`, ms", "speed", "roof", "roof, PyTorch"]
    for layer in both["ncdhw"].index:
        cells = [str(layer)]
        for each in both.values():
            row = each.loc[layer]
            roofs = [f"{row[column]:.2f}" for column in ("ratio_to_roofline", "ratio_to_roofline_peer")]
            cells += [digits(row["median_ms"]), digits(row["median_ms_peer"]), f"{row['speed']:.2f}", *roofs]
        lines.append(cells)
    return markdown(header, lines)


def every(rows: pd.DataFrame, layout: str) -> str:
    """Return the table of all implementations that did all layers in a layout."""
    some = rows[(rows["layout"] == layout) & (rows["status"] == "ok")]
    names = list(dict.fromkeys(some["layer"]))
    header, lines = ["", *(cell for name in names for cell in (f"{name}, ms", "PyTorch", "roof"))], []
    for implementation, found in some.groupby("implementation", sort=False):
        if len(found) < len(names):
            continue
        cells = [f"`{implementation}`"]
        for row in found.to_dict("records"):
            packed = row["ratio_with_packing"]
            ratio = f"{row['ratio_to_torch_best']:.2f}" + ("" if pd.isna(packed) else f" ({packed:.2f})")
            cells += [digits(row["median_ms"]), ratio, f"{row['ratio_to_roofline']:.2f}"]
        lines.append(cells)
    return markdown(header, lines)


def network(folder: Path) -> str:
    """Return the table of the whole network: passes, training steps, the convolutions' share of a pass."""
    rows = pd.read_csv(folder / "end_to_end.csv").query("status == 'ok'")
    kinds = pd.read_csv(folder / "breakdown.csv").query("kind == 'convolution'")
    rows = rows.merge(kinds[["implementation", "layout", "share_pct"]], on=["implementation", "layout"])
    header, lines = [""], []
    for layout in LAYOUTS:
        header += [f"{layout.upper()}: inference, ms", "training step, ms", "convolutions' share"]
    for implementation, found in rows.groupby("implementation", sort=False):
        cells = {layout: ["-"] * 3 for layout in LAYOUTS}
        for row in found.to_dict("records"):
            times = [f"{row[column]:.2f}" for column in ("inference_ms", "training_step_ms")]
            cells[row["layout"]] = [*times, f"{row['share_pct']:.0f} %"]
        error = f"{found['relative_error'].max():.1e}"
        lines.append([f"`{implementation}`", *cells["ncdhw"], *cells["ndhwc"], error])
    return markdown([*header, "error"], lines)


def main() -> int:
    """Print the tables of the folders, or write what is published of one."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options.add_argument("--every", action="store_true", help="all implementations")
    options.add_argument(
        "--csv", type=Path, metavar="FILE", help="write what is published of one folder, print nothing"
    )
    chosen = options.parse_args()
    if chosen.csv:
        (folder,) = chosen.folders
        pd.read_csv(folder / "conv3d.csv")[PUBLISHED].to_csv(chosen.csv, index=False, float_format="%.6g")
        return 0
    studies = {folder.name: pd.read_csv(folder / "conv3d.csv") for folder in chosen.folders if is_study(folder)}
    if studies:
        header = ["", "NCDHW", "with packing", "NDHWC", "with packing"]
        print(markdown(header, [means(*study) for study in studies.items()]))
    for name, rows in studies.items():
        largest = (rows["elementwise_error"] / rows["tolerance"]).max()
        print(name, f"largest error, share of its tolerance: {largest:.2f}", sep="\n")
        print(*(counts(rows, layout) for layout in LAYOUTS), "", sep="\n")
        print(*(every(rows, layout) for layout in LAYOUTS) if chosen.every else [layers(name, rows)], sep="\n")
    print(*(network(folder) for folder in chosen.folders if not is_study(folder)), sep="\n", end="")
    return 0


def is_study(folder: Path) -> bool:
    """Tell whether a folder is of layers, not of the network."""
    return (folder / "conv3d.csv").exists()


if __name__ == "__main__":
    sys.exit(main())
