"""Two runs of the same work side by side, with a verdict for each row: `python -m convscope compare A B`.

A verdict rests on the interval of the difference of the means and on a tolerance. Where another place of the tensors in
memory, clocks, heat, or chance among many rows could account for it, the row is ambiguous (`judgement`). Reads results,
measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convscope.cli.display import interval_or_dash, or_dash, several, table
from convscope.cli.options import percent
from convscope.cli.parser import OneLineParser, one_line, uncollected
from convscope.errors import InputError
from convscope.profiling.comparison import judgement
from convscope.profiling.comparison.judgement import estimate, verdict
from convscope.profiling.rows import SCHEMA, LayerRow, OverallRow, Row, profile_store
from convscope.storage import paths
from convscope.storage.environment import ORIGIN, PROCESSOR, SOFTWARE
from convscope.storage.paths import MODEL_DIGEST, slug

VERDICTS = ("slower", "ambiguous", "not compared", "same", "faster")

# Runs of the same kernels on an H200 were up to 4 % apart, from one place of their tensors in memory to another.
TOLERANCE_PCT = 5.0

# Where a version has no other.
USUAL = {"dtype": "float32", "layout": "nchw", "plans_digest": "", "evicts": False, "adds_up": False}
WORK = ("model", "batch_size", "input_shape", "dtype")
ENVIRONMENT = ("device_type", "math", "evicts", "adds_up", *SOFTWARE, "power_limit_w", "ecc")
NOTED = (
    MODEL_DIGEST,
    "algorithm",
    "plans_digest",
    "provider",
    "layout",
    "unsupported",
    "pretrained",
    "warmup_iters",
    "measure_iters",
    "host",
    "gpu_uuid",
    "git_commit",
)

Differences = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Result:
    """One folder of results: its request and environment as one mapping, and its rows by what identifies them."""

    path: Path
    about: Mapping[str, Any]
    overall: Mapping[int, OverallRow]
    layers: Mapping[tuple[int, int], LayerRow]


@dataclass(frozen=True)
class Comparison:
    """One row of both runs: the whole pass at one size, or a layer of it. `change_pct` is how much longer B took.

    `p_value` is the probability of a difference as far beyond the tolerance where there is none.
    """

    input_size: int
    verdict: str
    reason: str = ""
    position: int | None = None
    layer: str | None = None
    a_ms: float | None = None
    b_ms: float | None = None
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    p_value: float | None = None
    a_w: float | None = None
    b_w: float | None = None
    a_j: float | None = None
    b_j: float | None = None


def read(path: Path | str, with_layers: bool = True) -> Result:
    """Read one folder of results, on request without the rows of its layers.

    Raises:
        InputError: it is not one, cannot be read, or has no row yet.
    """
    path = Path(path)
    document = SCHEMA.read(path / "run.json")
    if document is None:
        raise InputError(f"{path} has no run.json: give the folder of a run, like results/2_quick/vgg16_gemm_h200")
    run = document["run"]
    store = profile_store(path, f"{slug(run['model'])}_{slug(run['algorithm'])}")
    rows = store.objects("overall", *(("layers",) if with_layers else ()))
    if not rows["overall"]:
        name = store.files.table("overall").name
        raise InputError(f"{path} has no row in {name}: wait until its run has measured a size")
    return Result(
        path,
        USUAL
        | run
        | document["environment"]
        | {"device_type": str(run.get("device", "")).split(":")[0]}
        | _origins(rows["overall"]),
        {row.input_size: row for row in rows["overall"]},
        {(row.input_size, row.position): row for row in rows.get("layers", ())},
    )


def _origins(rows: Sequence[OverallRow]) -> dict[str, str]:
    """Return the places that the rows name, several of a kind on one line; those of older versions name none."""
    named = {name: sorted({value for row in rows if (value := getattr(row, name))}) for name in ORIGIN}
    return {name: ", ".join(values) for name, values in named.items() if values}


def differences(a: Result, b: Result, across: bool) -> Differences:
    """Return in what the two runs differ, by name; with `across` their environments may differ.

    Raises:
        InputError: they did different work, or their environments differ and must not.
    """
    work = _differing(a, b, WORK)
    if work:
        raise InputError(f"A and B are different work ({in_words(work)}): compare runs that agree in {', '.join(WORK)}")
    names = ENVIRONMENT + (PROCESSOR if "cpu" in (a.about["device_type"], b.about["device_type"]) else ())
    environment = _differing(a, b, names)
    if environment and not across:
        raise InputError(f"A and B ran in different environments ({in_words(environment)}): --across compares them")
    return environment | _differing(a, b, NOTED)


def _differing(a: Result, b: Result, names: Sequence[str]) -> Differences:
    pairs = {name: (a.about.get(name), b.about.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other and _known(name, one, other)}


def _known(name: str, one: Any, other: Any) -> bool:
    return name != MODEL_DIGEST or bool(one and other)  # older versions had no digest, and "" is an unknown one


def in_words(found: Differences) -> str:
    """Return differences on one line: "driver 580.1 and 590.2, math tf32 and fp32"."""
    return ", ".join(f"{name} {one} and {other}" for name, (one, other) in found.items()) or "nothing"


def passes(a: Result, b: Result, tolerance_pct: float) -> list[Comparison]:
    """Compare the whole pass at every size that one of the runs has, in order."""
    sizes = sorted({*a.overall, *b.overall})
    found = [_compare_pass(size, a.overall.get(size), b.overall.get(size), tolerance_pct) for size in sizes]
    return _beyond_chance(found, "passes")


def layers(a: Result, b: Result, tolerance_pct: float) -> list[Comparison]:
    """Compare the layers at the sizes that both runs have, by size and position."""
    both = a.overall.keys() & b.overall.keys()
    keys = sorted(key for key in {*a.layers, *b.layers} if key[0] in both)
    found = []
    for size, position in keys:
        one, other = a.layers.get((size, position)), b.layers.get((size, position))
        name = next(row.layer for row in (one, other) if row)
        start = partial(Comparison, size, position=position, layer=name)
        found.append(_compare_layer(start, one, other, a.overall[size], b.overall[size], tolerance_pct))
    return _beyond_chance(found, "layers")


def _beyond_chance(found: Sequence[Comparison], noun: str) -> list[Comparison]:
    """Return comparisons without the verdicts that are to be expected by chance, since so many were made at once."""
    p_values = [each.p_value for each in found if each.p_value is not None]
    most = judgement.beyond_chance(p_values)
    reason = f"of {len(p_values)} {noun} compared one may be as far apart by chance"
    return [
        dataclasses.replace(each, verdict="ambiguous", reason=", ".join(filter(None, (reason, each.reason))))
        if each.verdict in ("slower", "faster") and (each.p_value or 0.0) > most
        else each
        for each in found
    ]


def _compare_pass(size: int, a: OverallRow | None, b: OverallRow | None, tolerance_pct: float) -> Comparison:
    if a is None or b is None:
        return Comparison(size, "not compared", f"only in {'A' if a else 'B'}")
    compared = _judged(partial(Comparison, size), a, b, (a, b), 0.0, tolerance_pct)
    fallbacks = ("A", a.fallback_layers), ("B", b.fallback_layers)
    fell_back = [f"{name} ran {several(count, 'layer', '.0f')} with a fallback" for name, count in fallbacks if count]
    reason = ", ".join(filter(None, (compared.reason, *fell_back)))
    a_j, b_j = a.energy_per_inference_j, b.energy_per_inference_j
    return dataclasses.replace(compared, reason=reason, a_w=a.power_mean_w, b_w=b.power_mean_w, a_j=a_j, b_j=b_j)


def _compare_layer(
    start: partial[Comparison], a: LayerRow | None, b: LayerRow | None, a_pass: OverallRow, b_pass: OverallRow,
    tolerance_pct: float,
) -> Comparison:  # fmt: skip
    if a is None or b is None:
        return start(verdict="not compared", reason=f"only in {'A' if a else 'B'}")
    if a.layer != b.layer:
        return start(verdict="not compared", reason=f"{a.layer} in A, {b.layer} in B")
    # What was taken off each layer is measured anew in each run: the two may disagree by as much. The intervals of
    # layers that were timed in several placements hold that already.
    apart_us = abs((a_pass.event_overhead_us or 0.0) - (b_pass.event_overhead_us or 0.0))
    doubt_ms = 0.0 if a.placements and b.placements else apart_us / 1e3
    return _judged(partial(start, a_j=a.energy_j, b_j=b.energy_j), a, b, (a_pass, b_pass), doubt_ms, tolerance_pct)


def _judged(
    start: partial[Comparison], a: Row, b: Row, conditions: tuple[OverallRow, OverallRow], doubt_ms: float,
    tolerance_pct: float,
) -> Comparison:  # fmt: skip
    """Compare the times of two rows; `start` has what names them, `conditions` are the passes they were taken in."""
    one, other = estimate(a), estimate(b)
    status = ", ".join(f"{name} is {row.status}" for name, row in (("A", a), ("B", b)) if row.status != "ok")
    times = partial(start, a_ms=one.mean_ms if one else None, b_ms=other.mean_ms if other else None)
    if one is None or other is None or status:
        return times(verdict="not compared", reason=status or "no time")
    b_pct = 100 * other.mean_ms / one.mean_ms
    found = judgement.change(one, other, tolerance_pct, doubt_ms)
    if found is None:
        reason = "a single sample says nothing of its spread"
        return times(verdict="ambiguous", reason=reason, change_pct=b_pct - 100)
    said, reason = verdict(found.low_pct, found.high_pct, tolerance_pct), ""
    if said == "ambiguous":
        borders = (-tolerance_pct, tolerance_pct)
        crossed = [border for border in borders if found.low_pct <= border <= found.high_pct]
        reason = f"the interval crosses {' and '.join(f'{border:+g}' for border in crossed)} %"
    elif doubt := judgement.card_doubt(*conditions, found, b_pct, tolerance_pct):
        said, reason = "ambiguous", doubt
    elif said != "same" and (doubt := judgement.placement_doubt(one, other)):
        spreads = f"{a.placement_spread_pct:.1f} and {b.placement_spread_pct:.1f} %"
        said, reason = "ambiguous", f"{doubt}: spreads of {spreads} over placements"
    return times(verdict=said, reason=reason, **vars(found))


def as_text(
    a: Result, b: Result, found: Differences, by_pass: Sequence[Comparison], by_layer: Sequence[Comparison]
) -> str:
    """Return both runs, their differences, and a line a comparison."""
    titles = [f"A  {_title(a)}", f"B  {_title(b)}", f"they differ in: {in_words(found)}"]
    lines = [*map(one_line, titles), "", _table(by_pass)]
    return "\n".join(lines + (["", _table(by_layer)] if by_layer else []))


def _title(result: Result) -> str:
    about = result.about
    named = about["model"], about["algorithm"], about["math"], f"batch {about['batch_size']}"
    precision = paths.precision(about["dtype"], about["layout"])
    return f"{result.path}: {', '.join(named)}{precision}, on {about['gpu_name'] or about['cpu']}"


def _table(found: Sequence[Comparison]) -> str:
    """Return a line a comparison; power and energy where a row of both runs has them, layers where they are some."""
    wanted = [
        ("size", [str(each.input_size) for each in found]),
        ("layer", [each.layer or "" for each in found]),
        ("A, ms", [or_dash(each.a_ms, ".4f") for each in found]),
        ("B, ms", [or_dash(each.b_ms, ".4f") for each in found]),
        ("change, %", [or_dash(each.change_pct, "+.1f") for each in found]),
        ("95 % interval", [interval_or_dash(each.low_pct, each.high_pct, "+.1f") for each in found]),
    ]
    if any(each.a_w is not None and each.b_w is not None for each in found):
        wanted += [("A, W", [or_dash(each.a_w, ".0f") for each in found])]
        wanted += [("B, W", [or_dash(each.b_w, ".0f") for each in found])]
    if any(each.a_j is not None and each.b_j is not None for each in found):
        wanted += [("A, mJ", [_millijoules(each.a_j) for each in found])]
        wanted += [("B, mJ", [_millijoules(each.b_j) for each in found])]
    wanted.append(("verdict", [": ".join(filter(None, (each.verdict, each.reason))) for each in found]))
    shown = [(name, cells) for name, cells in wanted if any(cells)]
    return table([name for name, _ in shown], list(zip(*(cells for _, cells in shown), strict=True)))


def _millijoules(energy_j: float | None) -> str:
    return or_dash(None if energy_j is None else energy_j * 1e3, ".1f")


def counted(found: Sequence[Comparison]) -> str:
    """Return how many comparisons have each verdict: "1 slower, 9 same"."""
    counts = Counter(each.verdict for each in found)
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]) or "none"


def main(arguments: Sequence[str]) -> int:
    """Print both runs side by side; return 1 where something is slower, 0 where nothing is.

    Raises:
        InputError: a folder cannot be read, the runs must not be compared, or no row of them can be.
    """
    options = _parser().parse_args(arguments)
    with uncollected():
        return _compare(options)


def _compare(options: argparse.Namespace) -> int:
    a, b = read(options.a), read(options.b)
    found = differences(a, b, options.across)
    by_pass, by_layer = passes(a, b, options.tolerance), layers(a, b, options.tolerance)
    if all(each.verdict == "not compared" for each in by_pass):
        raise InputError(f"no size of A and B can be compared ({by_pass[0].input_size} px: {by_pass[0].reason})")
    judged = by_pass + (by_layer if options.layers else [])
    exit_code = int(any(each.verdict == "slower" for each in judged))
    if options.json:
        document = {"a": str(a.path), "b": str(b.path), "differences": found, "tolerance_pct": options.tolerance}
        document |= {"passes": [*map(dataclasses.asdict, by_pass)], "layers": [*map(dataclasses.asdict, by_layer)]}
        print(json.dumps(document | {"exit_code": exit_code}, indent=2))
        return exit_code
    print(as_text(a, b, found, by_pass, by_layer if options.layers else ()))
    print(f"\npasses: {counted(by_pass)}\nlayers: {counted(by_layer)}")
    print(f"same: within {options.tolerance:g} % (--tolerance)")
    return exit_code


def _parser() -> argparse.ArgumentParser:
    about = "Two runs of the same work side by side. Exit code 1: something is slower; 0: nothing is."
    examples = (
        "results/2_quick/alexnet_direct_cpu results/2_quick/alexnet_smm_cpu",
        "before after --layers --tolerance 2",
    )
    made = OneLineParser(prog="convscope compare", description=about, examples=examples)
    made.add_argument("a", type=Path, metavar="A", help="folder of the run to compare with")
    made.add_argument("b", type=Path, metavar="B", help="folder of the run to judge")
    until = "a difference up to this counts as none (%(default)g)"
    made.add_argument("--tolerance", type=percent, default=TOLERANCE_PCT, metavar="PCT", help=until)
    also = "list the layers too, and let them decide the exit code too"
    made.add_argument("--layers", action="store_true", help=also)
    made.add_argument("--across", action="store_true", help="compare runs of different GPU, software or math too")
    made.add_argument("--json", action="store_true", help="print JSON, for programs")
    return made
