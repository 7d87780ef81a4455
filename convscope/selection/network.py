"""Convolutions of a model from any source, each with the reason why it can only be left to PyTorch, if there is one.

The one module of selection that needs PyTorch.
"""

from __future__ import annotations

from convscope.convolution import algorithms, models
from convscope.convolution.layer import Layer
from convscope.convolution.sources.network import Network
from convscope.errors import InputError
from convscope.selection.selector import Part, Work


def parts(work: Work) -> tuple[Work, list[Part]]:
    """Return the work with the model's name and digest, and its convolutions.

    Raises:
        InputError: there is no such model, it cannot take this size, or it has no convolution.
    """
    source = models.find_source(work.model)
    source.refuse_other_sizes([work.input_size], "this --input-size")
    taken = Network(source, work.batch_size, layout=work.layout)
    layers = taken.layers(work.input_size)
    if not layers:
        raise InputError(f"{source.name} has no convolution")
    shapes: dict[str, set[tuple[object, ...]]] = {}
    for layer in layers:
        shapes.setdefault(layer.name, set()).add(layer.cost_key)
    last = taken.computed_last(work.input_size)
    found = [Part(layer, _why_left(layer, len(shapes[layer.name]) > 1, layer.name in last)) for layer in layers]
    return work.of(source.name, source.digest), found


def _why_left(layer: Layer, several: bool, is_last: bool) -> str | None:
    if len(layer.size) != 2:
        return f"it is {len(layer.size)}-D: samples are of 2-D convolutions"
    if layer.transposed:
        return "it is transposed"
    if several:
        return "it is called with several shapes, and a document has one for each name"
    if is_last:
        return "its input comes in nhwc, and PyTorch computes it so: samples are of nchw"
    return algorithms.why_not_by_module("an algorithm", layer)
