"""Text of `run_verify.py`: title of a subject, table of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from convscope.cli.display import or_dash, several, table
from convscope.cudnn import library
from convscope.storage.paths import precision
from convscope.verification import candidates, choice
from convscope.verification.request import Verification
from convscope.verification.rows import ChoiceRow, PassRow


def subject_title(run: Verification) -> str:
    """Return one line with model, algorithm, setting and device."""
    on_gpu = run.device_type == "cuda"
    where = f"{torch.cuda.get_device_name(run.device)}, cuDNN {library.version()}" if on_gpu else "a CPU"
    settings = f"{run.input_sizes[0]} px, batch {run.batch_size}, {run.math}{precision(run.dtype, run.layout)}"
    fused = ", fused" if run.fused else ""
    return f"{run.model}, {run.algorithm}{fused}, {settings}, on {where}"


def choice_report(rows: Sequence[ChoiceRow], passes: Mapping[str, PassRow]) -> str:
    """Return the fastest algorithm of each layer and the regret of each choice, whole passes, and what to do."""
    layers: dict[int, list[ChoiceRow]] = {}
    for row in rows:
        layers.setdefault(row.position, []).append(row)
    picks = [pick for pick in candidates.PICKS if any(row.candidate == pick for row in rows)]
    header = ("layer", "µs", *(f"{pick}: regret µs" for pick in picks), "fastest")
    lines = [table(header, [_choice_line(rows_of_layer, picks) for rows_of_layer in layers.values()])]
    lines += [pass_line(name, judged, len(layers)) for name, judged in passes.items()]
    return "\n".join([*lines, advice(passes)])


def pass_line(name: str, judged: PassRow, layers: int) -> str:
    """Return the whole passes of an assignment on one line, and the regret of its `layers` convolutions."""
    text = f"{name}: whole pass {judged.mean_ms:.4f} ± {or_dash(judged.std_ms, '.4f')} ms"
    if judged.layers_us is None:
        return text
    text += f", its {several(layers, 'convolution')} {judged.layers_us:.1f} µs"
    if judged.regret_us is None or name == choice.TOGETHER:
        return text
    share = 100 * judged.regret_us / (judged.layers_us - judged.regret_us)
    return f"{text}, {judged.regret_us:+.1f} ± {or_dash(judged.regret_ci99_us, '.1f')} µs ({share:+.1f} %)"


def advice(passes: Mapping[str, PassRow]) -> str:
    """Return one sentence: keep PyTorch's choice, or what choosing layer by layer saves of its pass."""
    judged, torchs = passes.get(choice.TOGETHER), passes.get(candidates.HEURISTIC)
    if all(row.layers_us is None for row in passes.values()):
        return "an older version wrote these tables: PyTorch was no candidate, pairs stood alone; --overwrite them"
    if judged is None or torchs is None or judged.saved_us is None or judged.saved_ci99_us is None:
        return "no advice: PyTorch's pass, or that of the fastest of each layer, could not be timed"
    of = f"of {torchs.mean_ms * 1e3:.1f} µs"
    by = f"{abs(judged.saved_us):.1f} ± {judged.saved_ci99_us:.1f} µs"
    share = f"{100 * abs(judged.saved_us) / (torchs.mean_ms * 1e3):.1f} %"
    if judged.saved_us > judged.saved_ci99_us:
        return f"choosing layer by layer would save {by} {of} ({share}; ± half the 99 % interval)"
    if judged.saved_us < -judged.saved_ci99_us:
        return f"keep PyTorch's choice: choosing layer by layer would cost {by} more {of} (± half the 99 % interval)"
    sign = "less" if judged.saved_us > 0 else "more"
    return f"keep PyTorch's choice: choosing layer by layer would take {by} {sign} {of}, no difference at 99 %"


def _choice_line(rows: Sequence[ChoiceRow], picks: Sequence[str]) -> tuple[str, ...]:
    rivals = [row for row in rows if row.candidate not in candidates.CHOOSERS_ONLY]
    ties = [row.candidate for row in rivals[1:] if row.rank == 1]
    by_name = {row.candidate: row for row in rows}
    fastest = rivals[0].candidate + (f" (ties: {', '.join(ties)})" if ties else "")
    figures = (f"{rivals[0].mean_ms * 1e3:.1f}", *(_pick(by_name.get(pick)) for pick in picks))
    return rivals[0].layer, *figures, fastest


def _pick(row: ChoiceRow | None) -> str:
    if row is None:
        return "-"
    tie = "" if abs(row.regret_us) > row.regret_ci99_us else " (tie)"
    return f"{row.chosen or ('another' if row.kernels else 'unknown')} {row.regret_us:+.1f}{tie}"
