"""Models of the user's own: a callable in a file or a package, an exported program, a module that is at hand.

Code is run only because its name was given.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import pickle
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from convscope.convolution import names
from convscope.convolution.sources import own_code
from convscope.convolution.sources.source import FixedSource, Inputs, checked_batch, in_words, seeded
from convscope.errors import ElsewhereError, InputError


class CallableSource(FixedSource):
    """`FILE.py:callable` or `package.module:callable`: called with the name's arguments.

    It returns a module, which is given images, or a module and example inputs (a tensor, or a tuple of tensors).
    """

    def examples(self) -> Inputs | None:
        """Return the example inputs that the callable returned."""
        return self._made[1]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of name and code, and of structure and weights drawn from seed 0; where it cannot be built, of these.

        So the weights that the callable loads count, the structure that other files give it, and their code.
        """
        try:
            return hashlib.sha256(f"{super().digest} {self._made[0]}".encode()).hexdigest()
        except InputError:
            return super().digest

    @functools.cached_property
    def _made(self) -> tuple[str, Inputs | None]:
        """The digest of what the callable returned, and the example inputs."""
        with seeded(0):  # another process draws the same inputs
            module, inputs = self._called()
        try:
            return f"{weights_digest(module)} {_settings(module)} {own_code.digest(module)}".rstrip(), inputs
        except Exception:  # weights that have no bytes yet, or whatever a module says of itself
            return "", inputs

    def _built(self, pretrained: bool) -> nn.Module:
        return self._called()[0]

    def _classifying(self, classes: int) -> nn.Module:
        return self._called(num_classes=classes)[0].train()

    def _called(self, **more: Any) -> tuple[nn.Module, Inputs | None]:
        function = self._function()
        try:
            made = function(**names.arguments_of(self.name) | more)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{self.name} failed: {in_words(error)}") from None
        return _module_and_inputs(self.name, made)

    def _function(self) -> Any:
        place, _, wanted = names.without_arguments(self.name).rpartition(":")
        try:
            is_file = names.kind_of(self.name) == names.FILE
            found: Any = _module_of_file(place) if is_file else importlib.import_module(place)
            for part in wanted.split("."):
                found = getattr(found, part)
        except Exception as error:
            kind = ElsewhereError if _needs_another(error, place) else InputError
            raise kind(f"{self.name} cannot be imported: {in_words(error)}") from None
        if not callable(found):
            raise InputError(f"{self.name} is a {type(found).__name__}, and cannot be called")
        return found


def _needs_another(error: Exception, place: str) -> bool:
    """Tell whether a module is missing that is neither the one at this place nor a package around it."""
    return isinstance(error, ModuleNotFoundError) and not f"{place}.".startswith(f"{error.name}.")


def _module_of_file(path: str) -> ModuleType:
    """Import a file, once in this process for each content; what lies beside it can be imported by it, once."""
    where = os.path.realpath(path)
    content = Path(where).read_bytes()
    name = f"{own_code.OF_A_FILE}{hashlib.sha256(where.encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.machinery.SourceFileLoader(name, where)
    described = importlib.util.spec_from_file_location(name, where, loader=loader)
    assert described is not None
    module = importlib.util.module_from_spec(described)
    beside = os.path.dirname(where)
    if beside not in sys.path:
        sys.path.append(beside)
    sys.modules[name] = module  # its classes can be pickled
    try:
        exec(loader.source_to_code(content, where), module.__dict__)  # no bytecode of an older content
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_and_inputs(name: str, made: object) -> tuple[nn.Module, Inputs | None]:
    if isinstance(made, nn.Module):
        return made, None
    if isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], nn.Module):
        return made[0], checked_inputs(name, made[1])
    kind = type(made).__name__
    raise InputError(f"{name} returned a {kind}: it must return a torch.nn.Module, or a module and example inputs")


def checked_inputs(name: str, given: object) -> Inputs:
    """Return example inputs as a tuple of tensors on the CPU.

    Raises:
        InputError: they are anything but a tensor, or a tuple or list of tensors; the first has no batch.
    """
    every = (given,) if isinstance(given, torch.Tensor) else given
    if not isinstance(every, (tuple, list)) or not every or not all(isinstance(each, torch.Tensor) for each in every):
        raise InputError(f"the example inputs of {name} must be a tensor, or a tuple of tensors")
    return checked_batch(name, tuple(each.detach().cpu() for each in every))


@dataclass(frozen=True)
class ModuleSource(FixedSource):
    """A module that is at hand, of which copies are measured; itself it stays as it is.

    Two sources are equal if module, structure, weights and shapes of inputs were the same when each was created.

    Args:
        given: example inputs; None gives it images.
    """

    module: nn.Module = field(compare=False)
    given: Inputs | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Note the state of module and inputs."""
        inputs = [(tuple(each.shape), each.dtype) for each in self.given or ()]
        object.__setattr__(self, "state", f"{id(self.module)} {self.digest} {_settings(self.module)} {inputs}")

    @classmethod
    def of(cls, module: nn.Module, inputs: object = None, name: str | None = None) -> ModuleSource:
        """Return the source of a module; without a name its class gives it one.

        Raises:
            InputError: the inputs are no tensors, or the first has no batch.
        """
        called = name or type(module).__name__.lower()
        return cls(called, module, None if inputs is None else checked_inputs(called, inputs))

    @property
    def batch_size(self) -> int:
        """The batch of the example inputs, 1 without them."""
        return int(self.given[0].shape[0]) if self.given else 1

    def examples(self) -> Inputs | None:
        """Return the example inputs."""
        return self.given

    def pickled(self) -> bytes:
        """Return this source as another process reads it (`pickle.loads`).

        By cloudpickle where it is installed, which takes classes along that a script or a notebook defines.
        """
        try:
            import cloudpickle as pickling
        except ImportError:
            pickling = pickle
        found: bytes = pickling.dumps(dataclasses.replace(self, module=copy.deepcopy(self.module).cpu()))
        return found

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the module's structure and weights."""
        return weights_digest(self.module)

    def _built(self, pretrained: bool) -> nn.Module:
        return copy.deepcopy(self.module).cpu()


def source_of(model: str | nn.Module, inputs: object = None, name: str | None = None) -> ModuleSource | None:
    """Return the source of a module, None for a model that has a name.

    Raises:
        InputError: as `ModuleSource.of`; inputs or a name for a model that is named.
    """
    if not isinstance(model, str):
        return ModuleSource.of(model, inputs, name)
    given = [word for word, value in (("inputs", inputs), ("name", name)) if value is not None]
    if given:
        raise InputError(f"model {model!r} makes no use of {' and '.join(given)}: give them with a module alone")
    return None


def _settings(module: nn.Module) -> str:
    """Return the SHA-256 of the numbers and texts that a module and those in it hold as attributes."""
    plain = (bool, int, float, str, type(None))
    found = [
        (name, key, value)
        for name, each in module.named_modules()
        for key, value in vars(each).items()
        if key != "training" and all(isinstance(part, plain) for part in (value if type(value) is tuple else (value,)))
    ]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's structure, and of its weights and buffers byte by byte."""
    found = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", str(module)).encode())
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
