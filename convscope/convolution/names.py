"""Names of models, known without importing PyTorch: a wrong one is refused in a moment."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

from convscope.errors import InputError

MODELS = ("vgg16", "densenet121", "resnet152", "googlenet", "alexnet", "resnet50")
PREFIX = "torchvision:"
SMALLEST_INPUT_PX = 64  # every model takes images of this size and larger ones, but for these families:
_PARTICULAR = ("inception_v", "maxvit_", "vit_")

_REGISTERED = re.compile(r'^@register_model\((?:name="(\w+)")?\)$.*?^def (\w+)\(', re.MULTILINE | re.DOTALL)


@functools.cache
def torchvision_classifiers() -> frozenset[str] | None:
    """Return the classification models of the torchvision that is installed, read from its source; None without it."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0], "models")
    matches = [match for path in folder.glob("*.py") for match in _REGISTERED.findall(path.read_text("utf-8"))]
    return frozenset(given or function for given, function in matches)


def check_model(name: str, classifiers: Collection[str] | None = None) -> str:
    """Return a model's name in the spelling of folders and tables: one of `MODELS`, or `torchvision:` and a name.

    Args:
        classifiers: torchvision's names; None takes `torchvision_classifiers`, and any name where there is none.

    Raises:
        InputError: there is no such model; the message has the names that are nearest.
    """
    plain = name.strip().lower()
    bare = plain.removeprefix(PREFIX)
    if bare in MODELS:
        return bare
    known = torchvision_classifiers() if classifiers is None else classifiers
    if not plain.startswith(PREFIX):
        near = _nearest(bare, (*(PREFIX + each for each in known or ()), *MODELS))
        raise InputError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}, or torchvision:NAME{near}")
    if known is not None and bare not in known:
        near = _nearest(bare, [PREFIX + each for each in known])
        raise InputError(f"torchvision has no classification model {bare!r}: see --list-models{near}")
    return PREFIX + bare


def takes_usual_sizes(name: str) -> bool:
    """Tell whether a model is known to take square images of every size from `SMALLEST_INPUT_PX` on."""
    return not name.removeprefix(PREFIX).startswith(_PARTICULAR)


def _nearest(name: str, known: Collection[str]) -> str:
    by_bare = {each.removeprefix(PREFIX): each for each in known}
    near = difflib.get_close_matches(name, sorted(by_bare), n=2)
    return f" (nearest: {', '.join(by_bare[each] for each in near)})" if near else ""
