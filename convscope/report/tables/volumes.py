"""Tables of the page from studies of 3-D convolutions: layer by layer, the network, and its kinds of layers."""

from __future__ import annotations

import pandas as pd

from convscope.report.folders import Folder
from convscope.report.labels import plain
from convscope.report.tables.frames import column, numeric, panels, texts
from convscope.report.tables.studies import of_study

ENDS = {"median_ms": "mean_ms", "median_low_ms": "low_ms", "median_high_ms": "high_ms"}


def of_conv3d(folder: Folder) -> pd.DataFrame:
    """Return a row for each layer by each implementation of a 3-D study."""
    rows = folder.tables.get("conv3d", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    renames = ENDS | {"ratio_to_cudnn_best": "to_cudnn", "ratio_to_torch_best": "to_torch"}
    own = ("layer", "position", "provider", "tflops", "tolerance", "status", "reason")
    frame = of_study(folder, rows, {name: name for name in own} | renames | {"elementwise_error": "error"})
    frame["provider"], frame["arithmetic"] = texts(frame["provider"]), texts(column(rows, "arithmetic"))
    shape = column(rows, "channels").astype(str) + " → " + column(rows, "filters").astype(str)
    frame["shape"] = texts(shape + ", " + column(rows, "kernel").astype(str))
    frame["intensity"] = numeric(rows, "flops") / numeric(rows, "bytes")
    return _named(folder, rows, frame)


def of_networks(folder: Folder) -> pd.DataFrame:
    """Return a row for the whole network with each implementation."""
    rows = folder.tables.get("end_to_end", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    renames = {"inference_ms": "mean_ms", "inference_low_ms": "low_ms", "inference_high_ms": "high_ms"}
    own = ("training_step_ms", "relative_error", "tolerance", "status", "reason")
    return _named(folder, rows, of_study(folder, rows, {name: name for name in own} | renames))


def of_kinds(folder: Folder) -> pd.DataFrame:
    """Return a row for each kind of layer in an inference pass of the network with each implementation."""
    rows = folder.tables.get("breakdown", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    frame = of_study(folder, rows, {"median_ms": "mean_ms", "share_pct": "share_pct"})
    passes = [rows["implementation"], column(rows, "layout").astype(str)]
    frame["pass_ms"] = numeric(rows, "median_ms").groupby(passes).transform("sum")
    networks = numeric(folder.tables.get("end_to_end", pd.DataFrame()), "batch").dropna()
    if len(networks):  # whose rows say it
        frame["batch"] = int(networks.iloc[0])
    return _named(folder, rows, frame.assign(category=texts(rows["kind"]), layers=numeric(rows, "layers")))


def _named(folder: Folder, rows: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their implementation, layout and set of layers, and the title of their picture."""
    frame["implementation"], frame["layout"] = texts(rows["implementation"]), texts(column(rows, "layout"))
    frame["model"] = plain(folder.request.get("params", folder.path.name))
    return frame.drop(columns="algorithm").assign(panel=panels(frame))
