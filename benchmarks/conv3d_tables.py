#!/usr/bin/env python3
"""Tables of docs/conv3d.md, from folders that benchmarks/conv3d.sh or run_conv3d.py wrote. Nothing is measured.

python benchmarks/conv3d_tables.py DIR/batch4 DIR/batch16       `gemm` beside PyTorch's search: means, layer by layer
python benchmarks/conv3d_tables.py docs/conv3d_h200/*.csv       the same, of files that were published
python benchmarks/conv3d_tables.py DIR/batch4 --every           each implementation and layer
python benchmarks/conv3d_tables.py DIR/end_to_end               the network
python benchmarks/conv3d_tables.py DIR/batch16 --publish FILE   write the columns that docs/ publishes, of one folder
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

OURS, PEER = "gemm", "torch benchmark"
LAYOUTS = "ncdhw", "ndhwc"
SHAPE = ["channels", "filters", "size", "kernel", "stride", "padding", "dilation", "groups"]
PUBLISHED = [
    *("layer", "layout", "implementation", "provider", "status", "reason", "median_ms", "median_low_ms"),
    *("median_high_ms", "samples", "ratio_to_torch_best", "torch_best", "ratio_with_packing", "ratio_to_cudnn_best"),
    *("ratio_to_roofline", "attainable_ms", "elementwise_error", "tolerance", "blocks", "workspace_bytes"),
    *("arithmetic", "math", "dtype", "batch", *SHAPE),
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
        cells += [spread(both["speed"]), spread(both["ratio_with_packing"])] if len(both) else ["-", "-"]
    return cells


def counts(rows: pd.DataFrame, layout: str) -> str:
    """Return how many layers OURS computes faster or slower than PEER, beyond the intervals, and the sums of both."""
    both = paired(rows, layout)
    if both.empty:
        return f"{layout}: no layer by both"
    faster = int((both["median_high_ms"] < both["median_low_ms_peer"]).sum())
    slower = int((both["median_low_ms"] > both["median_high_ms_peer"]).sum())
    sums = f"{digits(both['median_ms'].sum())} and {digits(both['median_ms_peer'].sum())} ms"
    return f"{layout}: {OURS} faster in {faster}, slower in {slower} of {len(both)} layers; all layers {sums}"


def described(row: Mapping[Hashable, Any]) -> str:
    """Return a layer's name, channels and filters, size; kernel and stride where they are not 3 and 1."""
    shape = f"{row['channels']:.0f} to {row['filters']:.0f}, {times(row['size'])}"
    unusual = [times(row["kernel"])] if str(row["kernel"]) not in ("3", "3x3x3") else []
    unusual += [f"stride {times(row['stride'])}"] if str(row["stride"]) not in ("1", "1x1x1") else []
    return ", ".join((f"{row['layer']}: {shape}", *unusual))


def times(extents: object) -> str:
    """Return extents as they are written in a document."""
    return str(extents).replace("x", "×")


def layers(name: str, rows: pd.DataFrame) -> str:
    """Return the table of a folder: the layouts that it has, of layers with the same shape the first."""
    both = {layout: paired(rows, layout) for layout in LAYOUTS}
    found = {layout: pairs.to_dict("index") for layout, pairs in both.items() if len(pairs)}
    header, lines = [name], []
    for layout in found:
        header += [f"{layout.upper()}: `{OURS}`, ms", f"`{PEER}`, ms", "speed", "roof", "roof, PyTorch"]
    for first in rows.drop_duplicates(SHAPE).to_dict("records"):
        cells = [described(first)]
        for of_layer in found.values():
            row = of_layer.get(first["layer"])
            cells += ["-"] * 5 if row is None else compared(row)
        lines.append(cells)
    return markdown(header, lines)


def compared(row: Mapping[Hashable, Any]) -> list[str]:
    """Return the cells of a layer in a layout: both times, the speed, both shares of the roofline."""
    roofs = [f"{row[column]:.2f}" for column in ("ratio_to_roofline", "ratio_to_roofline_peer")]
    return [digits(row["median_ms"]), digits(row["median_ms_peer"]), f"{row['speed']:.2f}", *roofs]


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
            durations = [f"{row[column]:.2f}" for column in ("inference_ms", "training_step_ms")]
            cells[row["layout"]] = [*durations, f"{row['share_pct']:.0f} %"]
        error = f"{found['relative_error'].max():.1e}"
        lines.append([f"`{implementation}`", *cells["ncdhw"], *cells["ndhwc"], error])
    return markdown([*header, "error"], lines)


def study(place: Path) -> pd.DataFrame | None:
    """Return the layers of a folder or of a published file, None for a folder of the network."""
    path = place if place.suffix == ".csv" else place / "conv3d.csv"
    return None if (place / "end_to_end.csv").exists() else pd.read_csv(path)


def main() -> int:
    """Print the tables of the folders, or write what is published of one."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("places", nargs="+", type=Path, metavar="FOLDER or FILE")
    options.add_argument("--every", action="store_true", help="all implementations")
    options.add_argument("--publish", type=Path, metavar="FILE", help="write what is published of one folder")
    chosen = options.parse_args()
    try:
        found = {place: study(place) for place in chosen.places}
    except OSError as error:
        options.error(f"{error.filename}: {error.strerror}; name folders that run_conv3d.py wrote")
    studies = [(place.name.removesuffix(".csv"), rows) for place, rows in found.items() if rows is not None]
    if chosen.publish:
        if len(chosen.places) != 1 or not studies:
            options.error("--publish takes one folder with conv3d.csv")
        studies[0][1][PUBLISHED].to_csv(chosen.publish, index=False, float_format="%.6g")
        return 0
    if studies:
        header = ["", "NCDHW", "with packing", "NDHWC", "with packing"]
        print(markdown(header, [means(*each) for each in studies]))
    for name, rows in studies:
        largest = (rows["elementwise_error"] / rows["tolerance"]).max()
        print(name, f"largest error, share of its tolerance: {largest:.2f}", sep="\n")
        print(*(counts(rows, layout) for layout in LAYOUTS), "", sep="\n")
        print(*(every(rows, layout) for layout in LAYOUTS) if chosen.every else [layers(name, rows)], sep="\n")
    print(*(network(place) for place, rows in found.items() if rows is None), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
