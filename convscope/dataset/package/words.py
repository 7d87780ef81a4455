"""Sentences of a published data set's documents: what it is, how it was measured, what it must not be used for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convscope.dataset.package.facts import Facts, Release

KEYWORDS = ("convolution", "GPU", "performance", "energy", "cuDNN", "algorithm selection", "benchmark")
SAMPLES = "samples: one convolution by one algorithm on one card, measured or refused with a reason"
CALLS = (
    "every convolution in a pass of each model at each size, so that times of shapes add up to those of a model; a "
    "split by family holds back all shapes that models of the kind have"
)
POSITION = "number of the call among the convolutions of the pass, from 0"
CONFLICTS = "repeats of the same work whose figures do not agree; nothing was averaged"
ROLE = (
    "role of the sample in this split: judged (held back), learned from (learned), or neither, because its shape is "
    "among those held back (left out)"
)
SPLITS = {
    "rows": "fixed split: a fifth of the samples, at random; neighbours stand on both sides",
    "layer": "fixed split: a fifth of the shapes, on all cards and by all algorithms",
    "family": "fixed splits: each kind of network in turn",
    "size": "fixed splits: the fifth with the least work, and the one with the most",
    "gpu": "fixed splits: each card in turn; its shapes are learned on the others",
}
OF_CONFLICTS = {
    "sample": "number of one sample",
    "other_sample": "number of the other",
    "kind": "times apart: the means are apart by more than their 95 % intervals together; other statuses",
    "mean_ms": "time of the one",
    "other_mean_ms": "time of the other",
    "apart_ms": "distance of the two times",
    "allowed_ms": "both 95 % intervals together",
    "status": "status of the one",
    "other_status": "status of the other",
}
METHOD = (
    "Each sample is one call of a forward convolution by one algorithm (cuDNN's by name, plans of cuDNN's graph API, "
    "Triton kernels, or what PyTorch chooses). Times are CUDA events around the call in replays of a captured pass "
    "through other convolutions, over several placements of weights and inputs in memory, which the 95 % interval "
    "covers; the launch by the host is not in them. Where `timing_method` ends with `its data out of the cache`, what "
    "a replay left in the second-level cache was evicted before the next, by other data or by the pass itself, which "
    "moved more than that holds. Where it says `in replays`, not `its share of replays`, an earlier version timed "
    "the call, and most calls of a few microseconds are about 0.6 µs too long (H200). On a CPU they are wall-clock "
    "times. Results were compared with float64. Kernels were recorded by CUPTI after all times had been taken. Energy "
    "is of the call replayed alone: the difference of the card's energy counter over the replays between two of its "
    "ticks."
)
LIMITATIONS = (
    "Inputs and filters are mostly not in the cache when a call begins; in a model a layer's input has just been "
    "written. Forward only, dense tensors, zero padding, two dimensions. What is far behind the best of its shape has "
    "fewer placements, so a wider interval. Numbers of engines and plans belong to one version of cuDNN."
)
BIASES = (
    "Samples that name a model are of popular convolutional networks for images at square sizes, no random sample of "
    "all convolutions; those that name none were drawn by chance over the range of such networks. Cards, drivers and "
    "library versions are those at hand."
)
USES = (
    "Meant for models of time, energy and workspace of convolutions, for choosing algorithms, and for comparing such "
    "methods on the fixed splits. Not meant for ranking vendors, nor for figures of other software versions or of "
    "whole models without measuring them."
)
IMPACT = (
    "Better choices of algorithms save time and energy of training and inference. Figures may be misread as a verdict "
    "on a product; each is of one card and one software stack."
)
PRIVATE = "None: figures of hardware and software. Names of hosts were taken out; UUIDs of cards are kept."


def title(known: Facts) -> str:
    """Return the title of the data set."""
    return f"Convolutions by algorithm on {known.listed('gpu_name')}"


def about(known: Facts) -> str:
    """Return what it is, in two sentences."""
    energy = f", {known.with_energy} with energy" if known.with_energy else ""
    return (
        f"Times of {known.shapes} shapes of convolutions by {len(known.by_algorithm)} algorithms and plans on "
        f"{known.listed('gpu_name')}: {known.samples} samples, {known.measured} of them measured{energy}. What an "
        "algorithm refuses is a row with its reason."
    )


def citation(known: Facts, release: Release) -> str:
    """Return how to cite the data set, as BibTeX."""
    return (
        f"@misc{{convscope_{release.day[:4]}, title = {{{title(known)}}}, author = {{{{{release.creator}}}}}, "
        f"year = {{{release.day[:4]}}}, version = {{{release.version}}}, url = {{{release.url}}}}}"
    )


def responsible(known: Facts) -> Mapping[str, Any]:
    """Return the properties on responsible use and on provenance of a Croissant document."""
    when = {"prov:startedAtTime": known.days[0], "prov:endedAtTime": known.days[-1]} if known.days else {}
    measured = {"@type": "prov:Activity", "prov:label": "measurement", "description": METHOD, **when}
    frame = {"rai:dataCollectionTimeframe": [*known.days]} if known.days else {}
    return {
        "rai:dataCollection": METHOD,
        "rai:dataCollectionType": "Direct measurement",
        **frame,
        "rai:dataCollectionMissingData": "; ".join(gaps(known)),
        "rai:dataPreprocessingProtocol": "Rows of several runs were merged by key; nothing was averaged or removed.",
        "rai:dataLimitations": LIMITATIONS,
        "rai:dataBiases": BIASES,
        "rai:personalSensitiveInformation": PRIVATE,
        "rai:dataUseCases": USES,
        "rai:dataSocialImpact": IMPACT,
        "rai:hasSyntheticData": False,
        "rai:dataReleaseMaintenancePlan": "New runs are merged into new versions; earlier versions stay as they are.",
        "prov:wasGeneratedBy": [measured],
        "prov:wasDerivedFrom": {"@id": "https://pytorch.org/vision/stable/models.html"},
    }


def gaps(known: Facts) -> list[str]:
    """Return what the data set lacks, a sentence each."""
    refused = known.samples - known.measured - known.energy_alone
    found = [f"{refused} of {known.samples} samples have no time, and say why"] if refused else []
    if known.energy_alone:
        found.append(f"{known.energy_alone} of {known.samples} samples have an energy and no time")
    names = {
        "energy_j": "energy", "kernels": "names of their kernels", "mean_ci95_ms": "interval",
        "relative_error": "error against float64", "family": "kind of network",
    }  # fmt: skip
    for name, text in names.items():
        if known.lacking[name]:
            found.append(f"{known.lacking[name]} of {known.measured} measured samples have no {text}")
    if not known.noise:
        found.append("no work was measured twice, so the noise between runs is not known")
    if known.of_others:
        found.append(f"{known.of_others} samples are data of others, whose licence is theirs")
    return found or ["none is known"]
