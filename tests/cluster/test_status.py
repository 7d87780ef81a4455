"""State of every combination: from the runs' files, with SLURM's answers added where there are any."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fakes.folders import SIZES, WHO, measured, note, only, slurm

from convscope.cluster import advice, history, status
from convscope.cluster.standing import survey
from convscope.storage.paths import Combination


def test_a_job_in_the_queue_is_queued_with_slurms_reason(tmp_path: Path):
    note(tmp_path, "submitted")
    assert only(tmp_path, slurm("7|PENDING|Resources|2:00:00|7\n")).cell == "queued 0/10, Resources"


def test_a_job_that_runs_has_the_time_it_has_left(tmp_path: Path):
    measured(note(tmp_path, "submitted", "started"), (224, "ok", ""))
    assert only(tmp_path, slurm("7|RUNNING|None|1:59:12|7\n")).cell == "running 1/3, 1:59:12 left"


def test_a_task_of_an_array_is_found_by_its_own_number(tmp_path: Path):
    note(tmp_path, "submitted", job="9_4")
    assert only(tmp_path, slurm("9_3|RUNNING|None|1:00|93\n9_4|PENDING|JobArrayTaskLimit|2:00:00|94\n")).cell == (
        "queued 0/10, JobArrayTaskLimit"
    )


def test_all_sizes_are_done_without_any_slurm(tmp_path: Path):
    measured(note(tmp_path, "submitted", "started", "ended 0"), *((size, "ok", "") for size in SIZES))
    assert only(tmp_path, slurm()).cell == "done 3/3"


def test_sizes_that_failed_are_a_failure_and_are_retried_when_submitted_again(tmp_path: Path):
    measured(note(tmp_path, "ended 1"), (224, "ok", ""), (256, "ok", ""), (288, "oom", "needs 90 GB"))
    found = only(tmp_path, slurm(""))
    assert (found.state, found.detail) == ("failed", "of 3 sizes 1 oom; last: needs 90 GB")
    assert advice.again([found]) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --seed 2 --retry"]


def test_a_job_that_failed_shows_its_last_line_and_not_sruns(tmp_path: Path):
    folder = note(tmp_path, "submitted", "started", "ended 2")
    (folder / "log.err").write_text(
        "noise\nrun_profile.py: no such card\nsrun: error: task 0: Exited with exit code 2\n"
    )
    found = only(tmp_path, slurm(""))
    assert (found.state, found.detail) == ("failed", "run_profile.py: no such card")


# What `sacct --noheader --parsable2 --allocations --format=JobID,State` prints, by its manual page.
ACCOUNTS = "7|TIMEOUT\n8|CANCELLED by 1000\n9_0|COMPLETED\n9_1|OUT_OF_MEMORY\n"


@pytest.mark.parametrize(("job", "why"), [("7", "timeout"), ("8", "cancelled by 1000"), ("9_1", "out_of_memory")])
def test_accounts_tell_how_a_job_ended_that_could_not_say_so_itself(tmp_path: Path, job: str, why: str):
    measured(note(tmp_path, "submitted", "started", job=job), (224, "ok", ""))
    found = only(tmp_path, slurm("", ACCOUNTS))
    assert (found.state, found.detail) == ("failed", f"job {job}: {why}")


def test_missing_from_the_queue_is_stale_only_after_a_while(tmp_path: Path):
    folder = note(tmp_path, "submitted", "started")
    measured(folder, (224, "ok", ""))
    written_s = max(path.stat().st_mtime for path in folder.iterdir())
    assert only(tmp_path, slurm(""), written_s + 60).state == "running"
    assert only(tmp_path, slurm(""), written_s + 180).state == "stale"
    assert only(tmp_path, slurm(None), written_s + 180).state == "running"


def test_results_that_went_elsewhere_are_done(tmp_path: Path):
    folder = tmp_path / "2_quick" / WHO.folder_name
    folder.mkdir(parents=True)
    for event in ("started", "ended 0"):
        history.note_event(folder, "2026-01-01T00:00:00Z", "7", event, WHO, ["--output-dir", "x"])
    assert only(tmp_path, slurm("")).cell == "done 0/10, written elsewhere, by --output-dir"


def test_what_failed_is_submitted_again_as_a_matrix_and_each_combination_from_its_earliest_stage(tmp_path: Path):
    other = Combination("vgg16", "fft", "h200")
    for stage in ("2_quick", "3_full"):
        for who in (WHO, other):
            note(tmp_path, "submitted", stage=stage, who=who)
    found = survey(tmp_path, run_command=slurm("")).standings
    assert [each.state for each in found] == ["failed"] * 4
    names = "alexnet 'implicit gemm' h200 vgg16 fft h200"
    assert advice.again(found) == [f"./2_quick_sweep.sh --matrix <(printf '%s\\t%s\\t%s\\n' {names}) --seed 2"]


def test_the_table_has_a_line_a_combination_and_a_column_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "submitted", stage="1_sanity")
    note(tmp_path, "submitted")
    assert status.main([], tmp_path, slurm("7|PENDING|Priority|1:00|7\n")) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["combination", "1_sanity", "2_quick", "fallback", "throttled"]
    assert lines[1].startswith("alexnet, implicit gemm, h200  queued 0/1, Priority  queued 0/10, Priority")


def test_filters_and_json_are_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "submitted")
    note(tmp_path, "submitted", who=Combination("vgg16", "fft", "h200"))
    assert status.main(["--json", "--algorithm", "implicit_gemm"], tmp_path, slurm("7|PENDING|Priority|1:00|7\n")) == 3
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["model"], found["state"], found["detail"], found["job"]) == ("alexnet", "queued", "Priority", "7")


def test_watching_ends_when_nothing_is_queued_or_running_any_more(tmp_path: Path):
    note(tmp_path, "submitted")
    answers = ["7|PENDING|Priority|1:00|7\n", "7|PENDING|Priority|1:00|7\n", ""]
    slept: list[float] = []
    assert status.main(["--watch", "3"], tmp_path, lambda command: answers.pop(0) if answers else "", slept.append) == 1
    assert slept == [3.0, 3.0]


def test_a_run_json_of_another_version_is_a_failure_that_says_so(tmp_path: Path):
    folder = note(tmp_path, "ended 0")
    (folder / "run.json").write_text('{"schema_version": 999}')
    assert "schema version 999" in only(tmp_path, slurm("")).detail


def test_without_any_results_the_first_step_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert status.main([], tmp_path, slurm()) == 0
    assert "./1_sanity_check.sh MODEL ALGORITHM GPU begins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "queue", "code"),
    [
        (("submitted", "started", "ended 1"), "", 1),
        (("submitted", "started", "ended 75"), "", 1),
        (("submitted",), "7|PENDING|Priority|1:00|7\n", 3),
        (("submitted", "started"), "7|RUNNING|None|1:00|7\n", 3),
        (("ended 0",), "", 0),
    ],
)
def test_the_exit_code_says_whether_something_failed_or_runs(
    tmp_path: Path, events: tuple[str, ...], queue: str, code: int
):
    folder = note(tmp_path, *events)
    if code == 0:
        measured(folder, *((size, "ok", "") for size in SIZES))
    assert status.main([], tmp_path, slurm(queue)) == code


def test_a_failure_goes_before_what_runs_in_the_exit_code(tmp_path: Path):
    note(tmp_path, "submitted")
    note(tmp_path, "ended 1", job="8", who=Combination("vgg16", "fft", "h200"))
    assert status.main([], tmp_path, slurm("7|PENDING|Priority|1:00|7\n")) == 1
    assert status.main(["--model", "alexnet"], tmp_path, slurm("7|PENDING|Priority|1:00|7\n")) == 3


def test_waiting_prints_once_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "submitted")
    answers = ["7|PENDING|Priority|1:00|7\n", "7|RUNNING|None|1:00|7\n"]
    slept: list[float] = []
    assert status.main(["--wait"], tmp_path, lambda command: answers.pop(0) if answers else "", slept.append) == 1
    assert (slept, capsys.readouterr().out.count("combination ")) == ([30.0, 30.0], 1)


def interrupt(seconds: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("option", ["--watch", "--wait"])
def test_an_interrupt_ends_it_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str):
    note(tmp_path, "submitted")
    assert status.main([option], tmp_path, slurm("7|PENDING|Priority|1:00|7\n"), interrupt) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["--watch", "--wait"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_odd_seconds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str):
    with pytest.raises(SystemExit) as ended:
        status.main([f"{option}={value}"], tmp_path, slurm())
    assert ended.value.code == 2
    assert "a number of seconds, from 1 to 86400" in capsys.readouterr().err


def test_what_is_watched_into_a_file_has_no_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "ended 1")
    status.main(["--watch"], tmp_path, slurm(""))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "filters",
    [("--model", "AlexNet"), ("--gpu", "H200"), ("--state", "FAILED"), ("--algorithm", "Implicit_GEMM")],
)
def test_filters_ignore_case(tmp_path: Path, capsys: pytest.CaptureFixture[str], filters: tuple[str, str]):
    note(tmp_path, "ended 1")
    status.main(filters, tmp_path, slurm(""))
    assert "alexnet, implicit gemm, h200" in capsys.readouterr().out


def test_a_filter_without_a_match_is_not_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "ended 1")
    assert status.main(["--model", "vgg16"], tmp_path, slurm("")) == 0
    assert capsys.readouterr().out == "nothing matches this filter (without it: 1)\n"
    status.main(["--model", "vgg16", "--json"], tmp_path, slurm(""))
    said = capsys.readouterr()
    assert (json.loads(said.out), "nothing matches this filter" in said.err) == ([], True)


def test_an_unknown_algorithm_in_a_filter_is_one_line_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        status.main(["--algorithm", "magic"], tmp_path, slurm(""))
    assert "unknown algorithm 'magic': choose one of direct, smm" in capsys.readouterr().err


def test_batch_sizes_and_folders_of_other_names_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ok = [(size, "ok", "") for size in SIZES]
    measured(tmp_path / "1_sanity" / WHO.folder_name, *ok, batch_size=1)
    measured(tmp_path / "2_quick" / f"{WHO.folder_name}_b8", *ok, batch_size=8)
    measured(tmp_path / "3_full" / WHO.folder_name, *ok, batch_size=8)  # as an older version named it
    measured(tmp_path / "2_quick" / "a_copy", *ok, batch_size=1)
    assert status.main([], tmp_path, slurm()) == 0
    lines = capsys.readouterr().out.splitlines()[1:5]
    assert [line.split("  ")[0] for line in lines] == [
        "alexnet, implicit gemm, h200",
        "alexnet, implicit gemm, h200, batch 8",
        "alexnet, implicit gemm, h200, batch 8, in alexnet_implicit_gemm_h200",
        "alexnet, implicit gemm, h200, in a_copy",
    ]
    assert [line.count("done 3/3") for line in lines] == [1, 1, 1, 1]


def test_the_batch_size_of_a_job_that_waits_is_that_of_its_flags(tmp_path: Path):
    note(tmp_path, "submitted", flags=("--seed", "1", "--batch-size=16"))
    assert only(tmp_path, slurm()).progress.combination == dataclasses.replace(WHO, batch_size=16)


# ---- forgetting


def test_bad_input_is_not_offered_again_and_can_be_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "started", "ended 2", stage="1_sanity")
    note(tmp_path, "started", "ended 1")
    assert status.main([], tmp_path, slurm("")) == 1
    said = capsys.readouterr().out
    assert "1_sanity_check" not in said
    assert "bad input is not offered again: correct the command; ./check_status.sh --forget takes it off" in said
    assert status.main(["--forget"], tmp_path, slurm("")) == 0
    assert "forgotten: 1_sanity alexnet, implicit gemm, h200: job 7" in capsys.readouterr().out
    (left,) = survey(tmp_path, run_command=slurm("")).standings
    assert (left.progress.stage, left.state) == ("2_quick", "failed")
    assert status.main(["--forget"], tmp_path, slurm("")) == 0
    assert "nothing to forget" in capsys.readouterr().out


def test_forgetting_deletes_nothing_and_obeys_filters(tmp_path: Path):
    folder = note(tmp_path, "submitted")
    before = (folder / history.HISTORY).read_text()
    status.main(["--forget", "--model", "vgg16"], tmp_path, slurm(""))
    assert (folder / history.HISTORY).read_text() == before
    status.main(["--forget"], tmp_path, slurm(""))
    assert (folder / history.HISTORY).read_text().startswith(before)
    assert survey(tmp_path, run_command=slurm("")) == ([], [])


def test_a_job_that_waits_or_measured_is_not_forgotten(tmp_path: Path):
    note(tmp_path, "submitted")
    measured(note(tmp_path, "started", "ended 1", stage="3_full"), (224, "ok", ""))
    status.main(["--forget"], tmp_path, slurm("7|PENDING|Priority|1:00|7\n"))
    assert len(survey(tmp_path, run_command=slurm()).standings) == 2
