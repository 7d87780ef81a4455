"""Figures for a paper: formats, widths, titles, labels at the ends of lines, at most eight series."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path

import pandas as pd
import pytest
from fakes import compared, reports

from convscope.__main__ import main
from convscope.report import charts, figures, folders, labels
from convscope.report.exhibits import Content, content


def picture(found: Content, exhibit: str) -> figures.Picture:
    return next(each for each in figures.pictures(found) if each.exhibit.name == exhibit)


def test_every_picture_is_written_in_each_width_and_format(tmp_path: Path, measured: Path):
    assert main(["figures", str(tmp_path / "figures"), str(measured), "--view", "scaling"]) == 0
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    stem = "time_torchvision_tiny_cpu_batch_1_float32_fp32__nchw"
    assert [re.sub(r"^time_.*nchw", stem, name) for name in names] == [
        f"{stem}_{width}.{kind}" for width in ("1column", "2column") for kind in ("pdf", "png", "svg")
    ]


@pytest.mark.parametrize(("name", "width_mm"), figures.WIDTHS_MM.items())
def test_a_picture_is_as_wide_as_its_columns(found: Content, name: str, width_mm: float):
    each = picture(found, "time")
    spec = figures.specification(each, found.specs["time"], width_mm * figures.MM_PX)
    pdf = figures.draw(spec, "pdf")
    box = re.search(rb"/MediaBox \[\s*0 0 ([\d.]+)", pdf)
    assert box is not None
    assert float(box[1]) == pytest.approx(width_mm / 25.4 * 72, abs=1)
    assert b"/FontFile" in pdf  # the fonts are in it
    (width_px,) = struct.unpack(">I", figures.draw(spec, "png")[16:20])
    assert width_px == pytest.approx(figures.PNG_SCALE * width_mm * figures.MM_PX, abs=4)


def test_a_picture_says_what_it_is_of_and_names_its_lines(found: Content):
    each = picture(found, "time")
    svg = figures.draw(figures.specification(each, found.specs["time"], 500), "svg").decode()
    for text in ("Time against input size", "alexnet", "h200", "float32 (fp32)", "nchw", "time, ms", "size, px"):
        assert text in svg
    for algorithm in reports.ALGORITHMS:
        assert svg.count(f">{algorithm}<") == 1  # at the end of its line, and in no legend


@pytest.mark.parametrize("exhibit", ["heat-time", "layers", "layer-times", "candidates", "roofline", "front", "picks",
                                     "choice-passes", "training", "throughput", "conv3d", "verdicts"])  # fmt: skip
def test_every_kind_of_chart_can_be_drawn(found: Content, exhibit: str):
    each = picture(found, exhibit)
    svg = figures.draw(figures.specification(each, found.specs[exhibit], 241), "svg").decode()
    assert "NaN" not in svg
    assert each.exhibit.title in svg.replace("&#39;", "'")


def test_a_picture_against_size_needs_two_sizes(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    run = compared.overall(model="vgg16", algorithm="gemm", input_size=224)
    compared.written(tmp_path / "vgg16", [run], model="vgg16", algorithm="gemm", input_sizes=(224,))
    found = [each for each in figures.pictures(content(folders.read([tmp_path]))) if each.exhibit.name == "time"]
    assert [each.panel.split(" · ")[0] for each in found] == ["alexnet"]


def test_at_most_eight_series_are_drawn_the_fastest(tmp_path: Path):
    for number in range(12):
        reports.profile(tmp_path, "alexnet", f"plan:{number:02}", slower=1 + number)
    each = picture(content(folders.read([tmp_path])), "time")
    assert {row["algorithm"] for row in each.rows} == {f"plan:{number:02}" for number in range(charts.MOST_SERIES)}
    assert each.remark == "the first 8 of 12 algorithms"


def test_narrow_cells_have_colours_without_figures(tmp_path: Path):
    for number in range(14):
        reports.profile(tmp_path, "alexnet", f"plan:{number}", slower=1 + number / 10)
    found = content(folders.read([tmp_path]))
    each = picture(found, "heat-time")
    narrow, wide = (
        figures.draw(figures.specification(each, found.specs["heat-time"], width), "svg").decode()
        for width in (241, 505)
    )
    assert ">2.3<" not in narrow
    assert ">2.3<" in wide


def test_names_at_the_ends_of_lines_leave_room_for_the_lines(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "implicit precomp gemm")
    found = content(folders.read([tmp_path]))
    spec = figures.specification(picture(found, "time"), found.specs["time"], 241)
    svg = figures.draw(spec, "svg").decode()
    plot = re.search(r'class="background" aria-hidden="true" d="M0,0h([\d.]+)v150', svg)
    assert plot is not None
    assert float(plot[1]) > 90


def test_a_long_title_stands_on_several_lines(found: Content):
    spec = figures.specification(picture(found, "picks"), found.specs["picks"], 241)
    assert spec["title"]["text"] == ["The best of each layer, and the regret of the", "choosers"]


def test_long_names_that_differ_in_the_middle_are_whole(found: Content):
    exhibit = picture(found, "candidates").exhibit
    ends = "plan+packed:67:k2={},k13=0,", "k18=0,k25=1,k27=1,k28=1"
    rows = [{"candidate": ends[0].format(at) + ends[1], "mean_ms": 1.0 + at, "std_ms": 0.1} for at in (1, 2)]
    spec = figures.specification(figures.Picture(exhibit, "p", rows), found.specs["candidates"], 505)
    svg = figures.draw(spec, "svg").decode()
    assert all(f">{ends[0].format(at)}<" in svg for at in (1, 2))
    assert svg.count(f">{ends[1]}<") == 2


def test_the_candidates_of_the_layer_that_takes_longest_at_its_fastest_are_drawn(found: Content):
    exhibit = picture(found, "candidates").exhibit
    rows = pd.DataFrame(
        {"layer": ["quick", "slow", "slow", "quick"], "candidate": list("abca"), "mean_ms": [1.0, 2.0, 3.0, 9.0]}
    )
    assert figures._reduced(exhibit, "p", rows).panel == "p · slow"


def test_labels_are_apart_and_inside():
    places = figures.spread([10.0, 10.0, 11.0, 99.0, 100.0], 9.0, 100.0)
    assert all(b - a >= 9.0 - 1e-9 for a, b in itertools.pairwise(places))
    assert places[-1] <= 100.0
    assert figures.spread([5.0, 50.0], 9.0, 100.0) == [5.0, 50.0]
    assert figures.spread([], 9.0, 100.0) == []


def test_colours_of_a_series_differ():
    assert len(set(charts.PALETTE)) == 8
    shown = [f"name {number}" for number in range(charts.MOST_SERIES)]
    looks = [channel("series", shown).to_dict()["scale"]["range"] for channel in (charts.colour, charts.sign)]
    assert len(set(zip(*looks, strict=True))) == charts.MOST_SERIES
    assert all(a != b for a, b in itertools.pairwise(looks[1]))


def test_an_algorithm_has_its_colour_also_where_others_ran_some_layers():
    shown = sorted({f"{name}{end}" for name in "abcdefghi" for end in ("", labels.OTHERS)})
    channels = (charts.colour, charts.sign, charts.dash)
    colours, signs, dashes = (channel("series", shown).to_dict()["scale"]["range"] for channel in channels)
    assert all(colours[at] == colours[at + 1] for at in range(0, 18, 2))
    assert len({colours[at] for at in range(0, 18, 2)}) == 8
    assert len(set(zip(colours, signs, strict=True))) == 18
    assert len({(colour, *dash) for colour, dash in zip(colours, dashes, strict=True)}) == 18


def test_nothing_to_draw_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    assert main(["figures", str(tmp_path / "figures"), str(tmp_path / "empty")]) == 1
    assert capsys.readouterr().out == "nothing to draw\n"


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    assert main(["figures", str(tmp_path / "file" / "figures"), str(tmp_path)]) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_axes_are_logarithmic_where_that_is_asked_for_and_the_page_offers_it(tmp_path: Path):
    for algorithm in ("gemm", "fft"):
        reports.profile(tmp_path, "alexnet", algorithm)
    found = content(folders.read([tmp_path]))
    plain, log = (figures.specification(picture(found, "time"), found.specs["time"], 505, on) for on in (False, True))
    for spec, kind in ((plain, None), (log, "log")):
        for layer in spec["layer"][:-1]:  # the last has the names
            assert [layer["encoding"][name]["scale"].get("type") for name in "xy"] == [kind, kind]
    assert plain["layer"][0]["encoding"]["y"]["scale"]["domain"][0] == 0
    svg = figures.draw(log, "svg").decode()
    assert ">gemm<" in svg
    assert ">fft<" in svg
    heat = (
        figures.specification(picture(found, "heat-time"), found.specs["heat-time"], 505, on) for on in (False, True)
    )
    assert next(heat) == next(heat)


def test_the_name_of_a_line_is_at_its_end_on_a_logarithmic_axis_too():
    axis = figures.Axis.around([1.0, 10.0, 100.0], is_log=True)
    places = [axis.from_top_px(value) for value in (100.0, 10.0, 1.0)]
    assert places[1] == pytest.approx(figures.HEIGHT_PX / 2)
    assert 0 < places[0] < places[1] < places[2] < figures.HEIGHT_PX
    assert figures.Axis.around([0.0, 1.0], is_log=False).from_top_px(0.0) == figures.HEIGHT_PX


@pytest.mark.parametrize(("value", "is_log"), [(5.0, True), (5.0, False), (0.0, False)])
def test_an_axis_of_one_value_has_a_length(value: float, is_log: bool):
    axis = figures.Axis.around([value], is_log)
    assert 0 <= axis.from_top_px(value) <= figures.HEIGHT_PX
    assert axis.least < axis.most


def test_log_axes_are_written_by_the_command(tmp_path: Path, measured: Path):
    folder = tmp_path / "figures"
    assert main(["figures", str(folder), str(measured), "--view", "scaling", "--log"]) == 0
    assert len(list(folder.glob("*.svg"))) == 2
