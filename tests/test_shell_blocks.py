"""The shell blocks of the documents: a marked one (`fakes/shell_blocks.py`) runs on a CPU, and prints what it shows."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import ROOT, compared, drawn_samples, reports
from fakes.shell_blocks import MARKER, failure, marked, workplace

from convscope.dataset import samples
from convscope.dataset.samples import SampleRow
from convscope.storage import environment

NEUSIGHT = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Kernels,B,Input_Channel,Output_Channel,"
    "Kernel_Szie,Input_Size,Stride,Padding\n"
    'conv,1.25,Tesla P4,p2.1.0,8902,k,"first;second",38,893,326,3,5,1,1\n'
)


def runs_to_report(folder: Path) -> None:
    for model in ("resnet50", "vgg16"):
        for algorithm in reports.ALGORITHMS:
            reports.profile(folder / "results", model, algorithm)


def run_on_this_cpu(path: Path, algorithm: str, mean_ms: dict[int, float]) -> None:
    """Write a run of AlexNet as the commands of a page would, with a mean time for each size."""
    here = dataclasses.replace(environment.read(torch.device("cpu")), cpu_threads=1, cuda_visible_devices="")
    passes = [
        compared.overall(
            model="alexnet", algorithm=algorithm, input_size=px, mean=mean_ms[px], timing_method="time.perf_counter"
        )
        for px in mean_ms
    ]
    layers = [
        compared.layer(
            algorithm=algorithm, input_size=px, layer=name, position=at, mean_ms=mean_ms[px] / 9,
            in_height_px=px, in_width_px=px, timing_method="time.perf_counter",
        )
        for px in mean_ms for at, name in enumerate(f"features.{number}" for number in (0, 3, 6, 8, 10))
    ]  # fmt: skip
    compared.written(
        path / f"alexnet_{algorithm}_cpu", passes, layers, dataclasses.asdict(here), algorithm=algorithm, gpu="cpu",
        input_sizes=tuple(mean_ms), stage=path.name, device="cpu", energy=True,
    )  # fmt: skip


def runs_to_compare(folder: Path) -> None:
    for algorithm, factor in (("direct", 1.0), ("smm", 1.4)):
        run_on_this_cpu(folder / "results" / "2_quick", algorithm, {px: factor * px for px in (64, 144, 224)})


def first_run(folder: Path) -> None:
    run_on_this_cpu(folder / "results" / "1_sanity", "direct", {224: 400.0})


def tables_of_neusight(folder: Path) -> None:
    for card in ("P4", "T4", "P100-PCIE-16GB"):
        header, row = NEUSIGHT.splitlines(keepends=True)
        table = header + row.replace("Tesla P4", f"Tesla {card}")
        (folder / f"Tesla_{card}.csv.gz").write_bytes(gzip.compress(table.encode()))


def samples_of_two_nodes(folder: Path) -> None:
    tables_of_neusight(folder)
    (folder / "results" / "dataset" / "h200").mkdir(parents=True)
    rows = drawn_samples.measured(60, ("Tesla T4",))
    samples.write(folder / "results" / "dataset" / "h200" / "samples.csv", rows[:40])
    samples.write(folder / "node2.csv", rows[30:])


def samples_of_two_cards(folder: Path) -> None:
    """Write samples of 3×3 layers with up to 512 channels and filters."""
    rows = list[SampleRow]()
    for row in drawn_samples.drawn(200, ("Tesla P4", "Tesla P100-PCIE-16GB")):
        channels = row.in_channels if row.in_channels == 3 else 2 * row.in_channels
        wide = dataclasses.replace(row, in_channels=channels, out_channels=2 * row.out_channels)
        mean_ms = drawn_samples.milliseconds(wide, *drawn_samples.CARDS[row.gpu_name])
        rows.append(dataclasses.replace(wide, algorithm="torch benchmark", mean_ms=mean_ms))
    samples.write(folder / "samples.csv", rows)


def own_model(folder: Path) -> None:
    (folder / "net.py").symlink_to(ROOT / "examples" / "own_model.py")


def own_model_and_combinations(folder: Path) -> None:
    (folder / ".home" / "nets").mkdir()
    shutil.copy(ROOT / "examples" / "own_model.py", folder / ".home" / "nets" / "own.py")
    (folder / ".home" / "convscope").symlink_to(folder)
    (folder / "matrix.tsv").write_text("vgg16\tgemm\tl40s\nvgg16\tgemm\tk9000\n")


def atlas(folder: Path) -> None:
    reports.atlas(folder / "results").rename(folder / "results" / "plans" / "FOLDER")


GIVEN: dict[str, Callable[[Path], None]] = {
    "README.md": atlas, "compare.md": runs_to_compare, "data.md": samples_of_two_nodes, "own-model.md": own_model,
    "prediction.md": samples_of_two_cards, "report.md": runs_to_report, "slurm.md": own_model_and_combinations,
    "start.md": first_run,
}  # fmt: skip
"""What the commands of a page find: files that other pages, a GPU or a reader would have made."""
PAGES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if MARKER.search(path.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_markers_of_a_page_can_be_read(page: Path):
    assert all(marked(page.read_text()))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_marked_blocks_of_a_page_run_and_print_what_it_shows(page: Path, tmp_path: Path):
    variables = workplace(tmp_path)
    GIVEN.get(page.name, lambda _: None)(tmp_path)
    place = tmp_path / ".place"
    for block in marked(page.read_text()):
        place.write_text(str(tmp_path))
        for command in block:
            if reason := failure(command, tmp_path, variables, place):
                pytest.fail(reason, pytrace=False)
