"""Which combinations of model and algorithm can be measured, as the file that `--matrix` reads."""

from __future__ import annotations

from collections.abc import Sequence

from convscope import algorithms, models
from convscope.algorithms import Algorithm
from convscope.assignment import reasons_not
from convscope.records import Layer


def listed(
    model_names: Sequence[str] | None,
    algorithm_names: Sequence[str] | None,
    gpu: str | None,
    input_range: tuple[int, int],
    unsupported: str = "error",
) -> str:
    """Return a line for each combination: model, algorithm and, where one is named, GPU, separated by tabs.

    What the rules rule out is a comment with the reason. No GPU is asked: cuDNN may refuse more than its rules say.

    Args:
        gpu: the GPU's name; "cpu" lists what a CPU runs, None leaves the column out.
        input_range: smallest and largest size in pixels, both of which must be possible.
        unsupported: "error" rules out an algorithm that one layer cannot use, else only one that no layer can use.

    Raises:
        InputError: an unknown model or algorithm.
    """
    chosen = [algorithms.find(name) for name in algorithm_names or algorithms.ALGORITHMS]
    lines = []
    for name in map(models.check_name, model_names or models.MODELS):
        layers = [layer for size in sorted(set(input_range)) for layer in models.convolutions(name, size)]
        for algorithm in chosen:
            why = _why_not(algorithm, layers, "cpu" if gpu == "cpu" else "cuda", unsupported)
            fields = filter(None, (name, algorithm.name, gpu))
            lines.append(f"# {name} {algorithm.name}: {why}" if why else "\t".join(fields))
    return "\n".join(lines) + "\n"


def _why_not(algorithm: Algorithm, layers: Sequence[Layer], device_type: str, unsupported: str) -> str | None:
    nowhere = algorithms.why_no_device(algorithm, device_type)
    if nowhere:
        return nowhere
    reasons = reasons_not(algorithm, layers, device_type, None)
    ruled_out = any(reasons) if unsupported == "error" else all(reasons)
    return next(filter(None, reasons)) if ruled_out else None
