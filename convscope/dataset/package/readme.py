"""Card of a published data set, `README.md`: what it has, how it was measured, how noisy it is, what it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convscope.dataset.calls import AT_ANY_BATCH
from convscope.dataset.columns import STATUSES
from convscope.dataset.package import words
from convscope.dataset.package.documents import CALLS_FILE, LICENCE, LICENCE_URL, DataFile
from convscope.dataset.package.facts import Facts, Release

README = "README.md"
_ALGORITHMS_SHOWN = 30


def text(files: Sequence[DataFile], known: Facts, release: Release, refused: Mapping[str, str]) -> str:
    """Return the card.

    Args:
        refused: kinds of splits that there are no files of, with the reason.
    """
    parts = [
        f"# {words.title(known)}", words.about(known),
        f"Version {release.version}, {release.day}. Licence: [{LICENCE}]({LICENCE_URL}). {release.url}".rstrip(),
        "## Files", _table(("file", "bytes", ""), [(f"`{each.path}`", len(each.content), each.text) for each in files]),
        "Columns, units and allowed values are in `datapackage.json` (Frictionless) and `croissant.json` (Croissant "
        "1.1). A row of a file of splits names a row of `samples.parquet` by `sample`.",
        "```python\nimport pandas as pd\n\nsamples = pd.read_parquet(\"samples.parquet\").set_index(\"sample\")\n"
        "split = pd.read_parquet(\"splits/layer.parquet\").set_index(\"sample\")[\"layer\"]\n"
        "learned, held_back = samples.loc[split.index[split == \"learned\"]], "
        "samples.loc[split.index[split == \"held back\"]]\n```",
        *(_of_a_model(known) if any(each.path == CALLS_FILE for each in files) else ()),
        "## How it was measured", words.METHOD, _covered(known),
        "## Noise", _noise(known), "## Samples", _by_algorithm(known),
        "## Known gaps", "\n".join(f"- {each}." for each in [*_sentences(words.gaps(known)), *_without(refused)]),
        words.LIMITATIONS, words.BIASES,
        "## Use", words.USES, "## Check",
        "`python -m convscope check FOLDER` compares the files with their documents, the splits with each other, each "
        "time with the least that the card allows, and each name with the kernels that ran.",
        "## Cite", f"```bibtex\n{words.citation(known, release)}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---" if number in (0, len(header) - 1) else "---:" for number in range(len(header))], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _of_a_model(known: Facts) -> Sequence[str]:
    """Return how to add times up to those of a model, with what most samples are of."""
    often = {name: max(found, key=lambda each: found[each]) for name, found in known.values.items() if found}
    dtype, math, layout = often["settings"].split()
    work = {"gpu_name": often["gpu_name"], "algorithm": "torch", "dtype": dtype, "math": math, "layout": layout}
    work |= {"cudnn": often["cudnn"]} if "cudnn" in often else {}
    asked = " and ".join(
        [*(f'{name} == "{value}"' for name, value in work.items()), f"batch_size == {often['batch_size']}"]
    )
    model = f'model == "{often["model"]}" and input_size == {often["input_size"]}'
    shape = "\n".join(f'    "{name}",' for name in AT_ANY_BATCH)
    return (
        "Samples have each shape once, under one of the models that have it. The convolutions of a whole pass:",
        f"```python\nshape = [\n{shape}\n]\nwork = '{asked}'\n"
        'times = samples.query(work).groupby(shape)["mean_ms"].mean()\n'
        f"calls = pd.read_parquet(\"{CALLS_FILE}\").query('{model}')\ncalls = calls.join(times, on=shape)\n"
        'print(calls["mean_ms"].sum(), "ms,", calls["mean_ms"].isna().sum(), "calls without a time")\n```',
    )


def _sentences(found: Sequence[str]) -> list[str]:
    return [each[0].upper() + each[1:] for each in found]


def _without(refused: Mapping[str, str]) -> list[str]:
    return [f"No split by {kind}: {reason}" for kind, reason in refused.items()]


def _covered(known: Facts) -> str:
    names = {
        "gpu_name": "cards", "cudnn": "cuDNN", "driver": "drivers", "torch": "PyTorch", "settings": "arithmetic",
        "batch_size": "batch sizes", "input_size": "sizes of images, pixels", "family": "kinds of networks",
        "model": "models", "timing_method": "timing",
    }  # fmt: skip
    days = " to ".join(dict.fromkeys(known.days)) or "not said"
    rows = [("days", days), *((title, known.listed(name)) for name, title in names.items())]
    return _table(("", ""), rows)


def _noise(known: Facts) -> str:
    within = "" if known.interval_pct is None else (
        f"Half the 95 % interval of a mean, over placements within a run, is {known.interval_pct:.2g} % of it at the "
        "median. "
    )  # fmt: skip
    if not known.noise:
        return within + "No work was measured twice: the noise between runs, and between cards, is not known."
    rows = [(each.where, each.repeats, f"{each.median_pct:.2g}", f"{each.p95_pct:.2g}") for each in known.noise]
    header = ("the same work measured again", "repeats", "median, % apart", "95 % are within, %")
    return f"{within}No predictor can be better than repeats are:\n\n{_table(header, rows)}"


def _by_algorithm(known: Facts) -> str:
    shown = [*known.by_algorithm.items()][:_ALGORITHMS_SHOWN]
    used = [each for each in STATUSES if any(counts[each] for counts in known.by_algorithm.values())]
    rows = [(name, *(counts[each] for each in used), "") for name, counts in shown]
    rest = len(known.by_algorithm) - len(shown)
    more = f"\n\nAnd {rest} other algorithms and plans with fewer samples." if rest else ""
    return _table(("algorithm", *used, ""), rows) + more
