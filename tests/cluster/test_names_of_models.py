"""Models of every kind in the stages: shell and Python agree on their spelling, their place and their folder."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from fakes import ROOT

from convscope.convolution import names
from convscope.storage.paths import Combination, slug

NAMES = [
    "vgg16",
    "VGG16,num_classes=4",
    "torchvision:resnet18",
    "TorchVision:ResNet18,num_classes=4",
    "timm:convnext_tiny",
    "TIMM:vit_small_patch16_224.augreg_in21k,drop_path_rate=0.1,img_size=(256, 192)",
    "hf:microsoft/resnet-50",
    "HF: resnet,hidden_sizes=[8, 16]",
    "/abs/net.py:make",
    "/abs/Two Words/n'et.py:Make,width=2,name='a,b',weights=/data/w.csv",
    "/größe/größe.py:größe,breite=3",
    "/a.csv,b/net.py:make",
    "/data/my.pt2x/a.pt2",
    "/data/layers.csv",
    "/data/.hidden.csv",
    "/$(touch x)/`y`;&.py:m",
    "pkg.mod:Class.make,width=2",
    "/a__b,_c\\d/net.py:make,x=*",
    "/日本/網.pt2,a=日 本",
    "pkg.mod:make,weights=/a/b/w.pt2",
    "timm:resnet18,checkpoint_path=/a/b/layers.csv,x=/c.py:d",
    "/a/net.py:make,weights=/data/w.pt2",
    "/a.py:b/net.py:make",
]  # fmt: skip


def in_stage(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run lines of shell behind those that the stages share."""
    command = ["bash", "-c", f'root={ROOT}; source "$root/slurm/stage.sh"; this=1_sanity; {script}']
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_shell_and_python_agree_on_a_name_in_a_path(tmp_path: Path, name: str):
    assert in_stage(f"slug {shlex.quote(name)}", tmp_path).stdout == slug(name)
    assert "/" not in slug(name)
    assert slug(name).isascii()
    assert not slug(name).startswith(".")  # a hidden folder is in no status


@pytest.mark.parametrize("name", NAMES)
def test_shell_and_python_agree_on_spelling_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(names, "_check_file", lambda name: None)
    monkeypatch.setattr(names, "torchvision_models", lambda: None)
    expected = names.check_model(name)
    script = f"flags=(--batch-size 4); take_names {shlex.quote(name)} implicit_gemm CPU; "
    done = in_stage(script + 'printf "%s\\n" "$model"; folder 2_quick', tmp_path)
    folder = Combination(expected, "implicit gemm", "cpu", 4).folder_name
    assert (done.stderr, done.stdout) == ("", f"{expected}\nresults/2_quick/{folder}")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("pkg.mod:make,weights=/a/b/w.pt2", "pkg.mod_make_weights_a_b_w.pt2"),
        ("/a/net.py:make,weights=/data/w.csv", "net.py_make_weights_data_w.csv"),
        ("hf:resnet,a=/x.py:f", "hf_resnet_a_x.py_f"),
    ],
)
def test_an_argument_with_a_file_names_no_folder_after_itself(name: str, folder: str):
    assert slug(name) == folder


RELATIVE = ["net.py:make,width=2", "nets/my.pt2", "layers.csv", "/abs/net.py:make", "hf:tiny", "hf:resnet", "vgg16"]


@pytest.mark.parametrize("name", RELATIVE)
def test_a_relative_file_is_of_where_the_user_stands(tmp_path: Path, name: str):
    (tmp_path / "tiny").mkdir()
    placed = names.placed(name, tmp_path)
    assert in_stage(f"spelled {name}", tmp_path).stdout == placed
    assert (f"{tmp_path}/" in placed) is (name in RELATIVE[:3] or name == "hf:tiny")
    assert in_stage(f"spelled {name}", ROOT).stdout == name
    assert names.placed(name, Path.cwd()) == name


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder that is not the repository's, with a model of the user's own."""
    (tmp_path / "own.py").write_text("from torch import nn\ndef make(width=1): return nn.Conv2d(3, width, 3)\n")
    return tmp_path


def stage(cwd: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CONVSCOPE_CONFIG": "/nonexistent", "CONVSCOPE_RESULTS": f"{cwd}/results"} | more
    command = [str(ROOT / "1_sanity_check.sh"), *arguments, "--dry-run"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


@pytest.mark.long
def test_a_job_gets_the_file_in_full(elsewhere: Path):
    done = stage(elsewhere, "own.py:make,width=2", "gemm", "l40s")
    assert (done.returncode, done.stderr) == (0, "")
    assert "/results/1_sanity/own.py_make_width_2_gemm_l40s/%x_%j.out'" in done.stdout
    assert done.stdout.rstrip().endswith(f"'1_sanity_check.sh' '{elsewhere}/own.py:make,width=2' 'gemm' 'l40s'")


def test_a_run_here_gets_the_file_in_full(elsewhere: Path):
    done = stage(elsewhere, "own.py:make", "torch", "cpu", "--local")
    assert f"'--model' '{elsewhere}/own.py:make'" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("option", ["--matrix", "--study"])
def test_a_file_of_a_matrix_or_a_study_is_of_where_the_user_stands(elsewhere: Path, option: str):
    (elsewhere / "files").mkdir()
    lines = {
        "--matrix": "own.py:make,width=2\ttorch\tcpu\n",
        "--study": 'models = ["own.py:make,width=2"]\nalgorithms = ["torch"]\ngpus = ["cpu"]\n',
    }
    (elsewhere / "files" / "file").write_text(lines[option])
    if option == "--matrix":
        done = stage(elsewhere, option, "files/file")
        assert "'--array=0-0%4'" in done.stdout
    else:
        done = stage(elsewhere, option, "files/file", "cpu", "--local", "--gpus", "cpu")
        assert f"--local {elsewhere}/own.py:make,width=2 torch cpu" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere.py:make", "torch", "cpu"], "there is no file {}/nowhere.py"),
        (["own.py:makes", "torch", "cpu"], "{}/own.py defines no makes (nearest: make)"),
        (["own.py", "torch", "cpu"], "own.py: name the callable in it that returns the model, own.py:NAME"),
        (["own.py:make\tx", "torch", "cpu"], "MODEL $'own.py:make\\tx' is no name"),
        (["own.py:make,a=[1,", "2]", "torch", "cpu"], "in quotes: 'net.py:make,width=2'"),
        (["own.py:make", "width=2", "torch", "cpu"], "in quotes: 'net.py:make,width=2'"),
        (["own.py:make", "torch", "cpu", "--model-args", "width=2"], "in the model's name: 'net.py:make,width=2'"),
        (["own.py:make,a=b c", "implicit", "gemm", "l40s"], "sh '{}/own.py:make,a=b c' implicit_gemm l40s"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused_in_one_line(elsewhere: Path, words: list[str], why: str):
    done = stage(elsewhere, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("1_sanity_check.sh: ")
    assert why.format(elsewhere) in done.stderr
    assert done.stderr.count("\n") == 1
