"""Text of `run_verify.py`: title of a subject, table of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from convscope.cli.display import or_dash, table
from convscope.cudnn import library
from convscope.profiling.request import Run
from convscope.timing.summary import Summary
from convscope.verification import choice
from convscope.verification.rows import ChoiceRow, PassRow


def subject_title(run: Run) -> str:
    """Return one line with model, algorithm, setting and device."""
    on_gpu = run.device_type == "cuda"
    where = f"{torch.cuda.get_device_name(run.device)}, cuDNN {library.version()}" if on_gpu else "a CPU"
    return f"{run.model}, {run.algorithm}, {run.input_sizes[0]} px, batch {run.batch_size}, {run.math}, on {where}"


def choice_report(rows: Sequence[ChoiceRow], passes: Mapping[str, Summary | PassRow]) -> str:
    """Return the fastest algorithm of each layer and the regret of each choice, then totals and whole passes."""
    layers: dict[int, list[ChoiceRow]] = {}
    for row in rows:
        layers.setdefault(row.position, []).append(row)
    picks = [pick for pick in choice.PICKS if any(row.candidate == pick for row in rows)]
    header = ("layer", "µs", *(f"{pick}: regret µs" for pick in picks), "fastest")
    lines = [table(header, [_choice_line(rows_of_layer, picks) for rows_of_layer in layers.values()])]
    fastest_ms = sum(first.mean_ms - first.regret_us / 1e3 for first, *_ in layers.values())
    lines.append(f"sum over {len(layers)} layers of the fastest: {fastest_ms * 1e3:.1f} µs")
    for pick, regret in choice.totals(rows).items():
        share = f"{100 * regret.mean_ms / fastest_ms:+.1f} %"
        lines.append(f"{pick}: {regret.mean_ms * 1e3:+.1f} ± {regret.half_width_ms * 1e3:.1f} µs ({share})")
    for name, times in passes.items():
        lines.append(f"whole pass, {name}: {times.mean_ms:.4f} ± {or_dash(times.std_ms, '.4f')} ms")
    return "\n".join(lines)


def _choice_line(rows: Sequence[ChoiceRow], picks: Sequence[str]) -> tuple[str, ...]:
    candidates = [row for row in rows if row.candidate not in choice.PICKS]
    ties = [row.candidate for row in candidates[1:] if row.rank == 1]
    by_name = {row.candidate: row for row in rows}
    fastest = candidates[0].candidate + (f" (ties: {', '.join(ties)})" if ties else "")
    figures = (f"{candidates[0].mean_ms * 1e3:.1f}", *(_pick(by_name.get(pick)) for pick in picks))
    return candidates[0].layer, *figures, fastest


def _pick(row: ChoiceRow | None) -> str:
    if row is None:
        return "-"
    tie = "" if abs(row.regret_us) > row.regret_ci99_us else " (tie)"
    return f"{row.chosen or 'another'} {row.regret_us:+.1f}{tie}"
