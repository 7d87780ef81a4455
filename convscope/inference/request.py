"""Request of an inference study, checked; its scenarios."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from convscope.cli.options import INTEGER_MOST, at_least, at_most
from convscope.convolution import models
from convscope.convolution.sources.source import FirstTensor, Source
from convscope.errors import InputError
from convscope.inference import pictures, weights
from convscope.inference.engines import catalogue
from convscope.inference.serving.mlperf import (
    HIGHEST_QPS,
    MULTI_STREAM,
    MULTI_STREAM_SAMPLES,
    OFFLINE,
    SERVER,
    SINGLE_STREAM,
    version,
)

BATCH = "batch"
SCENARIOS = (BATCH, SINGLE_STREAM, MULTI_STREAM, SERVER, OFFLINE)
"""`batch` is this project's: latency and throughput of one batch size. The others are MLPerf's, by its names."""

METRICS = {
    BATCH: "latency_mean_ms",
    SINGLE_STREAM: "latency_p90_ms",
    MULTI_STREAM: "latency_p99_ms",
    SERVER: "target_qps",
    OFFLINE: "images_per_s",
}
"""The metric's column of each scenario; for the server the highest rate whose p99 is within the limit."""


@dataclass(frozen=True)
class Inference:
    """One model, its engines and batch sizes (of all processes together), and the settings.

    Attributes:
        weights: file of a state dict, "" for none.
        images: folder of photographs for trained weights, "" for those that scikit-learn brings.
        seeds: number of LoadGen's runs of a cell, each with another seed.
        resident: requests' images lie in the engine's input already.
        keep: engines that are files are kept, with a program that runs them.
        with_copies: a call of the scenario `batch` copies the images from host memory, and the output there.
    """

    model: str
    engines: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    gpu: str
    device: str = "cpu"
    processes: int = 1
    dtype: str = "float32"
    layout: str = "nchw"
    math: str = "fp32"
    image_size_px: int = 224
    pretrained: bool = False
    weights: str = ""
    images: str = ""
    seed: int = 0
    warmup_iters: int = 10
    measure_iters: int = 100
    min_seconds: float = 1.0
    energy: bool = True
    scenario: str = BATCH
    qps: tuple[float, ...] = ()
    slo_ms: float = 15.0
    max_delay_ms: float = 0.0
    seeds: int = 3
    resident: bool = False
    with_copies: bool = False
    keep: bool = False
    model_digest: str = ""

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]

    @property
    def copies_images(self) -> bool:
        """Images are copied from host memory in each call."""
        return self.with_copies if self.scenario == BATCH else not self.resident

    @property
    def is_trained(self) -> bool:
        """The model has trained weights."""
        return self.pretrained or bool(self.weights)


LONGEST_S = 86_400
_REQUESTS_MOST, _PIXELS_MOST = 1e8, 1e12
_SETTLED_IMAGES, _SETTLED_SEED = 8, 2**20  # for untrained weights; the images that engines compute have other seeds


def check(inference: Inference) -> Inference:
    """Return a request with its names in one spelling, after checking every setting.

    Raises:
        InputError: a setting out of its range, or two that exclude each other.
    """
    unknown = [name for name in inference.engines if name not in catalogue.ENGINES]
    if unknown or not inference.engines:
        raise InputError(f"--engines {','.join(unknown)}: choose from {','.join(catalogue.ENGINES)}")
    if inference.scenario not in SCENARIOS:
        raise InputError(f"--scenario {inference.scenario}: choose one of {', '.join(SCENARIOS)}")
    for option, value, least in (
        *(("--batch-sizes", size, 1) for size in inference.batch_sizes),
        ("--input-size", inference.image_size_px, 1),
        ("--gpus", inference.processes, 1),
        ("--warmup", inference.warmup_iters, 0),
        ("--measure", inference.measure_iters, 1),
        ("--seed", inference.seed, 0),
        ("--seeds", inference.seeds, 1),
        ("--max-delay-ms", inference.max_delay_ms, 0),
    ):
        at_least(option, value, least)
        at_most(option, value, INTEGER_MOST)
    for option, number in (
        ("--min-seconds", inference.min_seconds),
        ("--slo-ms", inference.slo_ms),
        *(("--qps", rate) for rate in inference.qps),
    ):
        if not 0 < number < math.inf:
            raise InputError(f"{option} {number}: a number above 0")
    at_most("--min-seconds", inference.min_seconds, LONGEST_S)
    for size in inference.batch_sizes:
        if size * inference.image_size_px**2 > _PIXELS_MOST:
            images = f"{inference.image_size_px}×{inference.image_size_px} images"
            raise InputError(f"--batch-sizes {size}: a batch of {images} has more than {_PIXELS_MOST:.0e} pixels")
    _check_load(inference)
    sizes = {SINGLE_STREAM: (1,), MULTI_STREAM: (MULTI_STREAM_SAMPLES,)}.get(inference.scenario, inference.batch_sizes)
    source = models.find_source(inference.model)
    _check_source(source, inference)
    if inference.is_trained:
        pictures.photographs(1, 1, 0, Path(inference.images) if inference.images else None)
    digest = source.digest
    if inference.weights:
        digest = hashlib.sha256(f"{digest} {weights.digest(Path(inference.weights))}".encode()).hexdigest()
    return dataclasses.replace(inference, model=source.name, batch_sizes=sizes, model_digest=digest)


def _check_source(source: Source, inference: Inference) -> None:
    """Raise InputError where a model takes anything but square images of the size that is asked for."""
    if inference.weights and inference.pretrained:
        raise InputError("--weights and --pretrained are two sets of weights: leave out one")
    if inference.images and not inference.is_trained:
        raise InputError("--images are photographs for trained weights: say --pretrained or --weights, or leave it out")
    if inference.pretrained and not source.trained_weights:
        raise InputError(f"{source.name} brings its own weights: leave out --pretrained")
    side_px = source.fixed_px or inference.image_size_px
    shapes = [tuple(each.shape) for each in source.input_shapes(side_px, 1)]
    if shapes != [(1, 3, side_px, side_px)]:
        given = ", ".join("×".join(map(str, shape)) for shape in shapes)
        raise InputError(f"{source.name} takes inputs of {given}: engines are compared on square colour images alone")
    if side_px != inference.image_size_px:
        raise InputError(f"{source.name} takes images of {side_px} pixels only: say --input-size {side_px}")


def _check_load(inference: Inference) -> None:
    serving, loaded = inference.scenario == SERVER, inference.scenario != BATCH
    if inference.qps and not serving:
        raise InputError(f"--qps is the rate of a server's requests: say --scenario {SERVER}, or leave it out")
    if inference.with_copies and loaded:
        raise InputError(f"--scenario {inference.scenario} copies images unless --resident: leave out --with-copies")
    if inference.resident and not loaded:
        raise InputError(f"--scenario {BATCH} copies nothing unless --with-copies: leave out --resident")
    if loaded and inference.processes > 1:
        raise InputError(f"--scenario {inference.scenario} is measured by one process: leave out --gpus")
    if loaded:
        try:
            version()
        except ImportError as error:
            needs = f"--scenario {inference.scenario} needs MLPerf's LoadGen ({error})"
            raise InputError(f"{needs}: pip install 'convscope[inference]'") from None
    if serving and inference.max_delay_ms >= inference.slo_ms:
        raise InputError(f"--max-delay-ms {inference.max_delay_ms}: it must be less than --slo-ms {inference.slo_ms:g}")
    for rate in inference.qps:
        at_most("--qps", math.ceil(rate), HIGHEST_QPS)
        if rate * inference.min_seconds > _REQUESTS_MOST:
            raise InputError(f"--qps {rate:g}: more than {_REQUESTS_MOST:.0e} requests in --min-seconds")


def build_model(inference: Inference) -> nn.Module:
    """Build the model of a request, in float32 on the CPU, fit to be computed in half precision."""
    source, side_px = models.find_source(inference.model), inference.image_size_px
    model = source.build(inference.seed, inference.pretrained)
    if inference.weights:
        weights.load(model, Path(inference.weights))
    try:
        if not inference.is_trained:
            weights.draw(
                model, pictures.scenes(_SETTLED_IMAGES, side_px, inference.seed + _SETTLED_SEED), inference.seed
            )
        with torch.inference_mode():
            output = model(models.images(1, side_px, inference.seed))
    except (RuntimeError, AssertionError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise InputError(f"{inference.model} cannot take {side_px}×{side_px} images ({cause})") from None
    return model if isinstance(output, torch.Tensor) else FirstTensor(model).eval()
