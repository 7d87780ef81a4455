"""Images that engines compute: random scenes for weights drawn from a seed, photographs for trained ones.

The outputs of a network differ little between images of noise, and an engine that mixes images up would hardly be
noticed. Scenes have edges, surfaces and objects of all sizes, as photographs do.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.nn import functional

from convscope.errors import InputError

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by which trained networks expect colours
_SCENES, _SCENE_PX, _DISCS = 16, 288, 400
_LEAST_RADIUS = 1 / 64  # of a scene's side; the largest is half of it
_LEAST_PART = 0.3  # of a picture's shorter side that an image shows
_KINDS = (".jpg", ".jpeg", ".png")


def scenes(count: int, side_px: int, seed: int) -> torch.Tensor:
    """Return images of random scenes, count × 3 × side × side, normalised; no two are alike.

    A scene is made of discs that hide each other, with random colours and places, their radii spread by r^-3: the
    "dead leaves" model (Lee, Mumford and Huang, "Occlusion Models for Natural Images", IJCV 41, 2001).
    """
    return parts([_scene(seed, number) for number in range(min(count, _SCENES))], count, side_px, seed)


@functools.lru_cache(maxsize=8 * _SCENES)
def _scene(seed: int, number: int) -> torch.Tensor:
    """Draw one scene, 3 × side × side, from 0 to 1."""
    generator = np.random.default_rng([seed, number])
    scene = np.empty((3, _SCENE_PX, _SCENE_PX), np.float32)
    scene[:] = generator.uniform(size=(3, 1, 1))
    least, most = _LEAST_RADIUS**-2, 0.5**-2
    for _ in range(_DISCS):
        radius = _SCENE_PX / math.sqrt(generator.uniform(most, least))  # its density falls by r^-3
        centre = generator.uniform(-radius, _SCENE_PX + radius, 2)
        top, left = np.maximum(np.floor(centre - radius), 0).astype(int)
        bottom, right = np.minimum(np.ceil(centre + radius) + 1, _SCENE_PX).astype(int)
        rows, columns = np.ogrid[top:bottom, left:right]
        disc = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2
        scene[:, top:bottom, left:right][:, disc] = generator.uniform(size=(3, 1))
    return torch.from_numpy(scene)


def photographs(count: int, side_px: int, seed: int, folder: Path | None = None) -> torch.Tensor:
    """Return parts of photographs, count × 3 × side × side, normalised.

    Args:
        folder: has them as JPEG or PNG files; without it they are the two that scikit-learn brings.

    Raises:
        InputError: there are none, or a file cannot be read.
    """
    return parts(_bundled() if folder is None else _read(folder), count, side_px, seed)


def _bundled() -> list[torch.Tensor]:
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        raise InputError(
            "trained weights are judged on photographs: name a folder with --images, or pip install scikit-learn, "
            "which brings two"
        ) from None
    return [_pixels(photo) for photo in load_sample_images().images]


def _read(folder: Path) -> list[torch.Tensor]:
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in _KINDS)
    if not files:
        raise InputError(f"--images {folder}: there is no {', '.join(_KINDS)} file in this folder")
    return [_decoded(file) for file in files]


def _decoded(file: Path) -> torch.Tensor:
    try:
        with Image.open(file) as picture:
            return _pixels(np.asarray(picture.convert("RGB")))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"--images {file}: it cannot be read ({str(error).splitlines()[0]})") from None


def _pixels(picture: NDArray[np.uint8]) -> torch.Tensor:
    """Return height × width × 3 bytes as 3 × height × width from 0 to 1."""
    return torch.from_numpy(picture.copy()).permute(2, 0, 1) / 255


def parts(pictures: list[torch.Tensor], count: int, side_px: int, seed: int) -> torch.Tensor:
    """Return square parts of pictures (3 × height × width, 0 to 1) in turn, normalised: of random place and size.

    Every second one is turned left to right.
    """
    generator = np.random.default_rng([seed, _SCENES])
    images = torch.empty(count, 3, side_px, side_px)
    for index in range(count):
        picture = pictures[index % len(pictures)]
        height, width = picture.shape[1:]
        side = max(1, round(min(height, width) * generator.uniform(_LEAST_PART, 1)))
        top, left = generator.integers(height - side + 1), generator.integers(width - side + 1)
        part = picture[None, :, top : top + side, left : left + side]
        part = part.flip(3) if generator.random() < 0.5 else part
        images[index] = functional.interpolate(part, side_px, mode="bilinear", antialias=True)[0]
    return (images - torch.tensor(_MEAN).view(3, 1, 1)) / torch.tensor(_STD).view(3, 1, 1)
