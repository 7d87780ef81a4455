"""Tables of the page: units, absent figures, ratios, the reference size, flags, picks, ceilings."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fakes import compared, reports

from convscope.report import figures, folders
from convscope.report.exhibits import Content, content
from convscope.report.tables import frames, overview, studies


def test_a_pass_has_its_figures_in_the_units_of_the_titles(found: Content):
    row = reports.only(found.tables["passes"], model="alexnet", gpu="h200", algorithm="gemm", size=224)
    assert (row["mean_ms"], row["ci95_ms"], row["memory_mib"], row["power_w"]) == (2.0, 0.04, 256.0, 400.0)
    assert row["energy_mj"] == pytest.approx(1.2)
    assert row["edp_mj_ms"] == pytest.approx(2.4)
    assert row["panel"] == "alexnet · h200 · batch 1 · float32 (fp32) · nchw"


def test_an_absent_figure_stays_absent(tmp_path: Path):
    compared.written(tmp_path / "run")
    (row,) = reports.shown(tmp_path).tables["passes"].to_dict("records")
    for name in ("energy_mj", "energy_ci_mj", "edp_mj_ms", "memory_mib", "power_w", "energy_ratio", "is_front"):
        assert pd.isna(row[name]), name


def test_ratios_are_to_the_best_of_the_same_model_card_and_size(found: Content):
    passes = found.tables["passes"]
    rows = passes[(passes["panel"] == "alexnet · h200 · batch 1 · float32 (fp32) · nchw") & (passes["size"] == 224)]
    ratios = dict(zip(rows["algorithm"], rows["time_ratio"], strict=True))
    assert ratios == pytest.approx({"torch": 1.0, "gemm": 1.25, "fft tiling": 3.125})
    assert reports.only(passes, gpu="a100", size=224)["time_ratio"] == 1.0


def rows_of(*rows: tuple[str, int, str, float | None]) -> pd.DataFrame:
    names = ("algorithm", "size", "status", "mean_ms")
    frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    return frame.assign(panel="p", energy_mj=None, edp_mj_ms=None, memory_mib=None)


def test_the_reference_size_is_the_largest_at_which_most_algorithms_have_a_time():
    found = frames.with_reference(
        rows_of(
            ("a", 64, "ok", 1.0), ("b", 64, "ok", 1.0), ("a", 96, "ok", 2.0), ("b", 96, "ok", 2.0),
            ("a", 128, "ok", 3.0), ("b", 128, "oom", None),
        )
    )  # fmt: skip
    assert found[found["is_reference"]]["size"].unique().tolist() == [96]


def test_the_reference_size_of_a_model_with_more_sizes_is_one_that_the_others_have():
    rows = pd.concat(
        [
            rows_of(("a", 96, "ok", 1.0), ("a", 224, "ok", 2.0), ("a", 480, "ok", 3.0)),
            rows_of(("a", 224, "ok", 1.0)).assign(panel="q"),
            rows_of(("a", 224, "ok", 1.0)).assign(panel="r"),
        ]
    ).reset_index(drop=True)
    found = frames.with_reference(rows.assign(panel_of_models="all"))
    assert found[found["is_reference"]].groupby("panel")["size"].first().to_dict() == {"p": 224, "q": 224, "r": 224}


def test_a_heat_map_has_a_cell_for_each_algorithm_with_a_star_where_others_ran_layers(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    reports.profile(tmp_path, "alexnet", "fft", fallback_layers=1)
    found = reports.shown(tmp_path)
    rows = next(each.rows for each in figures.pictures(found) if each.exhibit.name == "heat-time")
    assert {(row["algorithm"], row["star"]) for row in rows} == {("gemm", ""), ("fft", "*")}
    drawn = json.dumps(found.specs["heat-time"])
    assert "datum.star" in drawn


def test_layers_that_fell_back_are_one_flag(tmp_path: Path):
    layer = compared.layer(ran_algorithm="implicit precomp gemm", status="fallback", reason="not supported")
    compared.written(tmp_path / "run", [compared.overall(fallback_layers=1)], [layer])
    assert reports.shown(tmp_path).tables["flags"]["flag"].tolist() == ["fallback"]


def test_a_row_that_is_not_ok_is_nobodys_best():
    found = frames.with_reference(rows_of(("a", 64, "wrong", 1.0), ("b", 64, "ok", 2.0)))
    assert found["time_ratio"].isna().tolist() == [True, False]
    assert found["time_ratio"].iloc[1] == 1.0


def test_the_front_has_what_no_other_beats_in_both():
    rows = rows_of(("a", 64, "ok", 1.0), ("b", 64, "ok", 2.0), ("c", 64, "ok", 3.0)).assign(energy_mj=[5.0, 6.0, 4.0])
    assert frames.with_reference(rows)["is_front"].tolist() == [True, False, True]


def test_a_layer_stands_under_the_peaks_of_its_card(found: Content):
    layer = reports.only(found.tables["layers"], gpu="a100", size=128, layer="features.0")
    assert layer["intensity"] == 100.0
    assert layer["tflops"] == pytest.approx(1e9 / 0.75e-3 / 1e12)
    assert layer["bound_ms"] == pytest.approx(1e3 * 1e9 / 19.5e12)
    assert layer["kernels"] == "2 × implicit_gemm_kernel"


def test_a_layer_of_an_unknown_card_has_no_least_time(measured: Path):
    assert reports.shown(measured).tables["layers"]["bound_ms"].isna().all()


def test_ceilings_name_their_source(found: Content):
    roof = found.tables["roofline"]
    assert set(roof[roof["gpu"] == "a100"]["ceiling"].dropna()) == {"peaks (NVIDIA A100 datasheet, 80 GB SXM)"}
    most = roof[roof["ceiling"].notna()].groupby("gpu")["tflops"].max()
    assert dict(most) == {"a100": 19.5, "h200": 67.0}


def test_ceilings_that_a_study_measured_are_drawn_beside_the_peaks(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    schema = dataclasses.replace(reports.CONV3D, entries={"ceilings": {"copy_gbps": 4000.0, "tflops": {"fp32": 50.0}}})
    reports.write(tmp_path / "conv3d", schema, {"gpu": "h200"}, conv3d=[])
    roof = reports.shown(tmp_path).tables["roofline"]
    assert roof[roof["ceiling"] == "measured on such a card"]["tflops"].max() == 50.0


@pytest.mark.parametrize(
    ("changes", "flag", "detail"),
    [
        ({"throttle_reasons": "power cap, thermal"}, "throttled", "thermal"),
        ({"fallback_layers": 3}, "fallback", "3 layers"),
        ({"wrong_layers": 1, "status": "wrong", "reason": "off"}, "wrong", "1 layer"),
        ({"status": "oom", "reason": "asked for 9 GiB"}, "oom", "asked for 9 GiB"),
        ({"reason": "no energy: no sensor"}, "remark", "no energy: no sensor"),
        ({"mean": float("inf")}, "not finite", "mean"),
        (
            {"energy_per_inference_j": 1.0, "energy_uncertainty_j": 0.05},
            "uncertainty missed",
            "energy ± 5 %, asked for 1 %",
        ),
    ],
)
def test_a_flag_comes_from_the_columns_of_its_row(tmp_path: Path, changes: dict[str, Any], flag: str, detail: str):
    compared.written(tmp_path / "run", [compared.overall(**changes)])
    rows = reports.shown(tmp_path).tables["flags"]
    assert (flag, detail) in zip(rows["flag"], rows["detail"], strict=True)


def test_a_row_at_its_power_limit_is_not_flagged(tmp_path: Path):
    compared.written(tmp_path / "run", [compared.overall(throttle_reasons="power cap")])
    assert len(reports.shown(tmp_path).tables["flags"]) == 0


def test_a_name_that_is_not_what_ran_is_flagged(tmp_path: Path):
    compared.written(tmp_path / "run", layers=[compared.layer(ran_algorithm="smm")])
    flag = reports.only(reports.shown(tmp_path).tables["flags"], flag="ran something else")
    assert flag["detail"] == "1 layer ran smm"


def test_what_several_sizes_say_alike_is_one_flag(found: Content):
    flag = reports.only(found.tables["flags"], flag="throttled")
    assert (flag["rows"], flag["gpu"]) == (3, "a100")
    assert pd.isna(flag["size"])


def test_the_picks_of_a_layer(found: Content):
    pick = reports.only(found.tables["picks"], layer="conv2")
    assert (pick["fastest"], pick["frugal"], pick["smallest"]) == ("plan:28:k2=4", "plan:1", "plan:1")
    assert (pick["fastest_ms"], pick["frugal_mj"], pick["smallest_mib"]) == (0.01, 4.0, 0.0)
    assert pick["torch_regret_us"] == 3.0
    assert pd.isna(pick["benchmark_regret_us"])


def test_choices_name_their_version_of_cudnn(found: Content):
    for name in ("picks", "choice_passes", "candidates"):
        assert found.tables[name]["cudnn"].ne("").all(), name


def test_plans_of_every_kind_are_no_algorithms_to_filter_by():
    names = ["plan:1", "plan+packed:67:k2=8", "plan+steps:58", "torch", "direct"]
    rows = pd.DataFrame({"candidate": names, "layer": "a", "position": 0, "mean_ms": 1.0, "outcome": "ok"})
    folder = SimpleNamespace(study="plans", tables={"plans": rows}, request={}, environment={}, path=Path("run"))
    candidates = studies.of_candidates(folder)  # type: ignore[arg-type]
    assert candidates["algorithm"].fillna("").to_list() == ["", "", "", "torch", "direct"]


def test_plans_of_a_shape_stand_under_each_layer_that_has_it(found: Content):
    candidates = found.tables["candidates"]
    assert candidates.groupby("layer").size().to_dict() == {"conv1": 4, "conv2": 4}
    refused = candidates[candidates["outcome"] == "refused"]
    assert set(refused["reason"]) == {"no workspace"}


def test_a_chooser_alone_is_the_fastest_of_its_layer():
    rows = pd.DataFrame(
        [{"candidate": "torch", "mean_ms": 1.0, "regret_us": 0.0, "outcome": "ok", "run": "r", "position": 0}]
    )
    names = ("panel", "model", "gpu", "batch", "dtype", "layout", "math", "fused", "cudnn", "size", "layer")
    rows = rows.assign(**dict.fromkeys(names, "x"), energy_mj=None, workspace_mib=None)
    assert studies.picks(rows)["fastest"].tolist() == ["torch"]


def test_runs_of_the_same_work_are_told_apart_in_every_picture(tmp_path: Path):
    for stage in ("first", "second"):
        for algorithm in ("gemm", "torch"):
            reports.profile(tmp_path / stage, "alexnet", algorithm)
        reports.atlas(tmp_path / stage)
    shutil.copytree(tmp_path / "first" / "2_quick" / "alexnet_gemm_h200", tmp_path / "first" / "2_quick" / "again")
    found = reports.shown(tmp_path)
    for table, names in (
        ("passes", ["panel", "algorithm", "size"]),
        ("passes", ["panel_of_models", "model", "algorithm", "size"]),
        ("layers", ["panel", "algorithm", "size", "position"]),
        ("candidates", ["panel", "position", "candidate"]),
        ("choice_passes", ["panel", "convolutions_by"]),
    ):
        assert not found.tables[table].duplicated(names).any(), table
    passes = found.tables["passes"]
    assert passes.groupby("panel")["algorithm"].nunique().max() == 2  # those of one stage stay together


def test_training_inference_and_3d_have_their_rows(found: Content):
    assert found.tables["training"]["bar"].tolist() == ["batch 16", "batch 64"]
    assert found.tables["epochs"]["accuracy_pct"].tolist() == [81.0, 82.0, 83.0]
    engines = found.tables["inference"]
    assert engines[engines["status"] != "ok"]["reason"].tolist() == ["not installed"]
    assert set(found.tables["conv3d"]["implementation"]) == {"gemm", "direct"}


def test_runs_of_the_same_work_on_two_cards_are_compared(found: Content):
    (pair,) = found.tables["pairs"].to_dict("records")
    assert pair["passes"] == "3 ambiguous"
    verdicts = found.tables["verdicts"]
    assert verdicts["change_pct"].tolist() == pytest.approx([-100 / 3] * 3)


def test_runs_that_must_not_be_compared_say_why(results: Path):
    pair = [results / "2_quick" / name for name in ("alexnet_gemm_h200", "resnet50_torch_h200")]
    (line,) = content(folders.read([results]), pair).tables["pairs"].to_dict("records")
    assert line["fault"].startswith("A and B are different work (model alexnet and resnet50)")


def test_a_gain_is_a_share_of_pytorchs_pass_and_runs_of_a_model_have_rows_of_their_own(tmp_path: Path):
    for stage in ("first", "second"):
        reports.atlas(tmp_path / stage)
    gains = reports.shown(tmp_path).tables["choice_passes"]
    best = gains[gains["convolutions_by"] == "fastest of each layer"]
    assert best["gain_pct"].tolist() == pytest.approx([100 * 17 / 887] * 2)
    assert best["gain_ci99_pct"].tolist() == pytest.approx([100 * 2.1 / 887] * 2)
    assert best["panel_of_models"].nunique() == 1
    assert best["model_at"].tolist() == ["resnet50 at 224 px · plans", "resnet50 at 224 px · plans, run 2"]


def test_threads_of_the_processor_part_no_runs_on_a_gpu(tmp_path: Path):
    for algorithm, threads in (("gemm", 16), ("torch", 32)):
        reports.profile(tmp_path, "alexnet", algorithm, environment={"cpu_threads": threads})
    assert reports.shown(tmp_path).tables["passes"]["panel"].nunique() == 1


def test_threads_of_the_processor_part_runs_on_it(tmp_path: Path):
    for algorithm, threads in (("gemm", 16), ("torch", 32)):
        reports.profile(tmp_path, "alexnet", algorithm, gpu="cpu", environment={"cpu_threads": threads})
    assert reports.shown(tmp_path).tables["passes"]["panel"].nunique() == 2


def test_measured_runs_are_shown_as_their_tables_have_them(measured: Path):
    found = reports.shown(measured)
    passes = found.tables["passes"]
    assert sorted(passes["algorithm"].unique()) == ["direct", "torch"]
    assert (passes["mean_ms"] > 0).all()
    assert set(found.tables["work"]["category"]) >= {"convolution"}
    shares = found.tables["work"].groupby(["algorithm", "size"])["kernel_share_pct"].sum()
    assert shares.tolist() == pytest.approx([100.0] * 4)
    assert overview.device(found.found.folders[0]) == found.tables["runs"]["card"].iloc[0]


def test_runs_with_different_versions_are_not_in_one_picture_and_have_ratios_of_their_own(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    reports.profile(tmp_path, "alexnet", "torch", environment={"cudnn": "9.24.0", "driver": "590"})
    passes = reports.shown(tmp_path).tables["passes"]
    assert (passes["time_ratio"] == 1.0).all()
    assert passes["panel"].unique().tolist() == [
        "alexnet · h200 · batch 1 · float32 (fp32) · nchw · driver 580.159, cuDNN 9.19.0",
        "alexnet · h200 · batch 1 · float32 (fp32) · nchw · driver 590, cuDNN 9.24.0",
    ]
    assert passes["panel_of_models"].nunique() == 2


@pytest.mark.parametrize("column", ["fallback_layers", "unsupported_layers"])
def test_a_pass_in_which_others_ran_some_layers_is_named_so(tmp_path: Path, column: str):
    reports.profile(tmp_path, "alexnet", "winograd", **{column: 1})
    found = reports.shown(tmp_path)
    assert set(found.tables["passes"]["series"]) == {"winograd + others"}
    assert set(found.tables["passes"]["replaced_layers"]) == {1}
    assert "winograd + others takes" in found.sentences[0]
    assert {row["series"] for row in next(figures.pictures(found, ["scaling"])).rows} == {"winograd + others"}


def test_what_is_wrong_is_in_the_table_and_not_in_a_picture(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm", status="wrong", reason="relative error 0.5")
    reports.profile(tmp_path, "alexnet", "torch")
    found = reports.shown(tmp_path)
    drawn = [each for each in figures.pictures(found, ["scaling", "heat", "energy"]) if each.exhibit.table == "passes"]
    assert {row["algorithm"] for picture in drawn for row in picture.rows} == {"torch"}
    assert set(found.tables["passes"]["status"]) == {"wrong", "ok"}


def test_a_layer_has_its_whole_shape(tmp_path: Path):
    compared.written(tmp_path / "run", layers=[compared.layer(), compared.layer(position=1, stride="1x1", groups=3)])
    assert reports.shown(tmp_path).tables["layers"]["shape"].tolist() == [
        "3 → 64, 11x11, stride 4x4, padding 2x2, of 64x64",
        "3 → 64, 11x11, padding 2x2, groups 3, of 64x64",
    ]


def test_runs_with_different_versions_of_cudnn_are_compared_neither_unasked_nor_asked(tmp_path: Path):
    one = reports.profile(tmp_path / "one", "alexnet", "gemm")
    other = reports.profile(tmp_path / "other", "alexnet", "gemm", environment={"cudnn": "9.24.0"})
    assert len(reports.shown(tmp_path).tables["pairs"]) == 0
    (line,) = content(folders.read([tmp_path]), [one, other]).tables["pairs"].to_dict("records")
    assert line["fault"] == "A and B ran with cuDNN 9.19.0 and 9.24.0: they are not compared"


def test_every_picture_has_at_most_eight_series(tmp_path: Path):
    for number in range(12):
        reports.profile(tmp_path, "alexnet", f"plan:{number}", slower=1 + number / 10)
    for picture in figures.pictures(reports.shown(tmp_path), ["scaling", "energy", "roofline"]):
        names = {row["algorithm"] for row in picture.rows if row["algorithm"]}
        assert len(names) == 8, picture.exhibit.name
    by_layer = next(each for each in figures.pictures(reports.shown(tmp_path)) if each.exhibit.name == "layer-times")
    assert len({row["algorithm"] for row in by_layer.rows}) == 8
