"""A page for the public: nothing of hosts, cards, jobs and folders; figures as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import reports

from convscope.__main__ import main
from convscope.report import folders
from convscope.report.exhibits import content
from convscope.report.public import without_folders, without_origin

SECRETS = ("node77", "GPU-secret", "somebody")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/somebody/net.py:make", "net.py:make"),
        ("~/nets/net.py:make", "net.py:make"),
        ("--output-dir=/scratch/somebody/run", "--output-dir=run"),
        ("cannot read '/home/somebody/a.pt'", "cannot read 'a.pt'"),
        ("file:///home/somebody/a.pt", "a.pt"),
        ("C:\\Users\\somebody\\a.pt", "a.pt"),
        ("images/s, 1/2, a / b, results/3_full/run", "images/s, 1/2, a / b, results/3_full/run"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_absolute_paths_are_names_of_files(text: str, expected: str):
    assert without_folders(text) == expected


@pytest.fixture
def run(tmp_path: Path) -> Path:
    origin = {"host": "node77", "gpu_uuid": "GPU-secret", "slurm_job_id": "424242"}
    path = reports.profile(
        tmp_path, "alexnet", "gemm", environment=origin, reason="see /home/somebody/log.txt", **origin
    )
    document = json.loads((path / "run.json").read_text())
    document["starts"][0]["command"] = [
        "/home/somebody/run_profile.py",
        "--study",
        ".cache/s.toml",
        "--output-dir=/home/somebody/r",
    ]
    document["starts"][0]["error"] = "no space in /home/somebody/results"
    (path / "run.json").write_text(json.dumps(document))
    return path


def test_nothing_says_where_a_run_was_and_its_figures_are_the_same(run: Path, tmp_path: Path):
    page = tmp_path / "report.html"
    for flags in ([], ["--public"]):
        assert main(["report", str(run), "-o", str(page), *flags]) == 0
        text = page.read_text() + json.dumps(reports.page_data(page.read_text()))
        assert [secret for secret in SECRETS if secret in text] == ([] if flags else [*SECRETS])
    found = folders.read([run])
    open_, hidden = content(found), content(without_origin(found))
    assert hidden.tables["commands"]["command"].tolist() == ["run_profile.py --study s.toml --output-dir=r"]
    assert hidden.tables["passes"]["reason"].unique().tolist() == ["see log.txt"]
    for name in ("mean_ms", "energy_mj", "time_ratio"):
        assert hidden.tables["passes"][name].tolist() == open_.tables["passes"][name].tolist()
