"""The request of a training study: what can be asked, and the folder of its cells."""

from __future__ import annotations

import pytest
from fakes.trainings import asked

from convscope.errors import InputError
from convscope.training.request import folder_name

CAPTURED = {"captured": True, "device": "cuda:0", "math": "tf32", "fused_optimizer": True, "max_steps": 9}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": ("resnet19",)}, "unknown model 'resnet19'"),
        ({"models": ("vgg16",), "stem": "cifar"}, "vgg16 is no ResNet and has no cifar stem: say --stem imagenet"),
        ({"batch_sizes": (4, 0)}, "--batch-size 0: it must be at least 1"),
        ({"epochs": 0}, "--epochs 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be a number above 0"),
        ({"max_steps": 1}, "--max-steps 1: the first 1 steps are not counted"),
        ({"dataset": "digits", "classes": 9}, "--num-classes 9: digits has 10"),
        ({"algorithm": "gemm"}, "gemm needs a CUDA device"),
        ({"algorithm": "autotune"}, "autotune is for run_profile.py and run_verify.py: choose another --algorithm"),
        (
            {"algorithm": "direct", "dtype": "bfloat16"},
            "--algorithm direct trains in float32, in nchw and without --compile",
        ),
        (
            {"algorithm": "direct", "compiled": True},
            "--algorithm direct trains in float32, in nchw and without --compile",
        ),
        ({"captured": True}, "--capture needs a CUDA device, this is cpu: leave --capture out"),
        (CAPTURED | {"processes": 2}, "--capture trains in one process, not in 2: start it without torchrun"),
        (
            CAPTURED | {"fused_optimizer": False},
            "--capture needs the optimizer that reads the learning rate on the GPU",
        ),
        (CAPTURED | {"profiler": True}, "--capture cannot be traced: "),
        (CAPTURED | {"max_steps": 3}, "--max-steps 3: the first 3 steps of --capture are not replayed, so more are"),
        (
            CAPTURED | {"algorithm": "plan+packed:67"},
            "--capture does not go with plan+packed:67, which lays filters out",
        ),
        (
            CAPTURED | {"algorithm": "direct"},
            "--capture does not go with direct, which lays filters out when they change",
        ),
        ({"profile_memory": True}, "--profile-memory is a part of the trace"),
        ({"workers": 100_000}, "--num-workers 100000: at most "),
        ({"classes": 10**30}, f"--num-classes {10**30}: it must be at most 2147483647"),
        ({"image_size_px": 10**6}, "--batch-size 4: a batch of 1000000×1000000 images has more than 1e+12 pixels"),
    ],
)
def test_what_cannot_be_asked_is_one_line(changes: dict, said: str):
    with pytest.raises(InputError) as raised:
        asked(**changes)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("changes", [{}, {"compiled": True}, {"deterministic": True}, {"algorithm": "gemm"}])
def test_a_captured_step_can_be_asked_for_with_the_other_settings(changes: dict):
    assert asked(**CAPTURED | changes).captured


def test_resnets_go_by_their_short_names_and_others_by_torchvision():
    names = asked(models=("ResNet18", "resnet50", "torchvision:mobilenet_v2")).models
    assert names == ("torchvision:resnet18", "resnet50", "torchvision:mobilenet_v2")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "synthetic_torch_cpu_max_steps-3_stem-imagenet"),
        ({"epochs": 3, "deterministic": True}, "synthetic_torch_cpu_deterministic_epochs-3_max_steps-3_stem-imagenet"),
        ({"energy": False, "batch_sizes": (8,)}, "synthetic_torch_cpu_max_steps-3_stem-imagenet"),
        (CAPTURED, "synthetic_torch_cpu_fused_optimizer_max_steps-9_stem-imagenet"),  # beside the eager cells
    ],
)
def test_cells_of_other_settings_have_another_folder(changes: dict, name: str):
    found = folder_name(asked(**changes))
    assert sorted(found.split("_")) == sorted(name.split("_"))
