"""State of every combination: from the runs' files, with SLURM's answers added where there are any."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fakes import RUN

from convscope.cluster import progress, status
from convscope.profiling.rows import SCHEMA_VERSION, OverallRow
from convscope.slurm import RunCommand
from convscope.storage.paths import Combination
from convscope.storage.table import columns

NOW_S = 2_000_000_000.0
WHO = Combination("alexnet", "implicit gemm", "h200")
SIZES = (224, 256, 288)


def note(results: Path, *events: str, job: str = "7", stage: str = "2_quick", who: Combination = WHO) -> Path:
    folder = results / stage / who.folder_name
    folder.mkdir(parents=True, exist_ok=True)
    for event in events:
        progress.note_event(folder, "2026-01-01T00:00:00Z", job, event, who, ["--batch-size", "2"])
    return folder


def measured(folder: Path, *rows: tuple[int, str, str], who: Combination = WHO) -> None:
    run = dataclasses.asdict(RUN) | dataclasses.asdict(who) | {"input_sizes": SIZES}
    (folder / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "run": run}))
    header = columns(OverallRow)
    known = ({"input_size": str(size), "status": how, "reason": why} for size, how, why in rows)
    lines = [",".join(header), *(",".join(row.get(name, "") for name in header) for row in known)]
    name = f"{who.model}_{who.algorithm.replace(' ', '_')}_overall.csv"
    (folder / name).write_text("\n".join(lines) + "\n")


def slurm(queue: str | None = None, accounts: str | None = None) -> Callable[[Sequence[str]], str | None]:
    return lambda command: {"squeue": queue, "sacct": accounts}[command[0]]


def only(results: Path, ask: RunCommand, now_s: float = NOW_S) -> status.Standing:
    (found,) = status.survey(results, run_command=ask, now_s=now_s)
    return found


def test_a_job_in_the_queue_is_queued_with_slurms_reason(tmp_path: Path):
    note(tmp_path, "submitted")
    assert only(tmp_path, slurm("7|PENDING|Resources|2:00:00\n")).cell == "queued 0/10, Resources"


def test_a_job_that_runs_has_the_time_it_has_left(tmp_path: Path):
    measured(note(tmp_path, "submitted", "started"), (224, "ok", ""))
    assert only(tmp_path, slurm("7|RUNNING|None|1:59:12\n")).cell == "running 1/3, 1:59:12 left"


def test_a_task_of_an_array_is_found_by_its_own_number(tmp_path: Path):
    note(tmp_path, "submitted", job="9_4")
    assert only(tmp_path, slurm("9_3|RUNNING|None|1:00\n9_4|PENDING|JobArrayTaskLimit|2:00:00\n")).cell == (
        "queued 0/10, JobArrayTaskLimit"
    )


def test_all_sizes_are_done_without_any_slurm(tmp_path: Path):
    measured(note(tmp_path, "submitted", "started", "ended 0"), *((size, "ok", "") for size in SIZES))
    assert only(tmp_path, slurm()).cell == "done 3/3"


def test_sizes_that_failed_are_a_failure_and_are_retried_when_submitted_again(tmp_path: Path):
    measured(note(tmp_path, "ended 1"), (224, "ok", ""), (256, "ok", ""), (288, "oom", "needs 90 GB"))
    found = only(tmp_path, slurm(""))
    assert (found.state, found.detail) == ("failed", "of 3 sizes 1 oom; last: needs 90 GB")
    assert status.again([found]) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --batch-size 2 --retry"]


def test_a_size_that_is_unsupported_is_overwritten_when_submitted_again(tmp_path: Path):
    rows = (224, "ok", ""), (256, "failed", "x"), (288, "unsupported", "too small")
    measured(note(tmp_path, "ended 1"), *rows)
    (command,) = status.again([only(tmp_path, slurm(""))])
    assert command.endswith(" --overwrite")


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
        progress.note_event(folder, "2026-01-01T00:00:00Z", "7", event, WHO, ["--output-dir", "x"])
    assert only(tmp_path, slurm("")).cell == "done 0/10, written elsewhere, by --output-dir"


def test_what_failed_is_submitted_again_as_a_matrix_and_each_combination_from_its_earliest_stage(tmp_path: Path):
    other = Combination("vgg16", "fft", "h200")
    for stage in ("2_quick", "3_full"):
        for who in (WHO, other):
            note(tmp_path, "submitted", stage=stage, who=who)
    found = status.survey(tmp_path, run_command=slurm(""), now_s=NOW_S)
    assert [each.state for each in found] == ["failed"] * 4
    names = "alexnet 'implicit gemm' h200 vgg16 fft h200"
    assert status.again(found) == [f"./2_quick_sweep.sh --matrix <(printf '%s\\t%s\\t%s\\n' {names}) --batch-size 2"]


def test_the_table_has_a_line_a_combination_and_a_column_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "submitted", stage="1_sanity")
    note(tmp_path, "submitted")
    assert status.main([], tmp_path, slurm("7|PENDING|Priority|1:00\n")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["combination", "1_sanity", "2_quick", "fallback", "throttled"]
    assert lines[1].startswith("alexnet, implicit gemm, h200  queued 0/1, Priority  queued 0/10, Priority")


def test_filters_and_json_are_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    note(tmp_path, "submitted")
    note(tmp_path, "submitted", who=Combination("vgg16", "fft", "h200"))
    assert status.main(["--json", "--algorithm", "implicit_gemm"], tmp_path, slurm("7|PENDING|Priority|1:00\n")) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["model"], found["state"], found["detail"], found["job"]) == ("alexnet", "queued", "Priority", "7")


def test_watching_ends_when_nothing_is_queued_or_running_any_more(tmp_path: Path):
    note(tmp_path, "submitted")
    answers = ["7|PENDING|Priority|1:00\n", "7|PENDING|Priority|1:00\n", ""]
    slept: list[float] = []
    assert status.main(["--watch", "3"], tmp_path, lambda command: answers.pop(0) if answers else "", slept.append) == 0
    assert slept == [3.0, 3.0]


def test_a_run_json_of_another_version_is_a_failure_that_says_so(tmp_path: Path):
    folder = note(tmp_path, "ended 0")
    (folder / "run.json").write_text('{"schema_version": 999}')
    assert "schema version 999" in only(tmp_path, slurm("")).detail


def test_without_any_results_the_first_step_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert status.main([], tmp_path, slurm()) == 0
    assert "./1_sanity_check.sh MODEL ALGORITHM GPU begins" in capsys.readouterr().out
