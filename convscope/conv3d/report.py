"""Words and pictures of the 3-D study, from its tables; nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd

from convscope.cli.display import Figures, grid, interval_or_dash, or_dash, several, table
from convscope.conv3d.rows import Conv3dRow, EndToEndRow, StressRow
from convscope.convolution.roofline import Ceilings


def summary(rows: Mapping[str, Sequence[Any]], limits: Ceilings | None) -> str:
    """Return tables of rows as text: the layers and means over them, the stress test, the network.

    Args:
        rows: those of the tables conv3d, stress, end_to_end and breakdown.
        limits: the measured ceilings, where there is a roofline.
    """
    parts = []
    if limits is not None:
        rates = ", ".join(f"{name} {rate:.4g} TFLOP/s" for name, rate in limits.tflops.items())
        parts.append(f"ceilings measured here: copy {limits.copy_gbps:.4g} GB/s, {rates}")
    if rows["conv3d"]:
        header = ("layer", "layout", "implementation", "median, ms", "95 %", "TFLOP/s", "of cuDNN's best",
                  "of PyTorch's best", "filters packed each time", "of roofline", "error / tolerance",
                  "blocks, or why not")  # fmt: skip
        parts += [table(header, [_line(row) for row in rows["conv3d"]]), *means(rows["conv3d"])]
    if rows["stress"]:
        parts.append(stress_line(rows["stress"]))
    if rows["end_to_end"]:
        columns = ("end to end", "layout", "inference, ms", "training step, ms", "convolutions", "reason")
        kinds = [row for row in rows["breakdown"] if row.kind == "convolution"]
        shares = {(row.implementation, row.layout): row.share_pct for row in kinds}
        parts.append(table(columns, [_whole(row, shares) for row in rows["end_to_end"]]))
    return "\n".join(parts)


def _line(row: Conv3dRow) -> tuple[str, ...]:
    interval = interval_or_dash(row.median_low_ms, row.median_high_ms, ".4f")
    ratios = row.ratio_to_cudnn_best, row.ratio_to_torch_best, row.ratio_with_packing, row.ratio_to_roofline
    error = or_dash(row.elementwise_error, ".1e", f" / {or_dash(row.tolerance, '.1e')}")
    note = row.blocks or "" if row.status == "ok" else f"{row.status}: {row.reason}"
    return (
        row.layer, _upper(row.layout), row.implementation, or_dash(row.median_ms, ".4f"), interval,
        or_dash(row.tflops, ".1f"), *(or_dash(ratio, ".2f") for ratio in ratios), error, note,
    )  # fmt: skip


_RATIOS = {
    "cuDNN's best": "ratio_to_cudnn_best",
    "PyTorch's best": "ratio_to_torch_best",
    "the same with filters packed each time": "ratio_with_packing",
    "the roofline": "ratio_to_roofline",
}


def means(rows: Sequence[Conv3dRow]) -> list[str]:
    """Return for each implementation and layout the geometric means of its ratios over the layers that were timed."""
    lines = []
    for name, layout in dict.fromkeys((row.implementation, row.layout) for row in rows):
        of_name = [row for row in rows if (row.implementation, row.layout) == (name, layout)]
        parts = []
        for peer, field in _RATIOS.items():
            ratios = [getattr(row, field) for row in of_name if getattr(row, field) is not None]
            if ratios:
                mean, layers = geometric_mean(ratios), f"{len(ratios)} layer{'s' if len(ratios) > 1 else ''}"
                parts.append(f"{mean:.3f} of {peer} ({layers}, {min(ratios):.2f} to {max(ratios):.2f})")
        if parts:
            where = f", {_upper(layout)}" if layout else ""
            lines.append(f"{name}{where}, geometric means: {', '.join(parts)}")
    return lines


_STATUSES = ("ok", "wrong", "failed", "oom", "unsupported")


def stress_line(rows: Sequence[StressRow]) -> str:
    """Return the outcome of a stress test in one line."""
    counts = {status: sum(row.status == status for row in rows) for status in _STATUSES}
    shapes = len({row.round for row in rows})
    worst = max((row.elementwise_error / row.tolerance for row in rows if row.elementwise_error and row.tolerance),
                default=0.0)  # fmt: skip
    outcomes = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"stress test: {several(shapes, 'shape')}: {outcomes}; largest error {worst:.2f} of its tolerance"


def _whole(row: EndToEndRow, shares: Mapping[tuple[str, str | None], float]) -> tuple[str, ...]:
    return (
        row.implementation, _upper(row.layout), or_dash(row.inference_ms, ".3f"), or_dash(row.training_step_ms, ".3f"),
        or_dash(shares.get((row.implementation, row.layout)), ".0f", " %"), row.reason or "",
    )  # fmt: skip


def _upper(layout: str | None) -> str:
    return (layout or "").upper()


_MARKERS = "osD^v<>pPX*hd"
_COLOURS = "tab20"


def draw(
    rows: pd.DataFrame, samples: pd.DataFrame, kinds: pd.DataFrame, limits: Ceilings | None, folder: Path,
    note: Callable[[str], None],
) -> list[Path]:  # fmt: skip
    """Draw the tables into a folder, and return the files; without matplotlib none, which is noted."""
    figures = Figures(folder, note)
    measured = rows[rows["median_ms"].notna()] if len(rows) else rows
    if len(samples):
        height_in = 2.6 * len(_panels(samples)) + 0.6
        figures.save("violins", (11, height_in), lambda figure: _violins(figure, samples))
    if len(measured):
        column = "ratio_to_torch_best" if measured["ratio_to_torch_best"].notna().any() else "tflops"
        width_in, height_in = max(8, 2.4 * measured["position"].nunique()), 4.5 * measured["layout"].nunique()
        figures.save("relative", (width_in, height_in), lambda figure: _bars(figure, measured, column))
    if len(measured) and limits is not None:
        figures.save("roofline", (9, 6), lambda figure: _roofline(figure, measured, limits))
    if len(kinds):
        height_in = 0.35 * len(kinds[["implementation", "layout"]].drop_duplicates()) + 1.6
        figures.save("breakdown", (9, height_in), lambda figure: _breakdown(figure, kinds))
    return figures.paths


def _colour(names: Sequence[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    return {name: colormaps[_COLOURS](index % 20) for index, name in enumerate(names)}


def _layers(rows: pd.DataFrame) -> list[tuple[int, str]]:
    """Return position and name of the rows' layers, in their order."""
    first = rows.drop_duplicates("position").sort_values("position")
    return [(int(position), str(layer)) for position, layer in zip(first["position"], first["layer"], strict=True)]


def _panels(rows: pd.DataFrame) -> list[tuple[int, str, str]]:
    """Return position, name and layout of the rows' layers: one after another, each in all its layouts."""
    layouts = list(dict.fromkeys(rows["layout"]))
    there = set(zip(rows["position"], rows["layout"], strict=True))
    return [(*layer, layout) for layer in _layers(rows) for layout in layouts if (layer[0], layout) in there]


def _violins(figure: Any, samples: pd.DataFrame) -> None:
    """Draw every sample against the median of its implementation: the times are far apart, their spreads a percent."""
    layers = _panels(samples)
    colours = _colour(list(dict.fromkeys(samples["implementation"])))
    panels = figure.subplots(len(layers), 1, squeeze=False)[:, 0]
    for axes, (position, layer, layout) in zip(panels, layers, strict=True):
        of_layer = samples[(samples["position"] == position) & (samples["layout"] == layout)]
        names = list(dict.fromkeys(of_layer["implementation"]))
        times = {name: of_layer.loc[of_layer["implementation"] == name, "sample_ms"].astype(float) for name in names}
        deviations_pct = [(100 * (each / each.median() - 1)).to_numpy() for each in times.values()]
        violins = axes.violinplot(deviations_pct, showmedians=True, widths=0.85)
        for body, name in zip(violins["bodies"], names, strict=True):
            body.set(facecolor=colours[name], alpha=0.8)
        labels = [f"{name}\n{each.median():.4g} ms" for name, each in times.items()]
        axes.set_xticks(range(1, len(names) + 1), labels, rotation=25, ha="right", fontsize=8)
        axes.set(ylabel="from the median, %", title=f"{layer}, {_upper(layout)}")
        grid(axes, axis="y")


def _bars(figure: Any, rows: pd.DataFrame, column: str) -> None:
    """Draw a panel for each layout, a bar for each layer and implementation."""
    layouts, names = list(dict.fromkeys(rows["layout"])), list(dict.fromkeys(rows["implementation"]))
    colours = _colour(names)
    for axes, layout in zip(figure.subplots(len(layouts), 1, squeeze=False)[:, 0], layouts, strict=True):
        _bars_of_layout(axes, rows[rows["layout"] == layout], column, colours)
        relative = column != "tflops"
        if relative:
            axes.axhline(1, color="black", linewidth=0.8)
        unit = f"speed, PyTorch's best in {_upper(layout)} = 1" if relative else f"rate in {_upper(layout)}, TFLOP/s"
        axes.set(ylabel=unit, xlabel="layer")
        grid(axes, axis="y")
    for name, colour in colours.items():
        axes.bar([0], [math.nan], color=colour, label=name)
    figure.legend(fontsize=8, loc="outside right upper")


def _bars_of_layout(axes: Any, rows: pd.DataFrame, column: str, colours: Mapping[str, Any]) -> None:
    layers = _layers(rows)
    names = [name for name in colours if name in set(rows["implementation"])]
    width = 0.85 / len(names)
    for index, name in enumerate(names):
        of_name = rows[rows["implementation"] == name].set_index("position")[column]
        places = [at + (index - (len(names) - 1) / 2) * width for at in range(len(layers))]
        heights = [of_name.get(position, math.nan) for position, _ in layers]
        axes.bar(places, heights, width, color=colours[name])
    axes.set_xticks(range(len(layers)), [layer for _, layer in layers])


def _roofline(figure: Any, rows: pd.DataFrame, limits: Ceilings) -> None:
    axes = figure.subplots()
    intensity = rows["flops"] / rows["bytes"]
    used = set(rows["arithmetic"])
    lines = roofs(limits, [name for name in limits.tflops if name in used], intensity)
    for name, (xs, ys) in lines.items():
        axes.plot(xs, ys, color="black", linewidth=1)
        axes.annotate(f"{name}: {ys[-1]:.4g} TFLOP/s", (xs[-1], ys[-1]), ha="right", va="bottom", fontsize=8)
    ridge = max(((xs[1], ys[1]) for xs, ys in lines.values()), default=(1.0, 1.0))
    axes.annotate(f"copy: {limits.copy_gbps:.4g} GB/s", ridge, ha="right", fontsize=8,
                  xytext=(-8, -4), textcoords="offset points")  # fmt: skip
    colours = _colour(list(dict.fromkeys(rows["implementation"])))
    marks = {layer: _MARKERS[index % len(_MARKERS)] for index, layer in enumerate(dict.fromkeys(rows["layer"]))}
    points = zip(rows["layer"], rows["implementation"], rows["layout"], intensity, rows["tflops"], strict=True)
    for layer, name, layout, at, rate in points:
        fill = "full" if layout == "ncdhw" else "none"
        axes.plot(at, rate, marks[layer], color=colours[name], markersize=6, fillstyle=fill)
    for name, colour in colours.items():
        axes.plot([], [], "s", color=colour, label=name)
    for layer, mark in marks.items():
        axes.plot([], [], mark, color="grey", label=layer)
    if "ndhwc" in set(rows["layout"]):
        axes.plot([], [], "o", color="grey", fillstyle="none", label="hollow: NDHWC")
    axes.set(xscale="log", yscale="log", xlabel="operations a byte, counted", ylabel="rate, TFLOP/s")
    grid(axes, which="both")
    figure.legend(fontsize=8, loc="outside right upper")


def roofs(
    limits: Ceilings, names: Sequence[str], intensity: pd.Series[float]
) -> dict[str, tuple[list[float], list[float]]]:
    """Return each roof as a line through its ridge that spans all points: operations a byte, and TFLOP/s."""
    slope = limits.copy_gbps / 1e3  # TFLOP/s for each operation a byte
    ridges = {name: limits.tflops[name] / slope for name in names}
    low = min([float(intensity.min()) / 4, *(ridge / 3 for ridge in ridges.values())])
    high = max([float(intensity.max()) * 4, *(ridge * 3 for ridge in ridges.values())])
    return {name: ([low, ridge, high], [low * slope, ridge * slope, ridge * slope]) for name, ridge in ridges.items()}


def _breakdown(figure: Any, kinds: pd.DataFrame) -> None:
    axes = figure.subplots()
    kinds = kinds.assign(named=kinds["implementation"] + ", " + kinds["layout"].str.upper())
    names = list(dict.fromkeys(kinds["named"]))
    left = dict.fromkeys(names, 0.0)
    for kind, of_kind in kinds.groupby("kind", sort=False):
        times = of_kind.set_index("named")["median_ms"].to_dict()
        lengths = [float(times.get(name, 0.0)) for name in names]
        axes.barh(names, lengths, left=[left[name] for name in names], label=kind)
        left = {name: left[name] + length for name, length in zip(names, lengths, strict=True)}
    axes.invert_yaxis()
    axes.set(xlabel="time of an inference pass, ms")
    grid(axes, axis="x")
    figure.legend(fontsize=8, loc="outside right upper")
