"""Verdict on the evidence of what ran, one line a question. Needs no GPU: a recorded trace will do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from convscope.cli.display import several
from convscope.convolution import algorithms, tolerance
from convscope.convolution.providers.plan import Execution
from convscope.convolution.reference import MARGIN
from convscope.profiling.request import Run
from convscope.verification import kernel_families
from convscope.verification.evidence import CONFIDENCE, Evidence, LayerEvidence

_LISTED = 4
_UNNAMED = ("torch", *algorithms.CHOOSERS)  # names that ask for no identifier of their own


@dataclass(frozen=True)
class Finding:
    """One line of the verdict; `passed` is None where it was not checked, or speaks neither for nor against."""

    passed: bool | None
    line: str

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "·"}[self.passed]
        return f"{mark} {self.line}"


def checks(evidence: Evidence) -> list[Finding]:
    """Judge the evidence, one line a question."""
    carried = [_names(evidence), _identifiers(evidence), *_kernels(evidence)]
    return [*carried, _layers_exact(evidence), _output_exact(evidence), _math_mode(evidence), _time(evidence)]


def confirmed(every: Sequence[Finding]) -> bool:
    """Tell whether nothing speaks against it."""
    return all(check.passed is not False for check in every)


def last_line(evidence: Evidence, every: Sequence[Finding]) -> str:
    """Return CONFIRMED or NOT CONFIRMED; where it is less than the whole model with all evidence, that too."""
    if not confirmed(every):
        return "NOT CONFIRMED"
    others = Counter(one.expected for one in evidence.layers if not _is_asked(one.expected, evidence.run.algorithm))
    less = [f"{count} of {len(evidence.layers)} layers as {name} instead" for name, count in others.items()]
    if evidence.kernels_missing:
        less.insert(0, "by names, identifiers and outputs; kernels were not checked")
    return f"CONFIRMED ({'; '.join(less)})" if less else "CONFIRMED"


def _is_asked(expected: str, asked: str) -> bool:
    """Tell whether an algorithm is the one that was asked for: of a mixture any plan is."""
    is_plan = asked in algorithms.MIXTURES and algorithms.plan_of(expected) is not None
    return is_plan or expected == asked


def _names(evidence: Evidence) -> Finding:
    wrong = [one for one in evidence.layers if one.carried != one.expected]
    total = len(evidence.layers)
    line = f"replaced: {total - len(wrong)} of {total} convolutions carry the algorithm's name"
    return Finding(not wrong, line + (f"; not {_listed(wrong)}" if wrong else ""))


def _identifiers(evidence: Evidence) -> Finding:
    wrong = [one for one in evidence.layers if one.expected not in _UNNAMED and not _as_asked(one, evidence.run)]
    counted = Counter(_title(one.ran) for one in evidence.layers)
    ran = (f"{several(count, 'layer')} ran {title}" for title, count in counted.most_common())
    line = f"identifier: {', '.join(ran)}"
    return Finding(not wrong, line + (f"; not what was asked for: {_listed(wrong)}" if wrong else ""))


def _as_asked(one: LayerEvidence, run: Run) -> bool:
    known = algorithms.find(one.expected)
    providers = (known.cpu_provider,) if run.device_type == "cpu" else known.cuda_providers
    if run.provider in providers:
        providers = (run.provider,)
    return one.ran.algorithm == one.expected and one.ran.provider in providers


def _title(ran: Execution) -> str:
    if ran.provider == "torch":
        return "PyTorch's own"
    number = algorithms.find(ran.algorithm).cudnn_number if ran.provider == "cudnn" else None
    return f"{ran.provider}'s {ran.algorithm}" + (f" ({number})" if number is not None else "")


def _kernels(evidence: Evidence) -> list[Finding]:
    if evidence.kernels_missing:
        return [Finding(None, f"kernels: not checked, {evidence.kernels_missing}")]
    promised = [one for one in evidence.layers if one.promises_kernels]
    if not promised:
        return [Finding(None, f"kernels: these names promise none; seen: {_families(evidence.layers)}")]
    bad = [one for one in promised if one.stranger is not None]
    line = f"kernels: {len(promised) - len(bad)} of {len(promised)} layers launched what their algorithm may launch"
    differing = [Finding(False, line) for line in disagreements(evidence.layers)]
    return [Finding(not bad, line), *differing, *_remarks(evidence)]


def _families(layers: Sequence[LayerEvidence]) -> str:
    """Return the families of the kernels that convolve, and in how many layers each is."""
    working = [kernel_families.working(one.kernels or {}) for one in layers]
    counted = Counter(family for kernels in working for family in {*map(kernel_families.family, kernels)})
    return ", ".join(f"{family} in {count}" for family, count in counted.most_common()) or "none"


def disagreements(layers: Sequence[LayerEvidence]) -> list[str]:
    """Return one line for each kernel that runs under a name which is not its own, most layers first.

    "gemm: 12 of 13 layers ran cudnn::cnn::conv2d_grouped_direct_kernel, a direct kernel"
    """
    totals = Counter(one.algorithm for one in layers)
    found = Counter((one.algorithm, _what(one.stranger)) for one in layers if one.stranger is not None)
    return [f"{name}: {count} of {totals[name]} layers ran {what}" for (name, what), count in found.most_common()]


def _what(stranger: str) -> str:
    if not stranger:
        return "no kernel that shows it"
    return f"{kernel_families.short_name(stranger)}, a kernel of the family {kernel_families.family(stranger)}"


def _remarks(evidence: Evidence) -> list[Finding]:
    """Say where a name is true to the letter only: nothing is precomputed, or there is no convolution to do."""
    name = "implicit precomp gemm"
    own = [one.kernels or {} for one in evidence.layers if one.algorithm == name]
    mine = [{kernel_families.family(kernel) for kernel in kernels} for kernels in own]
    plain = sum(kernel_families.IMPLICIT in kinds for kinds in mine)
    products = sum(kernel_families.PRODUCT in kinds and kernel_families.PRECOMPUTED not in kinds for kinds in mine)
    said = (
        (plain, "ran implicit gemm's kernel: nothing was precomputed"),
        (products, "have 1×1 kernels and ran as a bare matrix product"),
    )
    return [Finding(None, f"{name}: {count} of {len(mine)} layers {what}") for count, what in said if count]


def _layers_exact(evidence: Evidence) -> Finding:
    run = evidence.run
    known = [(one.relative_error, one.tolerance(run.math, run.dtype), one) for one in evidence.layers]
    measured = [(error, allowed, one) for error, allowed, one in known if error is not None]
    wrong = [one for error, allowed, one in measured if not error <= allowed]
    if not measured:
        return Finding(None, "layers against float64: not checked, every reference is zero")
    error, allowed, worst = max(measured, key=lambda entry: math.inf if math.isnan(entry[0]) else entry[0] / entry[1])
    line = (
        f"layers against float64: {len(measured) - len(wrong)} of {len(measured)} within their tolerance "
        f"(nearest to it: {worst.layer.name}, {error:.1e} of {allowed:.1e})"
    )
    return Finding(not wrong, line + (f"; not {_listed(wrong)}" if wrong else ""))


def _output_exact(evidence: Evidence) -> Finding:
    """Hold the whole model, with the errors of all its layers in it, against float64.

    In 16 bits a deep model may enlarge each rounding: what roundings alone do to it is measured, and allowed too.
    """
    run = evidence.run
    places = (("at the last convolution", evidence.last_error), ("at the output", evidence.output_error))
    known = [(place, error) for place, error in places if error is not None]
    if not known:
        return Finding(None, "whole model against float64: not checked, the references are zero")
    together = tolerance.whole_model_tolerance(one.tolerance(run.math, run.dtype) for one in evidence.layers)
    allowed = max(together, MARGIN * (evidence.moved or 0.0))
    shown = ", ".join(f"{error:.1e} {place}" for place, error in known)
    line = f"whole model against float64: {shown}, allowed {allowed:.1e} over {several(len(evidence.layers), 'layer')}"
    return Finding(all(error <= allowed for _, error in known), line)


def _math_mode(evidence: Evidence) -> Finding:
    """Hold tensor cores in kernel names and errors as of TF32 against what was asked for; TF32 is of float32 only."""
    loud = [one for one in evidence.layers if one.uses_tensor_cores]
    if evidence.run.dtype != "float32":
        seen = "kernels were not checked" if evidence.kernels_missing else "layers name tensor cores"
        counted = "" if evidence.kernels_missing else f"{len(loud)} of {len(evidence.layers)} "
        return Finding(None, f"{evidence.run.dtype}: TF32 does not apply, {counted}{seen}")
    coarse = [one for one in evidence.layers if not (one.relative_error or 0) <= one.tolerance("fp32")]
    quiet = [one for one in coarse if one.kernels is not None and not one.uses_tensor_cores]
    override = f", NVIDIA_TF32_OVERRIDE={evidence.tf32_override}" if evidence.tf32_override is not None else ""
    total = len(evidence.layers)
    by_name = "" if evidence.kernels_missing else f"{len(loud)} of {total} layers name tensor cores, "
    asked = "permitted" if evidence.run.math == "tf32" else "forbidden"
    line = f"TF32 {asked}: {by_name}{len(coarse)} of {total} have errors above those of float32{override}"
    bad = quiet if evidence.run.math == "tf32" else [*loud, *(one for one in coarse if one not in loud)]
    return Finding(not bad, line + (f"; this does not fit {_listed(bad)}" if bad else ""))


def _time(evidence: Evidence) -> Finding:
    ours, theirs, apart = evidence.swapped, evidence.torch, evidence.time
    what = "a tie" if apart.is_tie else "slower" if apart.mean_ms > 0 else "faster"
    interval = f"{apart.mean_ms:+.4f} ± {apart.half_width_ms:.4f} ms at {100 * CONFIDENCE:.0f} %"
    line = f"time: {ours.mean_ms:.4f} ms a pass, PyTorch's own {theirs.mean_ms:.4f} ms: {what} ({interval})"
    return Finding(None, line)


def _listed(layers: Sequence[LayerEvidence]) -> str:
    more = f" and {len(layers) - _LISTED} more" if len(layers) > _LISTED else ""
    return ", ".join(one.layer.name for one in layers[:_LISTED]) + more
