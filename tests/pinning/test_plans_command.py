"""`python -m convscope plans`: documents of plans from an atlas, and two of them side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import ENVIRONMENT, layer

from convscope import __main__ as program
from convscope.atlas import tables
from convscope.atlas.offered import KnownPlan
from convscope.atlas.race import Shape
from convscope.atlas.rows import PLANS, PlanRow
from convscope.cudnn.graph.engines import Offer
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import Fused
from convscope.errors import InputError
from convscope.pinning import difference, document, errata
from convscope.pinning.document import Pin, Pins
from convscope.storage.store import Store
from convscope.verification.request import make_verification
from convscope.verification.rows import ModelKey

KEY = ModelKey("alexnet", 224, 1, "fp32")
REQUEST = make_verification("alexnet", "torch", 224, device="cpu", question="plans", rounds=3)


def shapes() -> list[Shape]:
    """Two layers of one shape, and one of another that no plan takes."""
    offers = [KnownPlan(Offer(Plan(engine), {"a": engine}, (), (), 64 * engine)) for engine in (1, 2)]
    for plan in offers:
        plan.relative_error, plan.kernels = 1e-7, {f"implicit_gemm {plan.offer.plan.engine}": 1}
    times_ms = {
        "plan:1": {0: 0.20, 1: 0.202, 2: 0.198},
        "plan:2": {0: 0.1, 1: 0.1005, 2: 0.0995},
        "torch": {0: 0.21, 1: 0.208, 2: 0.212},
    }
    first = Shape((layer(name="b", position=1), layer(name="c", position=2)), tuple(offers), times_ms)
    first.kernels["torch"] = {"implicit_gemm 1": 1}
    return [first, Shape((layer(name="a", position=0, in_channels=64),), (), {"torch": {0: 1.0, 1: 1.0, 2: 1.0}})]


def atlas(folder: Path, change: Callable[[Shape], None] = lambda shape: None, **environment: Any) -> Path:
    """Write an atlas of these shapes, with a change, as a study does."""
    made, here = shapes(), dataclasses.replace(ENVIRONMENT, gpu_name="NVIDIA H200", cudnn="9.19.0", **environment)
    change(made[0])
    with Store(folder, PLANS) as store:
        store.missing(REQUEST, here, [KEY])
        store.begin(REQUEST, here, ["run_verify.py"])
        store.append([*tables.layer_rows(KEY, made), *tables.rows(REQUEST, here, made)])
    return folder


def ran(*arguments: object) -> int:
    return program.main(["plans", *map(str, arguments)])


def test_an_export_has_the_fastest_plan_of_each_layer_and_what_it_depends_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = atlas(tmp_path / "atlas")
    assert ran("export", folder) == 0
    assert capsys.readouterr().out == f"2 layers: {folder / 'plans.json'}\n"
    pins = document.read(folder / "plans.json")
    assert pins == document.from_atlas(folder)
    assert {pin.layer: pin.algorithm for pin in pins.layers} == {"b": "plan:2", "c": "plan:2"}
    assert pins.stack == {"gpu_name": "NVIDIA H200", "driver": ENVIRONMENT.driver, "cudnn": "9.19.0"}
    assert pins.settings["model"] == "alexnet"
    pin = pins.layers[0]
    assert pin.figures["mean_ms"] == pytest.approx(0.1)
    assert pin.figures["workspace_bytes"] == 128
    assert (pin.shape["in_channels"], pin.shape["kernel_size"]) == (layer().in_channels, "3x3")
    assert pin.kernels == {"implicit_gemm 2": 1}


def with_relu(shape: Shape) -> None:
    fused = Fused(bias=True, relu=True)
    shape.layers = tuple(dataclasses.replace(each, fused=fused) for each in shape.layers)


def test_what_is_fused_is_exported_and_has_no_script_and_no_errata(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = atlas(tmp_path / "atlas", with_relu)
    assert ran("export", folder) == 0
    written = document.read(folder / "plans.json")
    assert [(each.layer, each.shape["fused"]) for each in written.layers] == [("b", "bias relu"), ("c", "bias relu")]
    capsys.readouterr()
    assert ran("diff", atlas(tmp_path / "other"), folder) == 2
    assert "A and B are other work (B is of a fused model): compare two of the same" in capsys.readouterr().err
    for command, said in (
        (("repro", folder, "b"), "bias relu is fused with b: a script shows a convolution alone"),
        (("errata", folder, "plan:1"), "an atlas with --fused is of no stock model"),
    ):
        assert ran(*command) == 2
        assert said in capsys.readouterr().err


def test_what_is_fused_counts_for_the_digest_only_where_something_is(tmp_path: Path):
    plain, fused = (atlas(tmp_path / name, change) for name, change in (("a", lambda shape: None), ("b", with_relu)))
    for folder in (plain, fused):
        (folder / "plans.json").write_text(document.from_atlas(folder).text())
        assert document.read(folder / "plans.json").plans_digest == document.from_atlas(folder).plans_digest
    assert document.from_atlas(plain).plans_digest != document.from_atlas(fused).plans_digest
    written = json.loads((plain / "plans.json").read_text())
    for each in written["layers"]:
        del each["shape"]["fused"]
    (plain / "old.json").write_text(json.dumps(written))
    assert document.read(plain / "old.json").plans_digest == document.from_atlas(plain).plans_digest


def ahead(shape: Shape) -> None:
    shape.times_ms["torch"] = {0: 0.05, 1: 0.05, 2: 0.05}


def test_a_layer_where_pytorch_is_ahead_of_every_plan_is_left_to_it(tmp_path: Path):
    folder = atlas(tmp_path / "atlas", ahead)
    assert {each.algorithm for each in document.from_atlas(folder).layers} == {"torch"}
    assert {each.algorithm for each in document.from_atlas(folder, "torch").layers} >= {"plan:1"}  # by its kernels


def test_pytorchs_choice_is_the_plan_whose_kernels_it_launches(tmp_path: Path):
    assert ran("export", atlas(tmp_path / "atlas"), "--pick", "torch", "-o", tmp_path / "torch.json") == 0
    pins = document.read(tmp_path / "torch.json")
    assert {pin.layer: pin.algorithm for pin in pins.layers} == {"a": "torch", "b": "plan:1", "c": "plan:1"}


def slower(shape: Shape) -> None:
    shape.times_ms["plan:2"] = {place: 1.5 * time for place, time in shape.times_ms["plan:2"].items()}


def test_two_atlases_that_are_alike_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a, b = atlas(tmp_path / "a"), atlas(tmp_path / "b")
    assert ran("diff", a, b) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 layers: 2 same"


def test_another_driver_that_makes_a_layer_slower_is_exit_code_1_with_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    a, b = atlas(tmp_path / "a", driver="580"), atlas(tmp_path / "b", slower, driver="590")
    assert ran("diff", a, b) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "driver: 580 -> 590"
    assert lines[2].split()[:4] == ["b", "plan:2", "plan:2", "+50.0"]
    assert lines[2].endswith("slower")
    assert lines[-1] == "2 layers: 2 slower"
    assert ran("diff", b, a) == 0  # faster the other way round
    assert ran("diff", a, b, "--tolerance", "60") == 0


def test_a_document_and_an_atlas_can_be_compared_and_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a, b = atlas(tmp_path / "a"), atlas(tmp_path / "b", slower)
    ran("export", a, "-o", tmp_path / "a.json")
    capsys.readouterr()
    assert ran("diff", tmp_path / "a.json", b, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1
    assert [each["verdicts"] for each in told["layers"]] == [["slower"]] * 2


def pin(**changes: Any) -> Pin:
    figures = {
        "outcome": "ok", "mean_ms": 1.0, "std_ms": 0.001, "rounds": 5, "workspace_bytes": 64, "relative_error": 1e-7,
    } | changes.pop("figures", {})  # fmt: skip
    return dataclasses.replace(
        Pin("one", "plan:1", {"in_channels": 3, "fused": None}, figures, {"kernel": 1}), **changes
    )


def pins(*layers: Pin, **settings: Any) -> Pins:
    named = dict.fromkeys(document.SETTINGS, "x") | settings
    return Pins(named, dict.fromkeys(document.STACK, "y"), None, layers)


@pytest.mark.parametrize(
    ("other", "verdicts"),
    [
        (pin(), ("same",)),
        (pin(figures={"mean_ms": 0.5}), ("faster",)),
        (pin(figures={"mean_ms": 1.06}), ("slower",)),
        (pin(figures={"mean_ms": 1.05, "std_ms": 0.1}), ("ambiguous",)),
        (pin(figures={"rounds": 1, "std_ms": None}), ("not compared",)),
        (pin(figures={"outcome": "wrong"}), ("same", "wrong")),
        (pin(figures={"relative_error": 4.1e-7}), ("same", "less exact")),
        (pin(figures={"relative_error": float("nan")}), ("same", "less exact")),
        (pin(figures={"relative_error": 3.9e-7}), ("same",)),
        (pin(figures={"workspace_bytes": 65}), ("same", "more memory")),
        (pin(figures={"workspace_bytes": 63}), ("same",)),
        (pin(kernels={"another": 1}), ("same", "other kernels")),
        (pin(kernels={}), ("same",)),
        (pin(shape={"in_channels": 4, "fused": None}), ("other shape",)),
    ],
)
def test_what_changed_in_a_layer_is_said(other: Pin, verdicts: tuple[str, ...]):
    (found,) = difference.compared(pins(pin()), pins(other))
    assert found.verdicts == verdicts
    assert found.is_bad == bool({*verdicts} & {*difference.BAD})


def test_a_layer_that_only_one_side_has_is_missing():
    found = difference.compared(pins(pin(), pin(layer="two")), pins(pin(), pin(layer="three")))
    assert [(each.layer, each.a, each.b, each.verdicts) for each in found[1:]] == [
        ("two", "plan:1", "-", ("missing",)),
        ("three", "-", "plan:1", ("missing",)),
    ]


def test_other_work_is_not_compared():
    with pytest.raises(InputError, match=r"A and B are other work \(math x and fp32; layout x and nhwc\)"):
        difference.compared(pins(pin()), pins(pin(), math="fp32", layout="nhwc"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "is no document of plans"),
        ('{"form": "convscope plans", "version": 2}', "has version 2, this is 1: export it again"),
        ('{"form": "convscope plans", "version": 1}', "lacks 'layers': export it again"),
    ],
)
def test_a_file_that_is_no_document_is_one_line(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "plans.json"
    if text is not None:
        path.write_text(text)
    assert ran("diff", path, path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"convscope plans: {path} ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_folder_without_an_atlas_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert ran("export", tmp_path) == 2
    assert "has no atlas of plans: run_verify.py --model M --plans writes one" in capsys.readouterr().err


def with_next(shape: Shape) -> None:
    """PyTorch runs engine 1 here; of mode A engine 2 comes next, and engine 3 would not run."""
    shape.plans = (*shape.plans, KnownPlan(Offer(Plan(3), {"a": 0}, (), (), 0), "refused", "no"))


def test_errata_deny_an_engine_in_one_version_and_say_what_that_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = atlas(tmp_path / "atlas", with_next)
    assert ran("errata", folder, "plan:1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["b", "2", "plan:1", "210.0", "plan:2", "100.0", "-220.0"]
    assert lines[2:] == ["1 shape: -220.0 µs a pass", f"CUDNN_ERRATA_JSON_FILE={folder / 'errata.json'}"]
    assert json.loads((folder / "errata.json").read_text()) == {
        "version": 1,
        "rules": [
            {
                "rule_id": "ConvFwd_eng1", "operation": "ConvFwd", "engine": 1, "knob": [],
                "cudnn_version_start": 91900, "cudnn_version_end": 91901,
            }
        ],
    }  # fmt: skip


def test_an_engine_that_pytorch_does_not_run_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert ran("errata", atlas(tmp_path / "atlas"), "2", "-o", tmp_path / "errata.json") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "PyTorch runs 2 in no layer: blocking it costs nothing here",
        "0 shapes: +0.0 µs a pass",
    ]


def test_without_another_plan_of_mode_a_the_fallback_is_next_and_without_any_none():
    denied, torchs = Plan(1), {"candidate": "torch", "same_kernels_as": "plan:1", "engine": None, "mean_ms": 0.2}
    usual = dict.fromkeys([field.name for field in dataclasses.fields(PlanRow)])

    def row(**cells: Any) -> PlanRow:
        return PlanRow(**{**usual, "layer": "b", "layers": 1, "position": 0, "outcome": "ok"} | cells)

    first = row(candidate="plan:1", engine=1, rank_a=0)
    fallback = [row(candidate=f"plan:{n}", engine=n, rank_fallback=9 - n, mean_ms=0.1 * n) for n in (4, 5)]
    (cost,) = errata.costs([row(**torchs), first, *fallback], denied)
    assert (cost.instead, cost.more_us) == ("plan:5", pytest.approx(300.0))
    (cost,) = errata.costs([row(**torchs), first], denied)
    assert (cost.instead, cost.more_us) == (None, None)


@pytest.mark.parametrize(
    ("denied", "name", "is_denied"),
    [
        ("38", "plan:38:k2=8,k13=1", True),
        ("38:k2=8", "plan:38:k2=8,k13=1", True),
        ("38:k2=9", "plan:38:k2=8,k13=1", False),
        ("38:k2=8", "plan:38", False),
        ("3", "plan:38", False),
        ("38", "torch", False),
    ],
)
def test_a_rule_fits_its_engine_and_the_values_that_it_names(denied: str, name: str, is_denied: bool):
    assert errata.fits(Plan.named(denied), name) == is_denied


def test_a_rule_names_its_knobs():
    (rule,) = json.loads(errata.text(Plan.of(38, {13: 1, 2: 8}), "9.24.1"))["rules"]
    assert (rule["rule_id"], rule["knob"]) == ("ConvFwd_eng38_k2=8_k13=1", ["k2=8", "k13=1"])
    assert (rule["cudnn_version_start"], rule["cudnn_version_end"]) == (92401, 92402)


@pytest.mark.parametrize(("plan", "said"), [("gemm", "'gemm' is no plan"), ("99", "no layer of this atlas has a plan")])
def test_what_is_no_engine_of_an_atlas_is_one_line(
    plan: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = atlas(tmp_path / "atlas")
    assert ran("errata", folder, plan) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert said in printed.err
    assert not (folder / "errata.json").exists()


def test_a_file_that_cannot_be_written_and_a_pick_of_a_document_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, nowhere = atlas(tmp_path / "atlas"), tmp_path / "nowhere" / "x"
    for arguments in (["export", folder], ["errata", folder, "plan:1"], ["repro", folder, "b"]):
        assert ran(*arguments, "-o", nowhere) == 2
        said = (
            f"convscope plans: cannot write {nowhere} (No such file or directory): choose another file with --output\n"
        )
        assert capsys.readouterr().err == said
    assert ran("export", folder) == 0
    assert ran("repro", folder / "plans.json", "b", "--pick", "torch") == 2
    assert capsys.readouterr().err.endswith("plans.json has one plan for each layer\n")


@pytest.mark.parametrize(
    ("where", "changes", "lacking"),
    [
        ("shape", {}, "'in_channels'"),
        ("figures", {}, "'outcome'"),
        ("shape", {"in_height_px": None}, "in_height_px of b"),
        ("shape", {"stride": 2}, "stride of b"),
        ("algorithm", 3, "object has no attribute"),
    ],
)
def test_a_document_whose_layer_is_damaged_is_one_line(tmp_path: Path, where: str, changes: object, lacking: str):
    folder = atlas(tmp_path / "atlas")
    assert ran("export", folder) == 0
    path = folder / "plans.json"
    written = json.loads(path.read_text())
    first = written["layers"][0]
    first[where] = first[where] | changes if isinstance(changes, dict) and changes else changes
    path.write_text(json.dumps(written))
    with pytest.raises(InputError, match=rf"lacks .*{lacking}.*: export it again"):
        document.read(path)


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_tolerance_is_a_percentage(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str):
    with pytest.raises(SystemExit, match="2"):
        ran("diff", tmp_path, tmp_path, f"--tolerance={value}")
    assert f"invalid percentage value: '{value}'" in capsys.readouterr().err


def test_no_file_of_an_atlas_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = atlas(tmp_path / "atlas")
    table = next(made.glob("*.csv"))
    before = table.read_bytes()
    assert ran("export", made, "-o", table) == 2
    assert capsys.readouterr().err == f"convscope plans: -o {table}: this command reads it: name another file\n"
    assert table.read_bytes() == before
    assert ran("export", made) == ran("export", made) == 0  # its own plans.json may be
