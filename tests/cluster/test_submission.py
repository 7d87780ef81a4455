"""What a combination still needs: other settings, failed sizes, jobs in the queue, stages of a chain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from convscope.cluster import history, matrix, submission
from convscope.cluster.submission import Planner, Requests
from convscope.errors import InputError
from convscope.storage.paths import STAGES, Combination

WHO = Combination("alexnet", "gemm", "l40s")
SETTINGS = {"model": "alexnet", "algorithm": "gemm", "gpu": "l40s", "batch_size": 1, "math": "tf32"}
SIZES = {"1_sanity": [224], "2_quick": [224, 300, 512], "3_full": [224, 300, 400, 512]}


def asked(overwrite: bool = False, retry: bool = False, output_dir: str | None = None, **settings: Any) -> Requests:
    """Return the requests of alexnet in all stages, as `run_profile.py` answers."""
    runs = {(WHO, stage): SETTINGS | {"stage": stage, "input_sizes": SIZES[stage]} | settings for stage in STAGES}
    return Requests(runs, overwrite, retry, output_dir)


def measured(results: Path, stage: str, statuses: Sequence[str] = ("ok",) * 3, **settings: Any) -> Path:
    """Write the folder of a run that measured sizes of a stage with these statuses."""
    folder = results / stage / WHO.folder_name
    folder.mkdir(parents=True)
    run = SETTINGS | {"input_sizes": SIZES[stage]} | settings
    (folder / "run.json").write_text(json.dumps({"schema_version": 3, "run": run, "starts": [{"asked": run}]}))
    rows = [f"{size},{status},,,,\n" for size, status in zip(SIZES[stage], statuses, strict=False)]
    header = "input_size,status,reason,fallback_layers,throttle_reasons,wall_s\n"
    (folder / "alexnet_gemm_overall.csv").write_text(header + "".join(rows))
    return folder


def needed(results: Path, requests: Requests, *stages: str, first: str = "2_quick") -> tuple[tuple[str, ...], bool]:
    """Return the stages that alexnet still needs, and whether sizes that failed are measured again."""
    plan = Planner(requests, stages or ("2_quick",), first, results, lambda command: "").plan([WHO])
    return (plan.works[0].stages, plan.works[0].retry) if plan.works else ((), False)


@pytest.mark.parametrize("statuses", [("ok", "ok", "ok"), ("ok", "unsupported", "ok")])
def test_a_complete_run_with_the_same_settings_is_finished(tmp_path: Path, statuses: tuple[str, ...]):
    measured(tmp_path, "2_quick", statuses)
    assert needed(tmp_path, asked()) == ((), False)
    assert needed(tmp_path, asked(overwrite=True)) == (("2_quick",), False)


def test_a_run_with_a_size_missing_is_not_finished(tmp_path: Path):
    measured(tmp_path, "2_quick", ("ok", "ok"))
    assert needed(tmp_path, asked()) == (("2_quick",), False)


@pytest.mark.parametrize("status", ["failed", "oom", "wrong"])
def test_sizes_that_failed_are_not_finished_and_are_measured_again(tmp_path: Path, status: str):
    measured(tmp_path, "2_quick", ("ok", status, "ok"))
    assert needed(tmp_path, asked()) == (("2_quick",), True)
    assert needed(tmp_path, asked(retry=True)) == (("2_quick",), False)


def test_other_settings_are_refused_with_what_differs_and_overwrite_measures_anew(tmp_path: Path):
    measured(tmp_path, "2_quick")
    with pytest.raises(InputError, match=r"holds a run with other settings \(batch_size 1, now 4\): .*--overwrite"):
        needed(tmp_path, asked(batch_size=4))
    assert needed(tmp_path, asked(batch_size=4, overwrite=True)) == (("2_quick",), False)


def test_a_model_whose_code_is_another_is_not_finished(tmp_path: Path):
    measured(tmp_path, "2_quick", model_digest="one")
    with pytest.raises(InputError, match=r"other settings \(the code or the weights of the model are others\)"):
        needed(tmp_path, asked(model_digest="two"))
    for known in ("one", ""):
        assert needed(tmp_path, asked(model_digest=known)) == ((), False)


def test_a_setting_that_an_older_version_did_not_record_is_no_difference(tmp_path: Path):
    measured(tmp_path, "2_quick")
    assert needed(tmp_path, asked(placements=5)) == ((), False)


def test_a_chain_repeats_an_earlier_stage_only_where_it_is_missing(tmp_path: Path):
    assert needed(tmp_path, asked(), *STAGES)[0] == STAGES
    measured(tmp_path, "1_sanity")
    assert needed(tmp_path, asked(), *STAGES)[0] == ("2_quick", "3_full")
    assert needed(tmp_path, asked(overwrite=True), *STAGES)[0] == ("2_quick", "3_full")
    assert needed(tmp_path, asked(overwrite=True), *STAGES, first="1_sanity")[0] == STAGES


def queued(results: Path, requests: Requests, queue: str | None) -> dict[Combination, str]:
    return Planner(requests, ["2_quick"], "2_quick", results, lambda command: queue).plan([WHO]).queued


def noted(results: Path, job: str, *flags: str) -> None:
    folder = results / "2_quick" / WHO.folder_name
    folder.mkdir(parents=True, exist_ok=True)
    history.note_event(folder, "2026-01-01T00:00:00Z", job, "submitted", WHO, flags)


def test_a_combination_in_the_queue_is_not_queued_again(tmp_path: Path):
    noted(tmp_path, "11_0")
    noted(tmp_path, "12")
    assert queued(tmp_path, asked(), "11_0|PENDING|Priority|1:00\n") == {WHO: "11_0"}
    assert queued(tmp_path, asked(), "12|RUNNING|None|1:00\n") == {WHO: "12"}
    assert queued(tmp_path, asked(), "12|COMPLETING|None|1:00\n13|RUNNING|None|1:00\n") == {}
    assert queued(tmp_path, asked(), None) == {}


def test_a_job_that_writes_elsewhere_is_another(tmp_path: Path):
    noted(tmp_path, "12", "--output-dir", "x", "--seed", "3")
    line = "12|PENDING|None|1:00\n"
    assert queued(tmp_path, asked(), line) == {}
    assert queued(tmp_path, asked(output_dir="x"), line) == {WHO: "12"}
    assert queued(tmp_path, asked(output_dir="y"), line) == {}


def test_requests_are_those_of_the_command_with_the_same_flags():
    found = submission.requests([WHO], ["2_quick"], ["--batch-size", "4", "--math", "fp32", "--retry"])
    run = found.runs[WHO, "2_quick"]
    assert (run["batch_size"], run["math"], len(run["input_sizes"])) == (4, "fp32", 10)
    assert (found.overwrite, found.retry, found.output_dir) == (False, True, None)


def test_settings_of_a_line_count_more_than_flags():
    flags = ["--batch-size", "4", "--warmup", "3"]
    each = submission.find("alexnet", "gemm", "l40s", flags=flags, settings=["batch_size=8", "num_sizes=5"])
    found = submission.requests([each], ["2_quick", "3_full"], flags)
    quick, full = found.runs[each, "2_quick"], found.runs[each, "3_full"]
    assert (quick["batch_size"], quick["warmup_iters"]) == (8, 3)
    assert (len(quick["input_sizes"]), len(full["input_sizes"])) == (10, 5)


@pytest.mark.parametrize("setting", ["overwrite=true", "model=vgg16", "colour=red", "batch_size=many"])
def test_a_setting_that_no_line_can_have_is_refused(setting: str):
    each = submission.find("alexnet", "gemm", "l40s", settings=[setting])
    with pytest.raises(InputError, match=setting.partition("=")[0].replace("_", "-")):
        submission.requests([each], ["2_quick"], [])


@pytest.mark.long
def test_images_that_are_not_square_are_for_the_last_stage():
    each = submission.find("alexnet", "gemm", "l40s", flags=["--input-shape", "480x640"])
    assert each.folder_name == "alexnet_gemm_l40s_480x640"
    assert submission.requests([each], ["3_full"], ["--input-shape", "480x640"]).runs[each, "3_full"][
        "input_sizes"
    ] == [640]
    with pytest.raises(InputError, match="--input-shape is 3_full's: it is one size"):
        submission.requests([each], ["2_quick"], ["--input-shape", "480x640"])


@pytest.mark.long
@pytest.mark.parametrize(("flags", "settings"), [(["--input-size", "320"], []), ([], ["input_size=320"])])
def test_input_sizes_are_for_the_last_stage(flags: list[str], settings: list[str]):
    each = submission.find("alexnet", "gemm", "l40s", flags=flags, settings=settings)
    assert each.folder_name == "alexnet_gemm_l40s"
    assert submission.requests([each], ["3_full"], flags).runs[each, "3_full"]["input_sizes"] == [320]
    with pytest.raises(InputError, match="--input-size is 3_full's: the stages before it have their own"):
        submission.requests([each], ["2_quick"], flags)


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ([], 100),
        (["--num-sizes", "7", "--seed", "1"], 7),
        (["--input-size", "224"], 1),
        (["--input-size=224,256"], 2),
        (["--input-shape", "480x640"], 1),
        (["--input-shape", "224x224"], 1),
    ],
)
def test_sizes_of_a_stage_are_counted_by_its_flags(flags: list[str], count: int):
    assert matrix.requested_sizes("3_full", flags) == count


def test_a_combination_of_another_batch_size_has_another_folder(tmp_path: Path):
    measured(tmp_path, "2_quick")
    each = dataclasses.replace(WHO, batch_size=4)
    requests = Requests({(each, "2_quick"): SETTINGS | {"input_sizes": [224], "batch_size": 4}}, False, False, None)
    plan = Planner(requests, ["2_quick"], "2_quick", tmp_path, lambda command: "").plan([each])
    assert [work.stages for work in plan.works] == [("2_quick",)]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--batch-sizes", "1,8"], "a stage makes no use of --batch-sizes"),
        (["--num-sizes", "5"], "--num-sizes is 3_full's"),
        (["--model", "vgg16"], "a stage makes no use of --model"),
        (["--provider", "triton"], "gemm is not one of triton's"),
        (["--device", "cpu"], "--device cpu does not go with GPU l40s"),
        (["--batch-size", "0"], "--batch-size 0: it must be at least 1"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_flags_that_no_run_takes_are_refused(flags: list[str], why: str):
    with pytest.raises(InputError, match=why):
        submission.requests([WHO], ["2_quick"], flags)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["implicit", "gemm", "l40s"], "implicit_gemm l40s"),
        (["implicit", "precomp", "gemm", "l40s"], "implicit_precomp_gemm l40s"),
        (["Winograd", "nonfused"], "winograd_nonfused GPU"),
    ],
)
def test_a_missing_quote_is_recognised(words: list[str], answer: str):
    with pytest.raises(InputError, match=rf"needs quotes, or underscores: \./2_quick_sweep.sh vgg16 {answer}$"):
        submission.check_quotes("vgg16", words, "2_quick_sweep.sh")


def test_one_word_needs_no_quotes():
    submission.check_quotes("vgg16", ["gemm", "l40s", "x"], "2_quick_sweep.sh")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("timm:a\u202e", "has characters that no history can have"),
        ("timm:" + "a" * 300, "too long for a folder's name"),
    ],
)
def test_a_model_whose_folder_nobody_could_show_is_refused(model: str, why: str):
    with pytest.raises(InputError, match=why):
        submission.find(model, "gemm", "l40s")
