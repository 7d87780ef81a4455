"""`--take-over` in every command that locks a folder."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from convscope.storage import lock

COMMANDS = {
    "run_profile": ("--model alexnet --algorithm torch --device cpu --no-energy --test", "alexnet_torch_overall"),
    "run_verify": ("--model alexnet --choice --device cpu", "choice"),
    "run_training": ("--model resnet18 --dataset digits --device cpu --no-energy", "training"),
    "run_inference": ("--model alexnet --device cpu --no-energy", "inference"),
    "run_conv3d": ("--device cpu", "conv3d"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_a_folder_of_unknown_fate_over_only_with_the_flag(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if name == "run_conv3d" and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    flags, table = COMMANDS[name]
    arguments = [*flags.split(), "--output-dir", str(tmp_path)]
    folder = tmp_path / "alexnet_cpu_224px_batch1_fp32" if name == "run_verify" else tmp_path
    folder.mkdir(exist_ok=True)
    unknown = dataclasses.replace(lock.myself(), boot="another")
    (folder / lock.NAME).write_text(json.dumps(dataclasses.asdict(unknown)))
    (folder / f"{table}.csv").touch()  # so that the command ends once it holds the folder
    main = importlib.import_module(name).main
    assert main(arguments) == 2
    assert "nobody can tell from here" in capsys.readouterr().err
    assert main([*arguments, "--take-over"]) == 2
    assert "has tables and no run.json" in capsys.readouterr().err
    assert not (folder / lock.NAME).exists()
