"""Request of a verification, checked: one model at one input size, and the question that is asked of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from convscope.cli.options import at_least
from convscope.errors import InputError
from convscope.profiling.request import Run, make_run
from convscope.storage.paths import STAGES, slug, suffix

SUPPORT, CHOICE, PLANS, FIRST_CALL = "support", "choice", "plans", "first_call"


@dataclass(frozen=True)
class Verification(Run):
    """Question of a model: `SUPPORT`, `CHOICE`, `PLANS` or `FIRST_CALL`; None asks for the verdict on one algorithm.

    Attributes:
        rounds: captures of each candidate, for a choice and for plans.
        limit_bytes: largest workspace that counts as usable, for support; None is the free memory.
        fused: plans take the bias, addition and ReLU behind a convolution too, of a model whose normalisation is
            folded.
        first: for plans, only so many of each heuristic; None is all.
        by_name: for plans, the algorithms that have names too.
    """

    question: str | None = None
    rounds: int | None = None
    limit_bytes: int | None = None
    fused: bool = False
    first: int | None = None
    by_name: bool = False

    @property
    def name(self) -> str:
        """Folder of the table under `results/<question>/`."""
        settings = f"{self.input_sizes[0]}px_batch{self.batch_size}_{self.math}"
        more = ("_fused" if self.fused else "") + (f"_first{self.first}" if self.first else "")
        more += "_named" if self.by_name else ""
        return f"{slug(self.model)}_{slug(self.gpu)}_{settings}{suffix(1, self.dtype, self.layout)}{more}"


def make_verification(
    model: str,
    algorithm: str,
    input_size: int | None = None,
    *,
    question: str | None = None,
    dtype: str | None = None,
    rounds: int | None = None,
    limit_bytes: int | None = None,
    fused: bool = False,
    first: int | None = None,
    by_name: bool = False,
    **settings: Any,
) -> Verification:
    """Decide every setting of a verification.

    Args:
        input_size: in pixels; None is the one that the model takes alone, or 224.
        dtype: of input and weights; None is float32, and float64 is for support only.
        fused, first, by_name: as in `Verification`.
        settings: those of `make_run`.

    Raises:
        InputError: too few rounds, energy of fused plans, or as `make_run`.
    """
    _check(rounds, first, fused, by_name, bool(settings.get("energy")))
    dtype = dtype or "float32"
    if dtype == "float64" and question != SUPPORT:
        raise InputError("--dtype float64 is for --support: choose float32, float16 or bfloat16")
    given = {"energy": False, **settings, "dtype": "float32" if dtype == "float64" else dtype}
    given |= {"num_sizes": 1} if input_size is None else {"input_sizes": [input_size], "stage": STAGES[0]}
    run = make_run(model, algorithm, **given)
    fields = dataclasses.asdict(run) | {"dtype": dtype}
    fields["measure_iters"] = 20 if run.device_type == "cuda" else 3
    return Verification(
        **fields, question=question, rounds=rounds, limit_bytes=limit_bytes, fused=fused, first=first, by_name=by_name
    )


def _check(rounds: int | None, first: int | None, fused: bool, by_name: bool, energy: bool) -> None:
    """Raise InputError for too few rounds or plans, and for what is not of fused convolutions."""
    if rounds is not None:
        at_least("--rounds", rounds, 2)
    if first is not None:
        at_least("--first", first, 1)
    if fused and energy:
        raise InputError("--energy is of convolutions alone: leave it out, or --fused")
    if fused and by_name:
        raise InputError("--with-algorithms: nothing is fused into algorithms by name: leave it out, or --fused")
