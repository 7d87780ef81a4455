"""Layers of a model from any source as samples whose times are to be predicted: the one module that needs PyTorch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pandas as pd

from convscope.convolution import algorithms, models
from convscope.convolution.layer import Layer
from convscope.convolution.sources.network import Network
from convscope.cudnn.shape import dimensions
from convscope.dataset import ranked_plans
from convscope.dataset.samples import SAMPLES, SampleRow
from convscope.errors import InputError

_USUAL_PX = 224


def samples(
    model: str, input_size: int | None, batch_size: int, gpu_name: str, algorithms: Sequence[str], dtype: str,
    math: str, layout: str, cudnn: str | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a row for each 2-D convolution of a model and each algorithm, without times.

    The layout of a row is the one that PyTorch computes it in (`Network.computed_last`).

    Args:
        model: a name, as `run_profile.py --model` takes it.
        cudnn: the version that is predicted; where the one that is here can be asked for it, rows have its plans.
        input_size: of the images, in pixels; None is the one that the model takes alone, or 224.

    Raises:
        InputError: there is no such model, it cannot take this size, or has no such convolution.
    """
    source = models.find_source(model)
    if input_size is None:
        input_size = source.fixed_px or _USUAL_PX
    source.refuse_other_sizes([input_size], "this --input-size")
    taken = Network(source, batch_size, layout=layout)
    layers = [each for each in taken.layers(input_size) if _is_plain(each)]
    if not layers:
        raise InputError(f"{model} has no 2-D convolution that could be predicted")
    last = taken.computed_last(input_size)
    rows = [
        SampleRow(
            gpu_name=gpu_name, algorithm=algorithm, batch_size=layer.batch, in_channels=layer.in_channels,
            out_channels=layer.out_channels, in_height_px=layer.size[0], in_width_px=layer.size[1],
            kernel_size=dimensions(layer.kernel), stride=dimensions(layer.stride), padding=dimensions(layer.padding),
            dilation=dimensions(layer.dilation), groups=layer.groups, dtype=dtype, math=math,
            layout="nhwc" if layer.name in last else layout, run="predicted", model=model, layer=layer.name,
            input_size=input_size, cudnn=cudnn,
        )
        for algorithm in algorithms
        for layer in layers
    ]  # fmt: skip
    return pd.DataFrame(ranked_plans.filled(rows), columns=SAMPLES.columns)


def _is_plain(layer: Layer) -> bool:
    return len(layer.size) == 2 and not layer.uneven_padding and "transpose" not in layer.kind


def named(asked: Sequence[str], learned: Sequence[str]) -> list[str]:
    """Return algorithms as they are called here; spaces and underscores are the same, as on every command line.

    Raises:
        InputError: one was not learned, and there is none of that name; or one is named twice.
    """
    known = [*learned, *algorithms.ALGORITHMS, *algorithms.HEURISTICS]
    by_word = {name.replace(" ", "_"): name for name in reversed(known)}
    found = [by_word.get(name.replace(" ", "_"), name) for name in asked]
    for name in found:
        if name not in known and algorithms.plan_of(name) is None:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(learned)
            raise InputError(f"--algorithm {name}: there is none of that name: choose another, such as {near[0]}")
        if found.count(name) > 1:
            raise InputError(f"--algorithm {name}: it is named twice: name it once")
    return found
