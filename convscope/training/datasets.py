"""Images of a training study: scikit-learn's digits, CIFAR-10 from local files, or one batch of noise for speed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from convscope.errors import InputError

CLASSES = 10
SYNTHETIC_STEPS = 100  # of an epoch of noise
_HELD_OUT_DIGITS = 360  # of 1,797
_CIFAR10_PX = 32
_BYTES_PER_PIXEL = 24  # of a digit while it is enlarged and normalised

LabelledBatch = tuple[torch.Tensor, torch.Tensor]


class Pictures(Dataset[LabelledBatch]):
    """Images N × 3 × H × W (bytes) with their labels; a whole batch is taken and normalised at once."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, mean: float, std: float) -> None:
        self.images, self.labels, self._mean, self._std = images, labels, mean, std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> LabelledBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> LabelledBatch:
        """Return the batch of these indices: float32, mean 0 and standard deviation 1 over the training images.

        NumPy does it on one thread: on a machine of many cores, waking PyTorch's threads takes far longer.
        """
        images = self.images.numpy()[list(indices)].astype(np.float32)
        images -= 255 * self._mean
        images /= 255 * self._std
        return torch.from_numpy(images), torch.from_numpy(self.labels.numpy()[list(indices)])


@dataclass(frozen=True)
class Images:
    """Images to train on, and images held out to test; noise has neither (None)."""

    train: Pictures | None
    held_out: Pictures | None


class Noise:
    """Loader that repeats one batch of noise on the device and costs no time."""

    def __init__(self, batch_size: int, classes: int, size_px: int, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch_size, 3, size_px, size_px, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        self._batch = images.to(device), labels.to(device)

    def __len__(self) -> int:
        return SYNTHETIC_STEPS

    def __iter__(self) -> Iterator[LabelledBatch]:
        return iter([self._batch] * SYNTHETIC_STEPS)


def load(name: str, data_dir: Path, size_px: int) -> Images:
    """Return the images of a data set at this size.

    Raises:
        InputError: the files or the library that has them are missing; CIFAR-10 at a size other than 32 pixels; or the
            images do not fit the machine's memory.
    """
    if name == "synthetic":
        return Images(None, None)
    return _digits(size_px) if name == "digits" else _cifar10(data_dir, size_px)


@functools.lru_cache(maxsize=1)
def _digits(size_px: int) -> Images:
    """Return the 1,797 digits, 8×8 with 17 shades, enlarged; every run holds out the same 360."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "--dataset digits needs scikit-learn: pip install 'convscope[study]', or choose --dataset synthetic"
        ) from None
    shades, labels = load_digits(return_X_y=True)
    _check_memory(len(labels), size_px)
    small = torch.from_numpy(shades.reshape(-1, 1, 8, 8)).float() * (255 / 16)
    large = torch.nn.functional.interpolate(small, size=size_px, mode="bilinear").round().byte().expand(-1, 3, -1, -1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, train = order[:_HELD_OUT_DIGITS], order[_HELD_OUT_DIGITS:]
    return _images(large, torch.from_numpy(labels).long(), train, held_out)


def _check_memory(count: int, size_px: int) -> None:
    needed_gb = count * size_px**2 * _BYTES_PER_PIXEL / 1e9
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if needed_gb > memory_gb:
        raise InputError(
            f"--input-size {size_px}: {count:,} images of that size need {needed_gb:,.0f} GB of memory, "
            f"this machine has {memory_gb:,.0f}: choose a smaller one"
        )


def _images(images: torch.Tensor, labels: torch.Tensor, train: torch.Tensor, held_out: torch.Tensor) -> Images:
    values = images[train].float() / 255
    scale = float(values.mean()), float(values.std())
    parts = (Pictures(images[part].contiguous(), labels[part], *scale) for part in (train, held_out))
    return Images(*parts)


def _cifar10(data_dir: Path, size_px: int) -> Images:
    if size_px != _CIFAR10_PX:
        raise InputError(f"--input-size {size_px}: CIFAR-10's images have 32 pixels; leave --input-size out")
    try:
        parts = [torchvision.datasets.CIFAR10(str(data_dir), train=train) for train in (True, False)]
    except RuntimeError:
        raise InputError(
            f"CIFAR-10 is not in {data_dir}: unpack cifar-10-python.tar.gz (www.cs.toronto.edu/~kriz/cifar.html) so "
            f"that {data_dir / 'cifar-10-batches-py'} is there, say another --data-dir, or --dataset digits"
        ) from None
    images = torch.from_numpy(np.concatenate([part.data for part in parts])).permute(0, 3, 1, 2)
    labels = torch.tensor([label for part in parts for label in part.targets])
    count = len(parts[0].data)
    return _images(images, labels, torch.arange(count), torch.arange(count, len(labels)))


def _whole_batch(batch: Any) -> Any:
    return batch


def train_loader(
    pictures: Pictures, batch_size: int, seed: int, workers: int, pin: bool, rank: int = 0, world: int = 1
) -> DataLoader[LabelledBatch]:
    """Return one rank's whole batches, in an order drawn from seed and epoch; InputError where there is not one."""
    if len(pictures) < batch_size * world:
        raise InputError(f"{len(pictures)} training images make no batch of {batch_size} for {world} processes")
    sampler: DistributedSampler[LabelledBatch] = DistributedSampler(pictures, world, rank, seed=seed, drop_last=True)
    return DataLoader(pictures, batch_size, sampler=sampler, num_workers=workers, collate_fn=_whole_batch,
                      pin_memory=pin, drop_last=True, persistent_workers=workers > 0)  # fmt: skip


def test_loader(pictures: Pictures) -> DataLoader[LabelledBatch]:
    """Return the held-out images in their order."""
    return DataLoader(pictures, 256, collate_fn=_whole_batch)
