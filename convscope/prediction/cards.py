"""Facts of a card that a prediction rests on: peaks, multiprocessors, clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from convscope import gpus
from convscope.errors import InputError

NEEDED = ("fp32_tflops", "bandwidth_gbps", "sm_count")
OPTIONAL = ("tf32_tflops", "fp16_tflops", "base_mhz", "boost_mhz")


@dataclass(frozen=True)
class Card:
    """One card. `headroom` is the logarithm of boost clock over base clock, None where they are not known.

    A card that reaches its boost clock only while little of it works (a Tesla T4: 585 to 1590 MHz at 70 W) is slower
    than its peak says; how much of the headroom is lost is learned.
    """

    name: str
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float
    bandwidth_gbps: float
    sm_count: int
    headroom: float | None

    def tflops(self, dtype: str, arithmetic: str) -> float:
        """Return the peak rate in a data type and arithmetic ("tf32", "fp32")."""
        if dtype != "float32":
            return self.fp16_tflops
        return (self.tf32_tflops if arithmetic == "tf32" else None) or self.fp32_tflops


def card(name: str, given: Mapping[str, Mapping[str, float]]) -> Card:
    """Return the facts of a card by its driver's name: as given, else from the catalogue.

    Raises:
        InputError: neither has it.
    """
    if name in given:
        return _card(name, {**dict.fromkeys(OPTIONAL), **given[name]})
    known = gpus.identify(name)
    if known is None or known.sm_count is None:
        what = ",".join(f"{each}=…" for each in NEEDED)
        raise InputError(f"no peaks are known of the GPU {name!r}: give them by --card '{name}:{what}'")
    return _card(name, {each: getattr(known, each) for each in (*NEEDED, *OPTIONAL)})


def _card(name: str, facts: Mapping[str, float | None]) -> Card:
    base, boost, fp32 = facts["base_mhz"], facts["boost_mhz"], facts["fp32_tflops"]
    return Card(
        name, fp32_tflops=float(fp32 or 0), tf32_tflops=facts["tf32_tflops"],
        fp16_tflops=float(facts["fp16_tflops"] or fp32 or 0), bandwidth_gbps=float(facts["bandwidth_gbps"] or 0),
        sm_count=int(facts["sm_count"] or 0), headroom=math.log(boost / base) if base and boost else None,
    )  # fmt: skip


def parsed(texts: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return cards as `--card` gives them: "NAME:fp32_tflops=9.3,bandwidth_gbps=732,sm_count=56,base_mhz=1190".

    Raises:
        InputError: a text is none; the message says what it lacks.
    """
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, facts = text.rpartition(":")
        pairs = [each.split("=") for each in facts.split(",")]
        try:
            values = {key.strip(): float(value) for key, value in pairs}
        except ValueError:
            raise InputError(f"--card {text!r}: write 'NAME:fp32_tflops=9.3,bandwidth_gbps=732,sm_count=56'") from None
        odd, missing = values.keys() - {*NEEDED, *OPTIONAL}, {*NEEDED} - values.keys()
        bad = [key for key, value in values.items() if not 0 < value < math.inf]
        if not name or odd or missing or bad:
            what = f"unknown {', '.join(sorted(odd))}" if odd else f"missing {', '.join(sorted(missing)) or 'name'}"
            raise InputError(f"--card {text!r}: {f'{bad[0]} must be above 0' if bad else what}")
        found[name.strip()] = values
    return found
