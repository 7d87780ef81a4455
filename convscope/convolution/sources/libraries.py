"""Models of libraries: torchvision, timm, and transformers' vision models."""

from __future__ import annotations

import functools
import hashlib
import inspect
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from convscope.convolution import names
from convscope.convolution.sources.source import FirstTensor, Inputs, Size, Source, extents, in_words
from convscope.errors import ElsewhereError, InputError

# Heads that only training uses; their weights would have to be built and never run.
_INFERENCE_ONLY: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
_FRAMES = 16  # of a video
_WEIGHTS = (".safetensors", ".bin")  # of transformers
_VIDEO, _FLOW = "torchvision.models.video", "torchvision.models.optical_flow"


class TorchvisionSource(Source):
    """A model of torchvision: for classification, detection, segmentation, video or optical flow."""

    @property
    def _bare(self) -> str:
        return names.without_arguments(self.name).removeprefix(names.PREFIX)

    @property
    def fixed_px(self) -> int | None:
        """The size of a vision transformer's images; None for all others."""
        return int(self._options.get("image_size", 224)) if self._bare.startswith("vit_") else None

    @property
    def _options(self) -> dict[str, Any]:
        return names.arguments_of(self.name)

    def shapes(self) -> nn.Module:
        """Build the model on the meta device; no weights are drawn."""
        options = dict.fromkeys(_INFERENCE_ONLY.get(self._bare, {}), False) | self._options
        try:
            with torch.device("meta"):
                return self._model(weights=None, **options).eval()
        except (NotImplementedError, RuntimeError):  # some (RegNet) compute on their weights while they are built
            return super().shapes()

    def inputs(self, size: Size, batch_size: int, seed: int) -> Inputs:
        """Return images; 16 frames of them for a model of video, two of them for one of optical flow."""
        shapes = [tuple(each.shape) for each in self.input_shapes(size, batch_size)]
        drawn = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=drawn) for shape in shapes)

    def input_shapes(self, size: Size, batch_size: int) -> Inputs:
        """Return the inputs on the meta device."""
        (still,) = super().input_shapes(size, batch_size)
        module = torchvision.models.get_model_builder(self._bare).__module__
        if module.startswith(_FLOW):
            return still, still
        return (still.new_empty(batch_size, 3, _FRAMES, *extents(size)),) if module.startswith(_VIDEO) else (still,)

    def _built(self, pretrained: bool) -> nn.Module:
        if not pretrained:
            return self._model(weights=None, **_INFERENCE_ONLY.get(self._bare, {}) | self._options)
        try:
            return self._model(weights="DEFAULT", **self._options)
        except OSError as error:
            raise InputError(
                f"the trained weights of {self._bare} cannot be downloaded ({error}): "
                f"put them into {torch.hub.get_dir()}/checkpoints, or leave out --pretrained"
            ) from None

    def _classifying(self, classes: int) -> nn.Module:
        known = names.torchvision_classifiers()
        if known is not None and self._bare not in known:
            return super()._classifying(classes)
        return self._model(
            weights=None, num_classes=classes, **_INFERENCE_ONLY.get(self._bare, {}) | self._options
        ).train()

    def _model(self, **options: Any) -> nn.Module:
        accepted = inspect.signature(torchvision.models.get_model_builder(self._bare)).parameters
        if "weights_backbone" in accepted and options.get("weights") is None:
            options = {"weights_backbone": None} | options  # or it would be downloaded
        try:
            model: nn.Module = torchvision.models.get_model(self._bare, **options)
        except (OSError, NotImplementedError, RuntimeError):  # no download; no arithmetic on the meta device
            raise
        except Exception as error:
            raise _refused(self.name, error) from None
        return model


class TimmSource(Source):
    """A model of timm."""

    @property
    def _bare(self) -> str:
        return names.without_arguments(self.name).removeprefix(names.TIMM)

    def check(self) -> None:
        """Raise InputError where timm is not installed or has no such model."""
        timm = _timm()
        if not timm.is_model(self._bare):
            near = names.nearest(self._bare.partition(".")[0], timm.list_models())
            listing = "python -c 'import timm; print(timm.list_models())'"
            raise InputError(f"timm has no model {self._bare!r}: {listing}{near}")

    @functools.cached_property
    def fixed_px(self) -> int | None:
        """The size of the images that a model with positions by patch takes; None for all others."""
        options = names.arguments_of(self.name)
        if "img_size" in options:
            return self._side(options["img_size"])
        described = _timm().get_pretrained_cfg(self._bare)
        return int(described.input_size[-1]) if described and described.fixed_input_size else None

    def _side(self, size: object) -> int:
        sides = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size,)
        side = sides[0]
        if not isinstance(side, int) or any(each != side for each in sides):
            raise InputError(f"{self.name}: img_size={size}: say one number of pixels, such as img_size=224")
        return side

    def _built(self, pretrained: bool) -> nn.Module:
        return self._model(pretrained=pretrained)

    def _classifying(self, classes: int) -> nn.Module:
        return self._model(num_classes=classes).train()

    def _model(self, **options: Any) -> nn.Module:
        try:
            model: nn.Module = _timm().create_model(self._bare, **options | names.arguments_of(self.name))
        except OSError as error:
            reason = f"the trained weights of {self._bare} cannot be loaded ({error}): leave out --pretrained"
            raise InputError(reason) from None
        except Exception as error:
            raise _refused(self.name, error) from None
        return model


class TransformersSource(Source):
    """A vision model of transformers: a kind with its usual configuration, a folder, or a name of the hub.

    `hf:resnet` is ResNet-50, as `ResNetConfig()` describes it. Arguments change the configuration.
    """

    @property
    def _bare(self) -> str:
        return names.without_arguments(self.name).removeprefix(names.HF)

    def check(self) -> None:
        """Raise InputError where transformers is not installed, or nothing describes such a model."""
        _ = self._configuration

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of name, version and configuration, and of the trained weights of a folder."""
        if self._is_kind:
            return names.digest(self.name)
        kept = sorted(each for each in Path(self._bare).glob("*") if each.suffix in _WEIGHTS)
        weights = [f"{each.name} {_file_digest(each)}" for each in kept]
        return names.digest(" ".join([self.name, self._configuration.to_json_string(), *weights]))

    @property
    def _is_kind(self) -> bool:
        return self._bare in _transformers().CONFIG_MAPPING and not Path(self._bare).exists()

    @property
    def trained_weights(self) -> bool:
        """A kind has none: a folder or a name of the hub has."""
        return not self._is_kind

    @functools.cached_property
    def fixed_px(self) -> int | None:
        """The size of the configuration where the model takes no other; None for all others."""
        size = getattr(self._configuration, "image_size", None)
        if not isinstance(size, int):
            return None
        shapes = self.shapes()
        try:
            with torch.inference_mode():
                shapes(*self.input_shapes(2 * size, 1))
        except Exception:  # of the library's code, whatever it is
            return size
        return None

    @functools.cached_property
    def _configuration(self) -> Any:
        transformers, options = _transformers(), names.arguments_of(self.name)
        try:
            if self._is_kind:
                return transformers.CONFIG_MAPPING[self._bare](**options)
            of_hub_or_folder = "/" in self._bare or Path(self._bare).is_dir()
            return transformers.AutoConfig.from_pretrained(self._bare, local_files_only=not of_hub_or_folder, **options)
        except (OSError, ValueError, TypeError) as error:
            near = names.nearest(self._bare, _vision_kinds())
            where = "a kind of model, a folder with config.json, or a name of the hub (which needs a network)"
            raise InputError(f"no model {self.name} ({_first_line(error)}): give {where}{near}") from None

    def shapes(self) -> nn.Module:
        """Build the model on the meta device; no weights are drawn."""
        try:
            with torch.device("meta"):
                return self._of_configuration(self._configuration).eval()
        except (NotImplementedError, RuntimeError):
            return super().shapes()

    def _built(self, pretrained: bool) -> nn.Module:
        if not pretrained:
            return self._of_configuration(self._configuration)
        try:
            model: nn.Module = self._loader().from_pretrained(self._bare, config=self._configuration)
        except OSError as error:
            reason = (
                f"the trained weights of {self._bare} cannot be loaded ({_first_line(error)}): leave out --pretrained"
            )
            raise InputError(reason) from None
        return model

    def _classifying(self, classes: int) -> nn.Module:
        configuration = type(self._configuration).from_dict(self._configuration.to_dict() | {"num_labels": classes})
        return FirstTensor(self._of_configuration(configuration)).train()

    def _of_configuration(self, configuration: Any) -> nn.Module:
        try:
            model: nn.Module = self._loader().from_config(configuration)
        except ValueError as error:
            raise InputError(f"{self.name} is no vision model of transformers ({_first_line(error)})") from None
        except (NotImplementedError, RuntimeError):  # no arithmetic on the meta device
            raise
        except Exception as error:
            raise _refused(self.name, error) from None
        return model

    def _loader(self) -> Any:
        """Return the class that builds it: with a head for classes where there is one, else its bare body."""
        transformers = _transformers()
        classifies = type(self._configuration) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
        return transformers.AutoModelForImageClassification if classifies else transformers.AutoModel


def _vision_kinds() -> list[str]:
    mapping = _transformers().MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    return [configuration.model_type for configuration in mapping]


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise ElsewhereError("models by timm:NAME need timm: pip install timm") from None
    return timm


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ElsewhereError("models by hf:NAME need transformers: pip install transformers") from None
    return transformers


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _refused(name: str, error: Exception) -> InputError:
    return InputError(f"{name} cannot be built: {in_words(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
