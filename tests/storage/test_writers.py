"""Studies write what they measured through the store, which is atomic and locked, and in no other way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fakes import ROOT

STUDIES = ("profiling", "verification", "training", "inference", "conv3d", "convolution", "kernels", "timing", "power")
WRITES = {"write_text", "write_bytes", "to_csv", "to_json", "touch", "copyfile", "dump"}
MODES = {"w", "wb", "a", "ab", "x", "xb", "w+", "a+"}
# Into a temporary folder: errors of a process, an engine's files.
ELSEWHERE = {f"convscope/inference/engines/{name}.py" for name in ("exported", "keeping", "runners")}


def writers(path: Path) -> Iterator[str]:
    """Yield file and line of each call that writes a file without the store."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = {argument.value for argument in node.args if isinstance(argument, ast.Constant)} & MODES
        to_disk = name == "savefig" and not (node.args and ast.unparse(node.args[0]) == "picture")
        if name in WRITES or (name == "open" and modes) or to_disk:
            yield f"{path.name}, line {node.lineno}: {name}"


def test_no_study_writes_files_but_through_the_store():
    files = [*ROOT.glob("run_*.py"), ROOT / "profiler.py", ROOT / "convscope" / "cli" / "display.py"]
    files += [path for study in STUDIES for path in sorted((ROOT / "convscope" / study).rglob("*.py"))]
    checked = [path for path in files if str(path.relative_to(ROOT)) not in ELSEWHERE]
    assert [line for path in checked for line in writers(path)] == []


def test_a_writer_is_found(tmp_path: Path):
    (tmp_path / "a.py").write_text("open(x)\nopen(x, 'w')\npath.open('ab')\nrows.to_csv(path)\nfigure.savefig(path)\n")
    assert list(writers(tmp_path / "a.py")) == [
        *("a.py, line 2: open", "a.py, line 3: open", "a.py, line 4: to_csv", "a.py, line 5: savefig"),
    ]
