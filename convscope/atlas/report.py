"""Text of `run_verify.py --plans`: a line for each shape, whole passes, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from convscope.atlas.rows import LOST, OK, SLOW, PlanRow
from convscope.cli.display import table
from convscope.convolution import tolerance
from convscope.cudnn.shape import dimensions
from convscope.verification import report
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC
from convscope.verification.rows import PassRow

PICKED = {
    "PyTorch": HEURISTIC,
    "benchmark": BENCHMARK,
    "legacy": GUESS,
}
HEADER = (
    *("layer", "calls", "shape", "plans", "µs", "fastest"),
    *(f"{title}: regret µs" for title in (*PICKED, "ONNX Runtime")),
    "PyTorch runs",
)


def plans_report(rows: Sequence[PlanRow], passes: Mapping[str, PassRow]) -> str:
    """Return the fastest plan of each shape and the regret of each pick, whole passes, advice, and what is wrong.

    A table of convolutions has no passes, and no advice then.
    """
    shapes: dict[int, list[PlanRow]] = {}
    for row in rows:
        shapes.setdefault(row.position, []).append(row)
    calls = sum(mine[0].layers for mine in shapes.values())
    lines = [table(HEADER, [_line(mine) for mine in shapes.values()])]
    lines += [report.pass_line(name, judged, calls) for name, judged in passes.items()]
    lines += [_energy_line(name, judged) for name, judged in passes.items() if judged.energy_per_inference_j]
    counted = Counter(row.outcome for row in rows if row.engine is not None)
    if counted:  # on a CPU there are none
        lines.append("plans: " + ", ".join(f"{count} {outcome}" for outcome, count in counted.most_common()))
    wrong = [row for row in rows if row.outcome == tolerance.WRONG]
    lines += [f"{row.candidate} of {row.layer} is wrong: {row.reason}" for row in wrong]
    lines += [f"{row.candidate} of {row.layer} {LOST}: {row.reason}" for row in rows if row.outcome == LOST]
    return "\n".join([*lines, *([report.advice(passes)] if passes else [])])


def _energy_line(name: str, judged: PassRow) -> str:
    """Return what a pass by an assignment spends."""
    spent_j, half_j = judged.energy_per_inference_j or 0.0, judged.energy_uncertainty_j
    return f"{name}: {1e3 * spent_j:.2f}" + (f" ± {1e3 * half_j:.2f}" if half_j else "") + " mJ a pass"


def _line(rows: Sequence[PlanRow]) -> tuple[str, ...]:
    """Return the cells of one shape."""
    offered = [row for row in rows if row.engine is not None]
    fastest = next((row for row in rows if row.is_fastest), None)
    by_name = {row.candidate: row for row in rows}
    torchs = by_name.get(HEURISTIC)
    first = rows[0]
    size = "-" if first.in_height_px is None else dimensions((first.in_height_px, first.in_width_px or 0), short=True)
    shape = " ".join(
        (
            f"{first.in_channels}-{first.out_channels} {first.kernel_size}/{first.stride} {size}",
            *(f"+{step}" for step in (first.fused or "").split()),
        )
    )
    return (
        *(first.layer, str(first.layers), shape, f"{sum(row.outcome == OK for row in offered)}/{len(offered)}"),
        f"{fastest.mean_ms * 1e3:.1f}" if fastest and fastest.mean_ms else "-",
        fastest.candidate if fastest else "-",
        *(_regret(by_name.get(name)) for name in PICKED.values()),
        _regret(_first_of_b(offered)),
        (torchs.same_kernels_as if torchs else None) or "-",
    )


def _first_of_b(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Return the first plan of mode B that is exact enough and runs, which ONNX Runtime takes."""
    ranked = [row for row in rows if row.rank_b is not None and row.outcome in (OK, SLOW)]
    return min(ranked, key=lambda row: row.rank_b or 0, default=None)


def _regret(row: PlanRow | None) -> str:
    """Return what a pick costs over the fastest plan, and whether that is no difference, or of one round alone."""
    if row is None or row.regret_us is None:
        return "-"
    if row.is_fastest:
        return "0"
    if row.regret_ci99_us is None:
        return f"{row.regret_us:+.1f} (1 round)"
    return f"{row.regret_us:+.1f}" + ("" if abs(row.regret_us) > row.regret_ci99_us else " (tie)")
