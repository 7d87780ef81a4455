"""Files of engines that are kept: the program beside them runs them, and computes the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.inference import Small, run, study

from convscope.errors import MissingError
from convscope.inference.engines import catalogue, keeping
from convscope.inference.engines.workload import Workload

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; exec(open('run.py').read())"


def test_an_exported_model_runs_without_pytorch(tmp_path: Path):
    begun = study(tmp_path, engines=("onnxruntime",), batch_sizes=(2,), keep=True)
    begun.run()
    assert not begun.failed
    (folder,) = (tmp_path / "engines").iterdir()
    assert folder.name == "onnxruntime_batch2"
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=folder, check=True, timeout=60)
    given, output = (torch.from_numpy(np.load(folder / name)) for name in ("images.npy", "output.npy"))
    assert given.shape == (2, 3, 32, 32)
    torch.testing.assert_close(output, begun.model(given).detach(), atol=1e-5, rtol=1e-4)


def test_nothing_is_kept_unless_that_is_asked_for(tmp_path: Path):
    run(tmp_path, engines=("onnxruntime",), batch_sizes=(2,))
    assert not (tmp_path / "engines").exists()


@pytest.mark.parametrize(
    ("suffix", "program", "said"),
    [
        (".onnx", "run.py", "onnxruntime.InferenceSession"),
        (".plan", "run.py", "deserialize_cuda_engine"),
        (".pt2", "run.cpp", 'model("model.pt2")'),
    ],
)
def test_each_kind_of_file_has_its_program(tmp_path: Path, suffix: str, program: str, said: str):
    (tmp_path / f"model{suffix}").write_bytes(b"a model")
    keeping.gather([tmp_path / f"model{suffix}"], tmp_path / "kept", torch.zeros(2, 3, 4, 5), "float16", "nhwc", True)
    assert (tmp_path / "kept" / f"model{suffix}").read_bytes() == b"a model"
    text = (tmp_path / "kept" / program).read_text()
    assert said in text
    assert "{{" not in text
    if suffix == ".pt2":
        assert "120, torch::kFloat16).view({2, 4, 5, 3}).permute({0, 3, 1, 2})" in text
        assert "-ltorch_cuda" in text


def test_programs_of_both_layouts_differ_by_how_the_images_lie_alone(tmp_path: Path):
    (tmp_path / "model.pt2").write_bytes(b"a model")
    images = torch.arange(120.0).view(2, 3, 4, 5)
    for layout in ("nchw", "nhwc"):
        keeping.gather([tmp_path / "model.pt2"], tmp_path / layout, images, "float32", layout, on_gpu=False)
    planar, last = ((tmp_path / layout / "run.cpp").read_text() for layout in ("nchw", "nhwc"))
    assert last.replace(".view({2, 4, 5, 3}).permute({0, 3, 1, 2})", ".view({2, 3, 4, 5})") == planar != last
    assert (tmp_path / "nchw" / "images.bin").read_bytes() == images.numpy().tobytes()


@pytest.mark.long
def test_a_package_runs_by_a_program_without_python(tmp_path: Path):
    given = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    model, work = Small().eval(), tmp_path / "work"
    work.mkdir()
    asked = Workload("it", model, given, torch.device("cpu"), "float32", "nhwc", "fp32", work, None, print, print)
    try:
        runner, cost = catalogue.make("aot", asked)
    except MissingError as missing:
        pytest.skip(str(missing))
    runner.close()
    keeping.gather(cost.files, folder := tmp_path / "kept", given, "float32", "nhwc", on_gpu=False)
    lines = [
        line.removeprefix("//   ") for line in (folder / "run.cpp").read_text().splitlines() if line.startswith("//   ")
    ]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert shutil.which("c++", path=environment["PATH"])
    subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=folder, check=True, timeout=300, env=environment)
    output = torch.from_numpy(np.fromfile(folder / "output.bin", np.float32)).view(2, 4)
    torch.testing.assert_close(output, model(given).detach(), atol=1e-5, rtol=1e-4)
