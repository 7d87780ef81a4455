"""`check_status.sh` as a program: called from anywhere, under odd settings, read by a program that stops reading."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.folders import note

MAIN = """
import sys
from pathlib import Path
from convscope.cli.parser import as_program
from convscope.cluster import status
sys.exit(as_program(lambda: status.main(sys.argv[2:], Path(sys.argv[1]))))
"""


def script(tmp_path: Path, command: str, cwd: Path | None = None, **more: str) -> str:
    """Run a command line that ends in the status as JSON; return the standard error, which should be empty."""
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "CONVSCOPE_CONFIG": str(config)} | more
    done = subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert isinstance(json.loads(done.stdout), list)
    return done.stderr


def test_it_may_be_called_through_a_symbolic_link(tmp_path: Path):
    (tmp_path / "check").symlink_to(ROOT / "check_status.sh")
    (tmp_path / "again").symlink_to("check")
    script(tmp_path, "./again --json", cwd=tmp_path)


def test_an_exported_cdpath_leads_nowhere_else(tmp_path: Path):
    script(tmp_path, f"export CDPATH=/; {str(ROOT)[1:]}/check_status.sh --json", cwd=Path("/"))


@pytest.mark.parametrize("line", ["[[ -d /nowhere ]]", "echo $unset >/dev/null", "false\ntrue", "cd /"])
def test_a_site_file_may_end_with_what_is_false_and_read_what_is_unset(tmp_path: Path, line: str):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "site.sh").write_text(f"{line}\n")
    script(tmp_path, f"{ROOT}/check_status.sh --json")


def status(results: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, str(results), *arguments],
        cwd=ROOT, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_reader_that_stops_reading_is_no_error_and_the_exit_code_stays(tmp_path: Path):
    note(tmp_path, "ended 1")
    with status(tmp_path) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert (run.stderr.read(), run.wait()) == ("", 1)


def test_ctrl_c_ends_a_watch_without_a_traceback(tmp_path: Path):
    note(tmp_path, "started", job="local-1")
    with status(tmp_path, "--watch") as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline().startswith("combination")
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        assert (run.stderr.read(), run.wait()) == ("", 3)


def test_a_watch_on_a_terminal_is_a_live_table_and_leaves_the_last_one_behind(tmp_path: Path):
    note(tmp_path, "started", job="local-1")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, "-c", MAIN, str(tmp_path), "--watch"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.PIPE) as run:
        os.close(theirs)
        said = ""
        while "Ctrl-C ends" not in said:
            said += os.read(ours, 65536).decode()
        run.send_signal(signal.SIGINT)
        try:
            while block := os.read(ours, 65536):
                said += block.decode()
        except OSError:  # it has ended
            pass
        assert run.stderr is not None
        assert (run.stderr.read(), run.wait()) == (b"", 3)
    os.close(ours)
    live, _, left = said.partition("\x1b[?1049l")
    assert "every 10 s" in live
    assert "running" in live
    assert left.partition("combination")[2].count("running") == 2  # its line, and the number of them
    assert "every 10 s" not in left
