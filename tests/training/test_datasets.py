"""The images of a training study."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from convscope.errors import InputError
from convscope.training import datasets


@pytest.fixture(scope="module")
def digits() -> datasets.Images:
    return datasets.load("digits", Path("nowhere"), 32)


def test_digits_are_1797_real_images_enlarged_in_three_channels(digits: datasets.Images):
    assert (len(digits.train), len(digits.held_out)) == (1437, 360)
    assert digits.train.images.shape[1:] == (3, 32, 32)
    assert set(digits.train.labels.tolist()) == set(range(10))


def test_no_held_out_digit_is_trained_on(digits: datasets.Images):
    train = {image.numpy().tobytes() for image in digits.train.images}
    held_out = {image.numpy().tobytes() for image in digits.held_out.images}
    assert not train & held_out


def test_training_images_have_mean_0_and_deviation_1(digits: datasets.Images):
    images, _ = digits.train.__getitems__(range(len(digits.train)))
    assert images.dtype == torch.float32
    assert float(images.mean()) == pytest.approx(0, abs=1e-3)
    assert float(images.std()) == pytest.approx(1, abs=1e-3)


def test_two_epochs_have_other_orders_and_a_seed_repeats_them(digits: datasets.Images):
    def labels(seed: int, epoch: int) -> list[int]:
        loader = datasets.train_loader(digits.train, 32, seed, 0, False)
        loader.sampler.set_epoch(epoch)
        return torch.cat([batch[1] for batch in loader]).tolist()

    assert labels(1, 0) == labels(1, 0)
    assert labels(1, 0) != labels(1, 1)
    assert labels(1, 0) != labels(2, 0)


def test_two_processes_share_the_images(digits: datasets.Images):
    def bytes_of(rank: int) -> set[bytes]:
        loader = datasets.train_loader(digits.train, 32, 1, 0, False, rank, 2)
        return {image.numpy().tobytes() for images, _ in loader for image in images}

    one, other = bytes_of(0), bytes_of(1)
    assert len(one) == len(other) == 22 * 32
    assert not one & other


def test_a_batch_larger_than_the_data_is_refused(digits: datasets.Images):
    with pytest.raises(InputError, match="1437 training images make no batch of 800 for 2 processes"):
        datasets.train_loader(digits.train, 800, 1, 0, False, 0, 2)


def test_missing_cifar10_files_are_told_with_their_place(tmp_path: Path):
    with pytest.raises(InputError, match=rf"not in {tmp_path}: unpack .* {tmp_path}/cifar-10-batches-py is"):
        datasets.load("cifar10", tmp_path, 32)


def test_local_cifar10_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5=None: Path(path).exists())
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]):
        content = {"data": np.full((4, 3072), 40 * number, np.uint8), "labels": [number] * 4}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    images = datasets.load("cifar10", tmp_path, 32)
    assert (len(images.train), len(images.held_out)) == (20, 4)
    assert images.train.images.shape == (20, 3, 32, 32)
    assert images.held_out.labels.tolist() == [5] * 4
    assert int(images.held_out.images.max()) == 200


def test_cifar10_has_one_size(tmp_path: Path):
    with pytest.raises(InputError, match="--input-size 64: CIFAR-10's images have 32 pixels"):
        datasets.load("cifar10", tmp_path, 64)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    datasets._digits.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'convscope\[study\]', or choose --dataset synthetic"):
        datasets.load("digits", Path("nowhere"), 32)


def test_noise_is_one_batch_again_and_again():
    noise = datasets.Noise(4, 7, 16, 0, torch.device("cpu"))
    seen = list(noise)
    assert len(seen) == len(noise) == datasets.SYNTHETIC_STEPS
    assert seen[0][0].shape == (4, 3, 16, 16)
    assert all(batch is seen[0] for batch in seen)
