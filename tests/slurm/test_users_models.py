"""Models from the user's own file through a real queue, submitted from the folder where the file is."""

from __future__ import annotations

import subprocess

import pandas as pd
import pytest
from slurm_cluster import Cluster
from slurm_flows import CODE, LIGHT

pytestmark = pytest.mark.long


def test_a_model_with_an_argument_and_settings_of_a_line_end_in_their_folders(cluster: Cluster):
    stand = cluster.folder / "my nets"
    stand.mkdir()
    (stand / "own.py").write_text(CODE)
    lines = (f"own.py:make,width=6\ttorch\tcpu\t{setting}\n" for setting in ("batch_size=2", "dtype=bfloat16"))
    (stand / "two.tsv").write_text("".join(lines))
    model = f"{stand}/own.py:make,width=6"
    by_hand = ("sbatch", "--parsable", "--gres=none", "1_sanity_check.sh", model, "torch", "cpu", *LIGHT)
    alone = cluster.call(*by_hand).stdout.strip()
    command = [str(cluster.project / "1_sanity_check.sh"), "--matrix", "two.tsv", *LIGHT]
    done = subprocess.run(command, cwd=stand, env=cluster.environment, capture_output=True, text=True, check=False)
    array = done.stdout.splitlines()[-1]
    assert [cluster.wait(job) for job in (alone, f"{array}_0", f"{array}_1")] == ["COMPLETED"] * 3
    for end in ("", "_b2", "_bf16"):
        folder = cluster.results("1_sanity", f"own.py_make_width_6_torch_cpu{end}")
        layers = pd.read_csv(folder / "own.py_make_width_6_torch_layers.csv")
        assert list(layers["status"]) == ["ok", "ok"]
        assert set(layers["batch_size"]) == {2 if end == "_b2" else 1}
    said = cluster.call("./check_status.sh", "--model", model).stdout
    rows = [line for line in said.splitlines() if line.startswith(f"{model}, torch, cpu")]
    assert [row.count("done 1/1") for row in rows] == [1, 1, 1]
