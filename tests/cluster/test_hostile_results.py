"""Results folders that a stranger wrote into: everything is shown, nothing is followed, waited for or obeyed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.folders import NOW_S, WHO, measured, note, only, slurm

from convscope.cluster import history, plain_files, progress, status
from convscope.cluster.history import HISTORY
from convscope.cluster.standing import survey

ESCAPE = "\x1b[2J\x07\x9b"


def shown(results: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status.main(arguments, results, slurm(""))
    said = capsys.readouterr()
    return said.out + said.err


def is_printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_escape_sequences_are_shown_and_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    measured(note(tmp_path, "ended 1"), (224, "ok", ""), (256, f"failed{ESCAPE}", "x"), (288, "failed", f"w{ESCAPE}"))
    broken = tmp_path / "3_full" / f"odd{ESCAPE}\nagain:\n  touch owned"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    (note(tmp_path, "ended 1", stage="1_sanity") / "x.err").write_text(f"{ESCAPE}it broke\n")
    text = shown(tmp_path, capsys)
    assert is_printable(text)
    assert "failed: 1_sanity alexnet, implicit gemm, h200: \\x1b[2J\\x07\\x9bit broke" in text
    assert "odd\\x1b[2J\\x07\\x9b\\nagain:\\n  touch owned, ?, ?" in text
    assert "last: w\\x1b[2J" in text


def test_names_that_are_no_text_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = os.fsencode(tmp_path) + b"/2_quick/a\xff"
    os.makedirs(folder)
    Path(os.fsdecode(folder), "run.json").write_text("{")
    assert "failed: 2_quick a\\udcff, ?, ?: run.json cannot be read" in shown(tmp_path, capsys)
    assert json.loads(shown(tmp_path, capsys, "--json"))[0]["folder"] == "a\udcff"


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def as_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def as_directory(path: Path) -> None:
    path.mkdir()


def as_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


FOREIGN = (as_pipe, as_dangling_link, as_link_to_itself, as_directory, as_socket)


@pytest.mark.parametrize("make", FOREIGN)
@pytest.mark.parametrize("name", ["run.json", HISTORY, "alexnet_implicit_gemm_overall.csv"])
def test_a_file_that_is_none_is_skipped_with_a_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], name: str
):
    folder = note(tmp_path, "ended 1")
    measured(folder, (224, "ok", ""))
    measured(tmp_path / "3_full" / "other", (224, "ok", ""))
    (folder / name).unlink()
    make(folder / name)
    text = shown(tmp_path, capsys)
    assert f"skipped: 2_quick/{WHO.folder_name}: {name} is a" in text
    assert "in other" in text


@pytest.mark.parametrize("make", FOREIGN)
def test_a_log_that_is_no_file_has_no_last_line(tmp_path: Path, make: Callable[[Path], None]):
    folder = note(tmp_path, "ended 1")
    make(folder / "x.err")
    make(folder / "x.csv")
    assert only(tmp_path, slurm("")).detail == "job 7 ended with exit code 1 and wrote no error message"


@pytest.mark.parametrize("make", [as_pipe, as_dangling_link, as_link_to_itself, as_socket])
def test_what_lies_among_the_folders_and_is_none_is_skipped_with_a_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
):
    note(tmp_path, "ended 1")
    (tmp_path / "2_quick" / "array_12.out").write_text("a log is nothing to remark on")
    make(tmp_path / "2_quick" / "odd")
    text = shown(tmp_path, capsys)
    assert "skipped: 2_quick/odd: " in text
    assert text.count("skipped") == 1


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Act as a user who may read nothing of root's, where the tests run as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("name", "mode"), [("", 0o000), ("run.json", 0o000), (HISTORY, 0o000), ("", 0o444)])
def test_what_may_not_be_read_is_skipped_with_a_remark(name: str, mode: int):
    with tempfile.TemporaryDirectory(dir="/tmp") as results:
        Path(results).chmod(0o755)
        folder = note(Path(results), "ended 1")
        measured(folder, (224, "ok", ""))
        (folder / name).chmod(mode)
        with as_nobody():
            found = survey(Path(results), run_command=slurm(""))
        folder.chmod(0o755)
        assert [line.partition(":")[0] for line in found.skipped] == [f"2_quick/{WHO.folder_name}"]
        assert "Permission denied" in found.skipped[0]


@pytest.mark.parametrize("model", ["../../secret.py:x", "hf:../../secret", "/../secret.csv", "vgg16,a=../../secret"])
def test_a_models_path_never_becomes_a_path_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str):
    folder = tmp_path / "2_quick" / "x"
    measured(folder, (224, "ok", ""), model=model)
    for path in (tmp_path / "secret", tmp_path / "2_quick" / "secret"):
        Path(f"{path}_implicit_gemm_overall.csv").write_text("input_size,status,reason\n224,failed,SECRET\n")
    text = shown(tmp_path, capsys)
    assert f"{model}, implicit gemm, h200, in x" in text
    assert "SECRET" not in text


@pytest.mark.parametrize(
    "model",
    [
        "-net.py:make",
        "net.py:make\x1b[2J",
        "net.py:make,a=\u202e",
        "a/b",
        "a,b",
        "a=b",
        "/etc/passwd",
        "x" * 5000 + ".pt2",
        "resnet50,a=1\n",
        "",
        " net.pt2",
    ],
)
def test_what_no_model_is_called_is_no_event(model: str):
    assert not history.is_combination(model, "gemm", "h200")


def test_a_model_with_a_path_in_its_name_leads_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    measured(tmp_path / "2_quick" / "x", (224, "ok", ""))
    (tmp_path / "secret_gemm_overall.csv").write_text("input_size,status,reason\n224,failed,SECRET\n")
    run = {"model": "../../secret", "algorithm": "gemm", "gpu": "cpu", "input_sizes": [224]}
    (tmp_path / "2_quick" / "x" / "run.json").write_text(json.dumps({"schema_version": 3, "run": run}))
    folder = note(tmp_path, stage="3_full")
    (folder / HISTORY).write_text("t\t7\tended 1\t../../secret\tgemm\tcpu\t\n")
    text = shown(tmp_path, capsys)
    assert "SECRET" not in text
    assert "run.json has odd names of model, algorithm or GPU" in text
    assert f"skipped: 3_full/{WHO.folder_name}: {HISTORY} has no line that can be read" in text


def test_links_are_followed_within_the_results_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results, outside = tmp_path / "results", tmp_path / "results of others"
    measured(results / "2_quick" / WHO.folder_name, (224, "ok", ""))
    (results / "2_quick" / "alias").symlink_to(WHO.folder_name)
    measured(outside / "x", (224, "ok", ""))
    (results / "2_quick" / "x").symlink_to(outside / "x")
    (results / "3_full").symlink_to(outside)
    (results / "1_sanity").symlink_to(".")
    text = shown(results, capsys)
    assert "in alias" in text
    assert "skipped: 2_quick/x: a link that leads out of the results, not followed" in text
    assert "skipped: 3_full: a link that leads out of the results, not followed" in text
    (tmp_path / "link").symlink_to(results)
    assert len(survey(tmp_path / "link", run_command=slurm()).standings) == 2


@pytest.mark.parametrize("line", ["9" * 5000 + ",ok,0", "٢٢٤,ok,0", "224,ok,1e999", "224,ok," + "9" * 400, "224,ok,-"])
def test_numbers_of_any_length_are_survived(tmp_path: Path, line: str):
    folder = tmp_path / "2_quick" / "x"
    measured(folder)
    (folder / f"{WHO.model}_implicit_gemm_overall.csv").write_text(f"input_size,status,fallback_layers\n{line}\n")
    assert only(tmp_path).state in ("stale", "failed")


@pytest.mark.parametrize(
    "run_json", ["[]", "[" * 100_000, "\0", '{"schema_version": 3, "run": {}, "starts": []}', '"x"', "NaN", "1" * 5000]
)
def test_a_run_json_of_any_content_is_survived(tmp_path: Path, run_json: str):
    (note(tmp_path, "ended 1") / "run.json").write_text(run_json)
    assert only(tmp_path, slurm("")).detail == "run.json cannot be read"


@pytest.mark.parametrize("flags", ["--=x", "--b", "-- --dtype", "--input-shape"])
def test_flags_that_no_command_line_takes_are_survived(tmp_path: Path, flags: str):
    (note(tmp_path) / HISTORY).write_text(f"t\t7\tended 1\talexnet\timplicit gemm\th200\t{flags}\n")
    assert str(only(tmp_path, slurm("")).progress.combination) == "alexnet, implicit gemm, h200"


def test_a_file_far_too_large_is_not_read(tmp_path: Path):
    with (note(tmp_path, "ended 1") / "run.json").open("wb") as file:
        file.truncate(plain_files.MOST_BYTES + 1)
    assert "run.json has 67108865 bytes, more than any run writes" in survey(tmp_path, run_command=slurm()).skipped[0]


def test_an_event_is_not_written_through_a_link_or_into_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").write_text("")
    (tmp_path / HISTORY).symlink_to("mine")
    with pytest.raises(OSError, match="symbolic link"):
        plain_files.append_line(tmp_path / HISTORY, "x")
    assert (tmp_path / "mine").read_text() == ""
    (tmp_path / HISTORY).unlink()
    os.mkfifo(tmp_path / HISTORY)
    with pytest.raises(OSError, match="No such device"):
        plain_files.append_line(tmp_path / HISTORY, "x")


def test_one_folder_of_a_stranger_has_a_fault_and_no_error(tmp_path: Path):
    os.mkfifo(note(tmp_path) / "run.json")
    found = progress.read(tmp_path / "2_quick" / WHO.folder_name, "2_quick")
    assert found is not None
    assert found.broken == "run.json is a named pipe"


def test_a_folder_that_goes_away_while_it_is_read_is_left_out(tmp_path: Path):
    measured(tmp_path / "2_quick" / "x", (224, "ok", ""))
    assert progress.read(tmp_path / "2_quick" / "gone", "2_quick") is None
    assert survey(tmp_path / "gone", run_command=slurm(), now_s=NOW_S) == ([], [])


CODE = (
    "os:system,command='touch /tmp/x'",
    "/tmp/evil.py:f",
    "/tmp/evil.pt2",
    "hf:/tmp/evil",
    "hf:resnet,trust_remote_code=True",
    "timm:resnet18,checkpoint_path=/tmp/evil",
)
DATA = ("vgg16", "torchvision:resnet18,num_classes=4", "timm:convnext_tiny", "hf:microsoft/resnet-50", "/a/layers.csv")


def as_strangers(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: results.stat().st_uid + 1)


def as_writable_by_all(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in results.glob("*/*/*"):
        path.chmod(0o666)


def as_writable_by_another_group(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgid", lambda: results.stat().st_gid + 1)
    for path in results.glob("*/*/*"):
        path.chmod(0o664)


@pytest.mark.parametrize("make", [as_strangers, as_writable_by_all, as_writable_by_another_group])
@pytest.mark.parametrize("model", CODE)
def test_code_that_a_stranger_may_have_named_is_not_offered(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, pytest.MonkeyPatch], None],
    model: str,
):
    who = dataclasses.replace(WHO, model=model)
    note(tmp_path, "ended 1", who=who)
    assert "\nagain:\n  ./2_quick_sweep.sh " in shown(tmp_path, capsys)
    make(tmp_path, monkeypatch)
    text = shown(tmp_path, capsys)
    assert "again:" not in text
    assert f"not offered: 2_quick {who}: others may have written what it would run: submit it by hand" in text


@pytest.mark.parametrize("model", DATA)
def test_a_model_that_is_no_code_is_offered_whoever_wrote_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
):
    note(tmp_path, "ended 1", who=dataclasses.replace(WHO, model=model))
    as_strangers(tmp_path, monkeypatch)
    text = shown(tmp_path, capsys)
    assert f"\nagain:\n  ./2_quick_sweep.sh {model} " in text
    assert "not offered" not in text


def test_a_strangers_own_command_is_not_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "2_quick" / WHO.folder_name
    measured(folder, (224, "ok", ""))
    document = json.loads((folder / "run.json").read_text())
    words = ["run_profile.py", "--study", "/tmp/evil.toml"]
    (folder / "run.json").write_text(json.dumps(document | {"command": words}))
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    assert "python run_profile.py --study /tmp/evil.toml" in shown(tmp_path, capsys)
    as_strangers(tmp_path, monkeypatch)
    text = shown(tmp_path, capsys)
    assert "evil" not in text
    assert f"not offered: 2_quick {WHO}: " in text
