"""Request of a profile, checked: one model with one algorithm at many input sizes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convscope.cli import options
from convscope.cli.display import several
from convscope.cli.options import INTEGER_MOST, at_least, at_most
from convscope.convolution import algorithms, names
from convscope.errors import InputError
from convscope.storage import paths
from convscope.storage.paths import SIZES_BY_STAGE, STAGES, slug, spread, suffix

if TYPE_CHECKING:
    from convscope.convolution.sources.source import Size, Source


@dataclass(frozen=True)
class Run:
    """One model with one algorithm at many input sizes, as requested.

    Attributes:
        stage: a name of `paths.STAGES`; where it is not given it goes by the number of sizes (1, 10, else full).
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N" are asked for; one of the last three it is.
        math: "tf32" or "fp32" for float32; where it is not given, tf32 on a GPU and fp32 on a CPU.
        unsupported: the fate of layers that cannot use the algorithm: "error", "fallback" (implicit precomp gemm, on a
            CPU PyTorch) or "skip" (PyTorch, no layer time).
        provider: "cudnn" or "triton" for an algorithm that both have; None is cuDNN where it can.
        pretrained: trained weights instead of weights drawn from `seed`.
        energy_warmup_s, energy_precision, energy_budget_s: as `PowerMonitor.steady` takes them.
        layer_energy: each distinct layer is replayed alone, for its energy (`layer_energy.measure`).
        max_workspace_bytes: a layer whose workspace is larger cannot use the algorithm, and a Triton kernel takes block
            shapes that need no more; None sets no limit.
        input_shape: "480x640", height and width of images that are not square; None for square ones.
        evicts: what a replay left in the second-level cache is evicted before the next one that is timed: on a GPU, of
            a table, whose convolutions make no network (`placement.Eviction`).
        adds_up: by their events layers add up to their pass (`layer_times.overhead_of`): on a GPU, those of a table,
            which follow each other directly.
        model_digest: of the model's code and weights (`Source.digest`); "" where it is not known.
        plans_digest: of the document that has the plan of each layer, "" where the algorithm needs none.
        sizes_by: option that named the sizes, "" where they are a default; an `InitVar`, so that no record has it.
    """

    model: str
    algorithm: str
    stage: str
    gpu: str
    input_sizes: tuple[int, ...]
    device: str = "cpu"
    batch_size: int = 1
    warmup_iters: int = 10
    measure_iters: int = 20
    math: str = "tf32"
    dtype: str = "float32"
    layout: str = "nchw"
    model_digest: str = ""
    plans_digest: str = ""
    unsupported: str = "error"
    provider: str | None = None
    pretrained: bool = False
    seed: int = 0
    energy: bool = True
    energy_warmup_s: float = 0.2
    energy_precision: float = 0.01
    energy_budget_s: float = 5.0
    layer_energy: bool = False
    max_workspace_bytes: int | None = None
    input_shape: str | None = None
    evicts: bool = False
    adds_up: bool = False
    sizes_by: dataclasses.InitVar[str] = ""

    def __post_init__(self, sizes_by: str) -> None:
        """Keep the option that named the sizes; `dataclasses.replace` hands it on."""
        object.__setattr__(self, "sizes_by", sizes_by)

    @property
    def sizes_option(self) -> str:
        """Option that named the sizes, "" where they are a default."""
        return str(vars(self)["sizes_by"])

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]

    @property
    def folder_name(self) -> str:
        """`<model>_<algorithm>_<gpu>` and `paths.suffix`, the name of the folder under `results/<stage>/`."""
        return f"{self.stem}_{slug(self.gpu)}{suffix(self.batch_size, self.dtype, self.layout, self.input_shape)}"

    def image_size(self, size: int) -> Size:
        """Return the images that one of `input_sizes` stands for: its side, or height and width, in pixels.

        Images that are not square have one size, their longer side.
        """
        return parse_shape(self.input_shape) if self.input_shape else size

    @property
    def stem(self) -> str:
        """`<model>_<algorithm>`, what the names of both tables begin with."""
        return f"{slug(self.model)}_{slug(self.algorithm)}"


RANGE_PX = (224, 512)
UNSUPPORTED = ("error", "fallback", "skip")
DTYPES = ("float32", "float16", "bfloat16")
PROVIDERS = ("cudnn", "triton")
SIZES_MOST = 10_000


def make_run(
    model: str,
    algorithm: str,
    *,
    num_sizes: int | None = None,
    input_size_range: tuple[int, int] | None = None,
    device: str = "auto",
    gpu: str | None = None,
    stage: str | None = None,
    source: Source | None = None,
    **settings: Any,
) -> Run:
    """Decide every setting of a run. A model that takes one size alone is measured at that one.

    Args:
        num_sizes: None is that of the last stage; 1 for an `input_shape`.
        input_size_range: smallest and largest size; None is `RANGE_PX`.
        source: of the model, in place of the one that has its name.
        gpu: the GPU's name in the folder; None takes that of the device.
        stage: None goes by the number of sizes.
        settings: further fields of `Run`; `math` may be None: tf32 on a GPU, fp32 on a CPU; `input_sizes` stand in
            place of a number of sizes and their range.

    Raises:
        InputError: an unknown name, a number out of its range, a GPU that is not the one asked for, sizes that are
            named in two ways, or that the model does not take.
    """
    if source is None:
        names.check_model(model)  # before PyTorch is imported
    wanted = algorithms.find(algorithm)
    where = options.find_device(device, algorithms.why_not_here(wanted, "cpu") or options.ON_CPU)
    found = source or _find_source(model)
    sizes = num_sizes, input_size_range
    run = _decided(found.name, wanted.name, str(where), options.folder_gpu(gpu, where), *sizes, stage, **settings)
    return fitted(run, found)


def fitted(run: Run, source: Source) -> Run:
    """Return a run with what its model decides: the one size that it may take alone, and its digest.

    Raises:
        InputError: trained weights or other inputs are asked for of a model that comes with its own, or other sizes
            than the one that it takes.
    """
    if run.pretrained and not source.trained_weights:
        raise InputError(f"{run.model} brings its own weights: leave out --pretrained")
    source.refuse_other_sizes([*map(run.image_size, run.input_sizes)], run.sizes_option)
    sizes = run.input_sizes if source.fixed_px is None else (source.fixed_px,)
    return dataclasses.replace(run, input_sizes=sizes, model_digest=source.digest)


def _find_source(model: str) -> Source:
    from convscope.convolution import models  # which imports PyTorch

    return models.find_source(model)


def run_elsewhere(
    model: str,
    algorithm: str,
    *,
    gpu: str,
    num_sizes: int | None = None,
    input_size_range: tuple[int, int] | None = None,
    device: str = "auto",
    stage: str | None = None,
    **settings: Any,
) -> Run:
    """Decide every setting of a run on another machine, which has the GPU of this name, "cpu" for none: no PyTorch.

    Raises:
        InputError: as `make_run`; nothing runs the algorithm on that device.
    """
    checked = names.check_model(model, is_elsewhere=True), algorithms.find(algorithm).name
    kind = "cpu" if gpu == "cpu" else "cuda"
    if device != "auto" and device.split(":")[0] != kind:
        raise InputError(f"--device {device} does not go with GPU {gpu}: leave --device out")
    if reason := algorithms.why_not_here(algorithms.find(algorithm), kind):
        raise InputError(reason)
    return _decided(*checked, kind, gpu, num_sizes, input_size_range, stage, **settings)


def _decided(
    model: str,
    algorithm: str,
    device: str,
    gpu: str,
    num_sizes: int | None,
    input_size_range: tuple[int, int] | None,
    stage: str | None,
    math: str | None = None,
    input_shape: str | None = None,
    input_sizes: Iterable[int] | None = None,
    **settings: Any,
) -> Run:
    _check_one_way(num_sizes, input_size_range, input_sizes, input_shape)
    shape = parse_shape(input_shape) if input_shape else None
    if shape:
        num_sizes, input_size_range = 1, (max(shape), max(shape))
    elif num_sizes is None:
        num_sizes = SIZES_BY_STAGE[STAGES[-1]]
    named = None if input_sizes is None else _named_sizes(input_sizes)
    is_row = not device.startswith("cpu") and names.kind_of(model) == names.TABLE
    run = Run(
        model=model,
        algorithm=algorithm,
        stage=stage or stage_of(num_sizes),
        gpu=gpu,
        input_sizes=named or spread_sizes(num_sizes, input_size_range or RANGE_PX),
        sizes_by="--input-shape" if shape else "--input-size" if named else "--input-range" if input_size_range else "",
        device=device,
        math=options.math_for(device.split(":")[0], math),
        input_shape="{}x{}".format(*shape) if shape and shape[0] != shape[1] else None,
        evicts=is_row,
        adds_up=is_row,
        **settings,
    )
    _check(run)
    return run


def _check_one_way(num_sizes: object, input_size_range: object, input_sizes: object, input_shape: object) -> None:
    """Raise InputError where sizes are named in two ways, of which one would have no effect."""
    spread = {"num_sizes": num_sizes, "input_size_range": input_size_range}
    given = [name for name, value in spread.items() if value is not None]
    ways = {"input_sizes": input_sizes is not None, "input_shape": bool(input_shape), " and ".join(given): given}
    named = [name for name, is_given in ways.items() if is_given]
    if len(named) > 1:
        raise InputError(f"{', '.join(named)}: these name the sizes in {len(named)} ways, leave out all but one")


def _named_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    named = tuple(sorted(set(sizes)))
    if not named:
        raise InputError("input_sizes has no size: name some, such as [224, 320], or leave it out")
    for size in named:
        at_least("--input-size", size, 1)
        at_most("--input-size", size, INTEGER_MOST)
    return named


def _check(run: Run) -> None:
    at_least("--batch-size", run.batch_size, 1)
    at_least("--warmup", run.warmup_iters, 0)
    at_least("--measure", run.measure_iters, 1)
    at_least("--seed", run.seed, 0)
    at_most("--batch-size", run.batch_size, INTEGER_MOST)
    at_most("--seed", run.seed, INTEGER_MOST)
    at_least("--energy-warmup", run.energy_warmup_s, 0)
    at_least("--energy-budget", run.energy_budget_s, 1)
    at_most("--energy-warmup", run.energy_warmup_s, options.ENERGY_MOST_S)
    at_most("--energy-budget", run.energy_budget_s, options.ENERGY_MOST_S)
    if not 0 < run.energy_precision < 1:
        raise InputError(f"--energy-precision {run.energy_precision}: a share between 0 and 1, such as 0.01")
    if run.layer_energy and (run.device_type == "cpu" or not run.energy):
        raise InputError("--layer-energy needs a CUDA device, and energy (no --no-energy)")
    if run.max_workspace_bytes is not None:
        at_least("--max-workspace", run.max_workspace_bytes, 0)
        if run.algorithm == algorithms.AUTOTUNE:
            raise InputError("--max-workspace does not bound the plans of autotune: leave it out")
        if run.device_type == "cpu":
            raise InputError("--max-workspace limits workspaces on a GPU: it needs a CUDA device")
    options.one_of("--unsupported", run.unsupported, UNSUPPORTED)
    _check_precision(run)
    if (run.algorithm == algorithms.PLANNED) != bool(run.plans_digest):
        by = "--algorithm-file FILE, or from Python plans=FILE"
        raise InputError(f"{algorithms.PLANNED}, and no other algorithm, takes the plans of a document: {by}")
    if run.provider is not None:
        options.one_of("--provider", run.provider, PROVIDERS)
        if run.device_type == "cpu":
            raise InputError(f"--provider {run.provider} needs a CUDA device")
        if reason := algorithms.why_not_by_provider(algorithms.find(run.algorithm), run.provider):
            raise InputError(f"--provider {run.provider}: {reason}")


def _check_precision(run: Run) -> None:
    options.one_of("--dtype", run.dtype, DTYPES)
    options.one_of("--layout", run.layout, tuple(paths.LAYOUTS))
    if reason := algorithms.why_not_in(algorithms.find(run.algorithm), run.device_type, run.dtype, run.layout):
        usual = {"--dtype": (run.dtype, "float32"), "--layout": (run.layout, "nchw")}
        asked = " ".join(f"{option} {value}" for option, (value, default) in usual.items() if value != default)
        raise InputError(f"{asked}: {reason}" + (": algorithm torch does, or a GPU" if run.device == "cpu" else ""))


def spread_sizes(count: int, bounds: tuple[int, int]) -> tuple[int, ...]:
    """Return `count` sizes in pixels from the first bound to the second, evenly (`paths.spread`).

    Raises:
        InputError: no sizes, bounds the wrong way round, or more sizes than pixels between them.
    """
    low, high = bounds
    at_least("--num-sizes", count, 1)
    at_most("--num-sizes", count, SIZES_MOST)
    at_least("--input-range", low, 1)
    at_most("--input-range", high, INTEGER_MOST)
    if high < low:
        raise InputError(f"--input-range {low} {high}: the first number is the smaller one")
    if count > high - low + 1:
        raise InputError(f"--num-sizes {count}: {low} to {high} pixels are only {several(high - low + 1, 'size')}")
    return spread(count, low, high)


def parse_shape(text: str) -> tuple[int, int]:
    """Return height and width in pixels from "480x640", else InputError."""
    found = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text, re.ASCII)
    if found is None or not all(map(int, found.groups())):
        raise InputError(f"--input-shape {text}: say height and width in pixels, such as 480x640")
    return int(found[1]), int(found[2])


def stage_of(num_sizes: int) -> str:
    """Return the stage that measures this many sizes; any other count is a full run."""
    return next((stage for stage, count in SIZES_BY_STAGE.items() if count == num_sizes), STAGES[-1])
