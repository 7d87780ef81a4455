#!/usr/bin/env python3
"""Figures of docs/data.md and docs/selection.md: what a published data set says. No GPU is needed.

python benchmarks/data_set.py [data/h200|data/h100] [--processes 2]
python benchmarks/data_set.py data/h200 --beside before.parquet

The first tables take half a minute. The last are of predictors, which takes minutes to an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from convscope.dataset import calls, choices, ranked_plans, samples
from convscope.dataset.samples import ARITHMETIC, SHAPE, SHARE
from convscope.prediction.features import engine, features
from convscope.selection import evaluation
from convscope.selection.evaluation import Question

KEY = [*SHAPE, *ARITHMETIC]
CHOOSERS = ("torch", "torch benchmark", "guess")
PLACEMENTS = 3
LEAST = 10  # shapes of which something is said to be the fastest
SHORT_MS, APART_US = 0.02, 1.3  # more than the error of a time by events, 1 µs for 95 %
CUBLASLT, FOURIER = (f"{choices.PLAN}{each}:" for each in (ranked_plans.CUBLASLT, ranked_plans.FOURIER))
LAUNCHES_US, LEAST_TRIED = (0, 2, 4, 6, 8, 12), 3
UNFOLDS = "im2col"  # in the name of a kernel that unfolds the image before a matrix product
EDGES_US = (0, 5, 10, 20, 50, 100, np.inf)


def fastest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return for each shape the fastest candidate of three placements beside PyTorch's own choice."""
    ready = frame[(frame["status"] == "ok") & (frame["placements"] >= PLACEMENTS)]
    own = ready[ready["algorithm"] == "torch"].set_index(KEY)
    rivals = ready[~ready["algorithm"].isin(CHOOSERS)]
    best = rivals.loc[rivals.groupby(KEY)["mean_ms"].idxmin()].set_index(KEY)
    both = best.join(own[["mean_ms", "mean_ci95_ms", "kernels"]], rsuffix="_own", how="inner").reset_index()
    low, high = both["mean_ms_own"] - both["mean_ci95_ms_own"], both["mean_ms"] + both["mean_ci95_ms"]
    both["faster"] = high < low
    both["gain"] = np.where(both["faster"], both["mean_ms_own"] / both["mean_ms"], 1.0)
    both["saved_ms"] = np.where(both["faster"], both["mean_ms_own"] - both["mean_ms"], 0.0)
    both["what"] = both["algorithm"].str.partition(":")[0] + " by " + both["ran_provider"].fillna("")
    one_by_one = both["kernel_size"] == "1x1"
    grouped = (both["groups"] > 1) & (both["groups"] < both["in_channels"])
    both["kind"] = np.select([grouped, both["groups"] > 1, one_by_one], ["grouped", "depthwise", "1x1"], "other")
    return both


def gains(both: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the share of shapes with a faster candidate, the mean gain, and the time saved."""
    parts = both.assign(log=np.log(both["gain"])).groupby(by)
    return pd.DataFrame(
        {
            "shapes": parts.size(), "faster, %": 100 * parts["faster"].mean(), "gain": np.exp(parts["log"].mean()),
            "saved, %": 100 * parts["saved_ms"].sum() / parts["mean_ms_own"].sum(),
        }
    ).round(2)  # fmt: skip


def grouped(both: pd.DataFrame) -> pd.DataFrame:
    """Return what grouped convolutions take, by setting and whether the channels of a group are a power of two.

    Launches are those of PyTorch's own choice; times, of that choice and of the fastest candidate, are multiples of the
    roofline's.
    """
    kept = both[(both["kind"] == "grouped") & both["kernels_own"].notna()].reset_index(drop=True)
    is_power = np.frexp(kept["in_channels"] / kept["groups"])[0] == 0.5
    kept["channels of a group"] = np.where(is_power, "a power of two", "others")
    kept["launches"] = kept["kernels_own"].map(samples.launches)
    roofline_ms = features(kept, {}).roofline_ms
    kept["PyTorch, x roofline"], kept["fastest"] = kept["mean_ms_own"] / roofline_ms, kept["mean_ms"] / roofline_ms
    parts = kept.groupby(["setting", "channels of a group"])
    columns = parts[["launches", "PyTorch, x roofline", "fastest"]].median().round(1)
    return columns.assign(shapes=parts.size())


def alike(timed: pd.DataFrame) -> pd.DataFrame:
    """Return, by setting and timing, how far apart short calls of the same launches are within a run by several names.

    These have the same kernels and workspace: one kernel may split its sums in more parts, which need more of it. Plans
    of one kernel differ in more than that (notes on the order of its blocks), so they are left out.
    """
    is_named = ~timed["algorithm"].str.startswith("plan")
    seen = is_named & timed[["kernels", "workspace_bytes"]].notna().all(axis=1)
    short = timed[seen & (timed["mean_ms"] < SHORT_MS)]
    timing = np.where(short["timing_method"] == SHARE, "share of a pass", "earlier")
    short = short.assign(timing=timing)
    sets = short.groupby([*KEY, "setting", "timing", "run", "kernels", "workspace_bytes"])["mean_ms"].agg(
        ["size", "min", "max"]
    )
    sets = sets[sets["size"] > 1]
    parts = (1e3 * (sets["max"] - sets["min"])).groupby(["setting", "timing"])
    columns = {"sets": parts.size(), "median, \u00b5s": parts.median(), "p95, \u00b5s": parts.quantile(0.95)}
    return pd.DataFrame(
        columns | {f"over {APART_US} \u00b5s, %": parts.apply(lambda us: 100 * (us > APART_US).mean())}
    ).round(2)


def changed(now: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Return, by the time of the call, how far times of one version of a set are from those of an earlier one.

    Calls are those that this version times as their share of a pass and the earlier one in another way; the median of
    each counts.
    """
    keys = [*KEY, "algorithm"]
    sides = now[now["timing_method"] == SHARE], before[before["timing_method"] != SHARE]
    mean_ms, other_ms = (
        side[(side["status"] == "ok") & (side["placements"] >= PLACEMENTS)].groupby(keys)["mean_ms"].median()
        for side in sides
    )
    both = pd.DataFrame({"now": mean_ms, "before": other_ms}).dropna()
    both["us"], both["pct"] = 1e3 * (both["now"] - both["before"]), 100 * (both["now"] / both["before"] - 1)
    parts = both.groupby(pd.cut(1e3 * both["now"], EDGES_US), observed=True)
    shares = {f"{100 * share:.0f} %": parts["us"].quantile(share) for share in (0.05, 0.95)}
    columns = {"calls": parts.size(), "median, \u00b5s": parts["us"].median(), **shares}
    return pd.DataFrame(columns | {"median, %": parts["pct"].median()}).round(2)


def as_asked(ran: pd.DataFrame) -> pd.DataFrame:
    """Return whether choices ran the kernels of the plan that follows from cuDNN's ranking, where that was measured.

    Where a choice ran Fourier transforms that are not in its list, it ran another plan: cuDNN ranks those only where a
    card is there. What no plan does (`choices.UNFOLDED`): whether they unfold the image.
    """
    in_order = {text: json.dumps(json.loads(text), sort_keys=True) for text in ran["kernels"].dropna().unique()}
    ran = ran.assign(kernels=ran["kernels"].map(in_order))
    rows = ran[ran["algorithm"].isin({*choices.CHOOSERS} - {choices.SEARCH}) & ran["kernels"].notna()]
    own = ran.drop_duplicates([*KEY, "algorithm"]).set_index([*KEY, "algorithm"])["kernels"]
    plan = pd.Series(choices.chosen(rows), rows.index)
    kernels = own.reindex(pd.MultiIndex.from_frame(rows[KEY].assign(algorithm=plan))).to_numpy(dtype=object)
    is_unknown = (plan == "") & ~rows["algorithm"].isin(choices.AMONG)
    is_unfolded, plans = plan == choices.UNFOLDED, rows["ran_algorithm"].fillna("")
    runs_fft = plans.eq(choices.FFT) | plans.str.startswith(FOURIER)
    is_other = runs_fft & ~is_unknown & (plan != choices.FFT)
    is_measured = pd.notna(kernels) | is_other | is_unfolded
    same = (rows["kernels"].to_numpy(dtype=object) == kernels) & ~is_other
    same = np.where(is_unfolded, rows["kernels"].str.contains(UNFOLDS, regex=False), same)
    kind = np.select([is_unknown, choices.depthwise(rows)], ["not known", "depthwise"], "others")
    parts = pd.DataFrame(
        {
            "plan": kind,
            "by": rows["algorithm"],
            "same": np.where(is_measured.astype(bool), same.astype(float), np.nan),
        }
    )
    each = parts.groupby(["plan", "by"])["same"]
    return pd.DataFrame({"calls": each.size(), "plan measured": each.count(), "same, %": 100 * each.mean()})


def searches(ran: pd.DataFrame, launches: pd.Series) -> pd.DataFrame:
    """Return how often a search takes what the fastest of its plans takes, in %, by the time of a launch from the host.

    The fastest is the one with the least time, or time of its launches, which is longer. Of shapes of which at least
    three of the plans were measured; within 10 %.

    Args:
        launches: of each row, those that count.
    """
    ran = ran.assign(launches=launches).reset_index(drop=True)
    plans = ran.drop_duplicates([*KEY, "algorithm"]).set_index([*KEY, "algorithm"])[["mean_ms", "launches"]]
    tried, of = choices.searched(choices.resolved(ran), {*ran["algorithm"].map(engine)})
    tried = plans.reindex(pd.MultiIndex.from_frame(tried[[*KEY, "algorithm"]])).assign(of=of).dropna()
    tried = tried[tried.groupby("of")["of"].transform("size") >= LEAST_TRIED]
    found = {}
    for us in LAUNCHES_US:
        with_launches = np.maximum(tried["mean_ms"], tried["launches"] * us / 1e3)
        first = tried.assign(reached=with_launches).sort_values(["reached", "mean_ms"]).groupby("of").first()
        asked = ran.loc[first.index]
        is_near = (first["mean_ms"] / asked["mean_ms"] - 1).abs() < 0.1
        found[f"{us} \u00b5s"] = 100 * is_near.groupby(asked["setting"]).mean()
    return pd.DataFrame(found | {"searches": asked.groupby("setting").size()}).round(1)


def asked_for() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data/h200"))
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of fits at once, each with up to 8 GB")
    text = "samples of an earlier version: print alone how far its times are from those that were taken anew"
    parser.add_argument("--beside", type=Path, metavar="FILE", help=text)
    return parser.parse_args()


def regrets(every: pd.DataFrame, asked: Question, processes: int) -> None:
    """Print the regret of each way to choose, of all and by setting, each as it is known."""
    taken, about = evaluation.chosen(every, asked, processes)
    print(f"regret, %, held back by {asked.kind}")
    found = evaluation.summed_up(taken, about, asked)
    print(pd.DataFrame(map(dataclasses.asdict, found)).drop(columns=["target", "split"]).round(1).to_string())
    regret_pct = 100 * (taken["taken"] / taken["best"] - 1)
    setting = about["setting"].reindex(taken["work"]).to_numpy()
    print(regret_pct.groupby([taken["by"], setting]).mean().unstack().round(1), end="\n\n")
    print(taken.drop_duplicates(["split", "work"])["work"].map(about["setting"]).value_counts(), end="\n\n")
    if asked.kind == "family":
        least = taken["by"] == evaluation.PREDICTED_LEAST
        by = [taken["split"][least], setting[least]]
        print(regret_pct[least].groupby(by).mean().unstack().round(1), end="\n\n", flush=True)


def main() -> int:
    """Print the tables."""
    options = asked_for()
    every = samples.read([options.folder / "samples.parquet"])
    if options.beside:
        print(changed(every, samples.read([options.beside])))
        return 0
    known = calls.read(calls.beside(options.folder / "samples.parquet"))
    every = every[(every["status"] != "ok") | every["mean_ms"].notna()]  # without energies alone
    every["setting"] = every["math"].where(every["dtype"] == "float32", every["dtype"])
    every["of"] = np.where(every["family"].isna(), "drawn", "models")
    once = every[every["run"] == every.groupby(KEY)["run"].transform("min")]  # of shapes measured twice, one run
    print(once.drop_duplicates(KEY).groupby(["of", "setting", "batch_size"]).size().unstack(), end="\n\n")
    both = fastest(once)
    print(gains(both, ["of", "setting"]), gains(both, ["of", "setting", "kind"]), sep="\n\n", end="\n\n")
    print("grouped convolutions, medians", grouped(both), sep="\n", end="\n\n")
    by = both[both["faster"]].groupby(["of", "setting", "what"]).size()
    print(by[by >= LEAST].sort_values(ascending=False), end="\n\n")
    timed = every[(every["status"] == "ok") & (every["placements"] >= PLACEMENTS)]
    half_pct = 100 * timed["mean_ci95_ms"] / timed["mean_ms"]
    print("half the 95 % interval, % of the mean, median, by \u00b5s")
    print(half_pct.groupby(pd.cut(1e3 * timed["mean_ms"], EDGES_US), observed=True).median().round(1), end="\n\n")
    print(f"the same launches under several names, calls below {1e3 * SHORT_MS:.0f} \u00b5s")
    print(alike(timed), end="\n\n")
    ran = every[every["status"] == "ok"]
    print("the kernels of the plan that follows from cuDNN's ranking")
    print(as_asked(ran).round(2), end="\n\n")
    print("searches that take what the fastest of their plans takes, %, by the time of a launch: grouped convolutions")
    of_groups = ran[(ran["groups"] > 1) & (ran["groups"] < ran["in_channels"])]
    print(searches(of_groups, of_groups["kernels"].map(samples.launches)), end="\n\n")
    print("the same of 1x1 convolutions of stride 1, by the time of a launch through cuBLASLt alone")
    of_one = ran[(ran["kernel_size"] == "1x1") & (ran["stride"] == "1x1") & (ran["groups"] == 1)]
    by_cublaslt = of_one["algorithm"].str.startswith(CUBLASLT).astype(int)
    print(searches(of_one, by_cublaslt), end="\n\n", flush=True)  # regrets take minutes
    for kind in ("layer", "family"):
        regrets(every, Question(kind=kind, calls=known), options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
