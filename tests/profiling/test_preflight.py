"""Combinations checked before anything is queued or run: by rule, by their layers, and on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fakes import ROOT

from convscope.errors import InputError
from convscope.profiling import preflight
from convscope.profiling.request import Run, run_elsewhere

OWN = ROOT / "tests" / "fakes" / "own_models.py"


def answer(
    line: str,
    is_here: bool = False,
    count: int | None = 2,
    note: Callable[[str], None] = lambda line: None,
    **settings: object,
) -> list[dict[str, object]]:
    """Return the answer for a combination of model, algorithm and GPU at `count` sizes."""

    def make(model: str, algorithm: str, gpu: str, stage: str, of_line: Sequence[str]) -> Run:
        assert not of_line
        return run_elsewhere(model, algorithm, gpu=gpu, num_sizes=count, stage=stage, **settings)

    return preflight.answer([line.replace(", ", "\t")], ["2_quick"], make, "auto", is_here, note)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("resnet50, winograd, l40s", "winograd needs 3×3 kernels with stride 1: 40 of 53 convolutions of resnet50"),
        ("vgg16, fft, l40s", "fft needs padded inputs of at most 256×256"),
        ("torchvision:mobilenet_v2, smm, cpu", "ai3 has no grouped convolution on a CPU"),
        ("torchvision:maxvit_t, gemm, l40s", "cannot take 512×512 images"),
    ],
)
def test_layers_against_a_rule_are_found_without_a_gpu(line: str, why: str):
    with pytest.raises(InputError, match=why):
        answer(line)


def test_sizes_that_are_not_measured_are_not_checked():
    assert answer("vgg16, fft, l40s", count=1)[0]["input_sizes"] == (224,)


def test_with_a_fallback_no_layer_is_against_an_algorithm():
    assert answer("resnet50, winograd, l40s", unsupported="fallback")[0]["unsupported"] == "fallback"


def test_a_size_that_a_model_cannot_take_is_found():
    with pytest.raises(InputError, match="alexnet cannot take 16×16 images"):
        answer("alexnet, gemm, l40s", input_size_range=(16, 300))


def test_a_gpu_that_is_not_here_is_found_before_a_local_run(no_gpu: None):
    with pytest.raises(InputError, match="--gpu k9000: the device is a CPU"):
        answer("vgg16, gemm, k9000", is_here=True)
    assert answer("vgg16, torch, cpu", is_here=True)
    assert answer("vgg16, gemm, local", is_here=True) == []


def test_where_pytorch_is_missing_the_layers_are_left_to_the_job():
    script = "import sys; sys.modules['torch'] = None; import run_profile; sys.exit(run_profile.main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "--check-stages", "3_full"],
        cwd=ROOT, input="resnet50\twinograd\tl40s\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"algorithm": "winograd"' in done.stdout
    assert "the layers are not checked here" in done.stderr


def test_a_model_of_one_size_is_asked_for_that():
    assert answer("torchvision:vit_b_16, gemm, l40s", count=10)[0]["input_sizes"] == (224,)
    assert answer(f"{OWN}:pair, direct, cpu", count=10)[0]["input_sizes"] == (48,)


@pytest.mark.parametrize("model", ["torchvision:vit_b_16", f"{OWN}:pair"])
def test_sizes_that_are_named_for_a_model_of_another_one_are_refused(model: str):
    with pytest.raises(InputError, match=r"takes inputs of one size alone, \d+ px: leave out --input-size"):
        answer(f"{model}, torch, cpu", count=None, input_sizes=[320])


HERE_ALONE = {
    "timm:resnet18": "models by timm:NAME need timm: pip install timm",
    "hf:microsoft/resnet-50": "models by hf:NAME need transformers: pip install transformers",
    "/nowhere/nets/net.py:make,width=2": "there is no folder /nowhere/nets on this machine",
    "/nowhere/net.pt2": "there is no folder /nowhere on this machine",
    "{}:make": "net.py:make cannot be imported: ModuleNotFoundError: No module named 'not_here'",
}


@pytest.mark.parametrize("model", HERE_ALONE)
def test_what_may_be_on_the_cluster_alone_is_noted_and_refused_for_a_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "net.py").write_text("import not_here\ndef make(): pass\n")
    name, why, notes = model.format(tmp_path / "net.py"), HERE_ALONE[model], []
    found = answer(f"{name}, torch, cpu", note=notes.append)
    assert found[0]["model"] == name
    (line,) = notes
    assert line.startswith(f"{name} is not checked here (")
    assert why in line
    with pytest.raises(InputError, match=re.escape(why)):
        answer(f"{name}, torch, cpu", is_here=True)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("timm:resnet_eighteen", "timm has no model"),
        ("hf:resnett", "no model hf:resnett"),
        (f"{OWN}:Brunch", r"defines no Brunch \(nearest: Branch\)"),
        (f"{OWN}:breaks", "no weights here"),
        ("no_such_package.nets:make", "No module named 'no_such_package'"),
        (f"{OWN}x:make", "unknown model"),
        (str(ROOT / "nowhere.csv"), "there is no file"),
    ],
)
def test_models_that_nobody_has_are_refused(model: str, why: str):
    with pytest.raises(InputError, match=why):
        answer(f"{model}, torch, cpu")
