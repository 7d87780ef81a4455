"""`gpus.conf`: what a line has sbatch asked for, and lines that cannot be."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from fakes.stages import call


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("h9 - - -", ""),
        ("h9\tfast\tgpu:h9:1\tbig\r\n", "--constraint=fast --gres=gpu:h9:1 --partition=big"),
        ("# none\n\nH9 - gpu:1 -  # mine\nh9 1_sanity --time=5 --mem=1G\n* * --qos=x\nh9 3_full --time=9", None),
    ],
)
def test_lines_of_gpus_conf_say_what_sbatch_is_asked_for(tmp_path: Path, content: str, options: str | None):
    (tmp_path / "gpus.conf").write_bytes(content.encode())
    done = call("vgg16", "gemm", "h9", "--dry-run", config=tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = "--gres=gpu:1 --time=5 --mem=1G --qos=x" if options is None else options
    assert shlex.split(done.stdout)[5:-4] == wanted.split()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("h9 fast gpu:1", "say GPU, constraint, gres and partition (- for nothing)"),
        ("h9 fast gpu:1 big --mem=1G", "say GPU, constraint, gres and partition (- for nothing)"),
        ("l40s 1_sanity --time 5", "5 is no option of sbatch: write --name or --name=value, without spaces"),
        ("l40s 1_sanity --array=0-3", "--array=0-3 is for the stage to set"),
        ("l40s 1_sanity", "options of sbatch belong after GPU and stage"),
    ],
)
def test_a_line_of_gpus_conf_that_cannot_be_is_refused_with_its_number(tmp_path: Path, line: str, why: str):
    (tmp_path / "gpus.conf").write_text(f"# mine\n{line}")
    done = call("vgg16", "gemm", "l40s", "--dry-run", config=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}/gpus.conf, line 2: {why}" in done.stderr.replace("'", "")
    assert done.stderr.count("\n") == 1
