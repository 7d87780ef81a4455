"""Request of a verification, checked: one model at one input size, and the question that is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convscope.cli.options import at_least
from convscope.profiling.request import Run, make_run
from convscope.storage.paths import slug

SUPPORT, CHOICE = "support", "choice"


@dataclass(frozen=True)
class Verification:
    """Question of a table of layers × algorithms: `support` or `choice`.

    Attributes:
        rounds: captures of each candidate, for `choice`.
        limit_bytes: largest workspace that counts as usable, for `support`; None is the free memory.
    """

    question: str
    model: str
    gpu: str
    device: str
    input_size: int
    batch_size: int
    math: str
    dtype: str
    pretrained: bool = False
    seed: int = 0
    rounds: int | None = None
    limit_bytes: int | None = None

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]

    @property
    def name(self) -> str:
        """Folder of the table under `results/<question>/`."""
        return f"{slug(self.model)}_{slug(self.gpu)}_{self.input_size}px_batch{self.batch_size}_{self.math}"


def make_subject(model: str, algorithm: str, device_type: str, input_size: int, **settings: Any) -> Run:
    """Return the request of the model that is looked at; `settings` are those of `make_run`.

    Raises:
        InputError: as `make_run`.
    """
    return make_run(
        model,
        algorithm,
        num_sizes=1,
        input_size_range=(input_size, input_size),
        measure_iters=20 if device_type == "cuda" else 3,
        energy=False,
        **settings,
    )


def question_of(run: Run, question: str, dtype: str, rounds: int | None, limit_bytes: int | None) -> Verification:
    """Return the question that is asked of a subject.

    Raises:
        InputError: too few rounds.
    """
    if rounds is not None:
        at_least("--rounds", rounds, 2)
    return Verification(
        question=question,
        model=run.model,
        gpu=run.gpu,
        device=run.device,
        input_size=run.input_sizes[0],
        batch_size=run.batch_size,
        math=run.math,
        dtype=dtype,
        pretrained=run.pretrained,
        seed=run.seed,
        rounds=rounds,
        limit_bytes=limit_bytes,
    )
