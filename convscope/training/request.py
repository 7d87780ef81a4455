"""Request of a training study, checked."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torchvision

from convscope.cli import programs
from convscope.cli.options import INTEGER_MOST, at_least, at_most
from convscope.convolution import algorithms, models
from convscope.convolution.sources.source import Source
from convscope.errors import InputError
from convscope.storage.paths import slug
from convscope.training import datasets
from convscope.training.captured import WARM_UP_STEPS
from convscope.training.rows import SCHEMA


@dataclass(frozen=True)
class Training:
    """Models and batch sizes (of one process) to train, and the settings."""

    models: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    gpu: str
    device: str = "cpu"
    model_digests: tuple[str, ...] = ()  # name in tables and `Source.digest` of each model, with a space between
    processes: int = 1
    compiled: bool = False
    captured: bool = False
    dataset: str = "digits"
    image_size_px: int = 32
    classes: int = 10
    stem: str = "cifar"
    algorithm: str = "torch"
    epochs: int = 5
    max_steps: int | None = None
    skipped_steps: int = 10
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    fused_optimizer: bool = False
    workers: int = 0
    dtype: str = "float32"
    layout: str = "nchw"
    math: str = "tf32"
    cudnn_benchmark: bool = False
    seed: int = 42
    deterministic: bool = False
    profiler: bool = False
    profile_memory: bool = False
    energy: bool = True

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]


RESNETS = tuple(
    name
    for name in torchvision.models.list_models(module=torchvision.models)
    if torchvision.models.get_model_builder(name).__module__ == torchvision.models.resnet.__name__
)


_NUMBER_MOST = 2**31 - 1
_PIXELS_MOST = 10**12  # of a batch
_WORKERS_PER_CORE = 4


def check(training: Training) -> Training:
    """Return a request with names in one spelling; InputError for a setting out of range, or two that do not agree."""
    for option, value, least in (
        ("--epochs", training.epochs, 1),
        ("--skip-steps", training.skipped_steps, 0),
        ("--num-workers", training.workers, 0),
        ("--num-classes", training.classes, 2),
        ("--input-size", training.image_size_px, 1),
        ("--seed", training.seed, 0),
        ("--momentum", training.momentum, 0),
        *(("--batch-size", batch_size, 1) for batch_size in training.batch_sizes),
        *((("--max-steps", training.max_steps, 1),) if training.max_steps is not None else ()),
    ):
        at_least(option, value, least)
        at_most(option, value, INTEGER_MOST if option == "--seed" else _NUMBER_MOST)
    _check_sizes(training)
    if not (0 < training.learning_rate < math.inf and training.momentum < 1):
        raise InputError("--learning-rate must be a number above 0, --momentum one from 0 to less than 1")
    if not 0 <= training.weight_decay < math.inf:
        raise InputError(f"--weight-decay {training.weight_decay}: a number of at least 0")
    if training.cudnn_benchmark and training.deterministic:
        raise InputError("--cudnn-benchmark picks another algorithm each time: leave out --deterministic, or it")
    if training.dataset != "synthetic" and training.classes != datasets.CLASSES:
        raise InputError(f"--num-classes {training.classes}: {training.dataset} has {datasets.CLASSES}")
    algorithm = algorithms.find(training.algorithm)
    if algorithm.name in algorithms.MIXTURES:
        others = " and ".join(map(programs.called, ("run_profile", "run_verify")))
        raise InputError(f"{algorithm.name} is for {others}: choose another --algorithm")
    if (reason := algorithms.why_not_on_device(algorithm, training.device_type)) is not None:
        raise InputError(f"{reason}: choose another --algorithm, or another --device")
    plain = training.dtype == "float32" and training.layout == "nchw" and not training.compiled
    if algorithm.name != "torch" and not plain:
        raise InputError(f"--algorithm {algorithm.name} trains in float32, in nchw and without --compile")
    if training.profile_memory and not training.profiler:
        raise InputError("--profile-memory is a part of the trace: say --enable-pytorch-profiler too")
    _check_capture(training)
    sources = _sources(training.models)
    for name in sources:
        if training.stem == "cifar" and name not in RESNETS:
            raise InputError(f"{name} is no ResNet and has no cifar stem: say --stem imagenet")
    if training.max_steps is not None and training.max_steps <= training.skipped_steps:
        raise InputError(
            f"--max-steps {training.max_steps}: the first {training.skipped_steps} steps are not counted "
            "(--skip-steps), so more are needed"
        )
    names = tuple(source.name for source in sources.values())
    digests = tuple(f"{name} {source.digest}" for name, source in sources.items())
    return dataclasses.replace(training, models=names, model_digests=digests, algorithm=algorithm.name)


def _sources(given: Sequence[str]) -> dict[str, Source]:
    """Return the models by their names in tables; InputError where two have the same."""
    found: dict[str, Source] = {}
    for source in map(_source, given):
        earlier = found.setdefault(slug(source.name), source)
        if earlier.name != source.name:
            both = f"{earlier.name} and {source.name} are both {slug(source.name)} in tables"
            raise InputError(f"--model: {both}: train them in two commands, each with its own --output-dir")
    return found


def _check_capture(training: Training) -> None:
    """Refuse what a step that is replayed as a CUDA graph cannot be combined with."""
    if not training.captured:
        return
    if training.device_type != "cuda":
        raise InputError(f"--capture needs a CUDA device, this is {training.device}: leave --capture out")
    if training.processes > 1:
        raise InputError(f"--capture trains in one process, not in {training.processes}: start it without torchrun")
    if not training.fused_optimizer:
        raise InputError("--capture needs the optimizer that reads the learning rate on the GPU: say --fused-optimizer")
    if training.profiler:
        raise InputError(
            "--capture cannot be traced: kernels of a replay belong to no operator, and the events in its graph can "
            "hang the tracer: leave out --enable-pytorch-profiler, or trace the eager step"
        )
    algorithm = algorithms.find(training.algorithm)
    if algorithms.packs_filters(algorithm.name) or "triton" in algorithm.cuda_providers:
        raise InputError(
            f"--capture does not go with {algorithm.name}, which lays filters out when they change: nobody says that a "
            "replay has changed them"
        )
    if training.max_steps is not None and training.max_steps <= WARM_UP_STEPS:
        few = f"--max-steps {training.max_steps}: the first {WARM_UP_STEPS} steps of --capture are not replayed"
        raise InputError(f"{few}, so more are needed")


def _check_sizes(training: Training) -> None:
    cores = len(os.sched_getaffinity(0))
    most = _WORKERS_PER_CORE * cores
    if training.workers > most:
        reason = f"{_WORKERS_PER_CORE} for each of the {cores} cores that this process may use"
        raise InputError(f"--num-workers {training.workers}: at most {most}, {reason}")
    side_px = training.image_size_px
    for batch_size in training.batch_sizes:
        if batch_size * side_px**2 > _PIXELS_MOST:
            images = f"a batch of {side_px}×{side_px} images"
            raise InputError(f"--batch-size {batch_size}: {images} has more than {_PIXELS_MOST:.0e} pixels")


def folder_name(training: Training) -> str:
    """Return the name of a request's folder: data set, algorithm, card, and settings of the cells but for defaults."""
    usual = {field.name: field.default for field in dataclasses.fields(Training)}
    usual["math"] = "fp32" if training.device_type == "cpu" else "tf32"
    named = ("dataset", "algorithm", "gpu")
    others = {name: getattr(training, name) for name in usual if name not in (*SCHEMA.free, *named)}
    chosen = [name if value is True else f"{name}-{value}" for name, value in others.items() if value != usual[name]]
    return "_".join(map(slug, [*(getattr(training, name) for name in named), *chosen]))


def _source(name: str) -> Source:
    """Return the model of a name; a ResNet needs no prefix here."""
    bare = name.strip().lower()
    return models.find_source(models.PREFIX + bare if bare in RESNETS else name)
