#!/usr/bin/env python3
"""Time of the status table: invented results of many combinations in three stages, read and printed.

python benchmarks/status_cost.py [COMBINATIONS]

The first look reads every file; later ones read what has changed. No GPU, no SLURM: `squeue` is answered from memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cluster import history, status
from convscope.cluster.standing import survey
from convscope.profiling.rows import SCHEMA_VERSION, OverallRow
from convscope.storage.paths import SIZES_BY_STAGE, STAGES, Combination
from convscope.storage.table import columns


def write(results: Path, who: Combination, stage: str) -> None:
    """Write the files of a finished run: run.json, a table with all sizes, the history of its job."""
    folder = results / stage / who.folder_name
    folder.mkdir(parents=True)
    sizes = list(range(224, 224 + SIZES_BY_STAGE[stage]))
    run = {**dataclasses.asdict(who), "input_sizes": sizes}
    (folder / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "run": run}))
    header = columns(OverallRow)
    filled = {"status": "ok", "fallback_layers": "0", "wall_s": "3.1", "throttle_reasons": ""}
    lines = [",".join(header)]
    lines += [",".join(filled.get(name, str(size)) for name in header) for size in sizes]
    name = f"{who.model}_{who.algorithm.replace(' ', '_')}_overall.csv"
    (folder / name).write_text("\n".join(lines) + "\n")
    for event in ("submitted", "started", "ended 0"):
        history.note_event(folder, "2026-01-01T00:00:00Z", "7_1", event, who, [])
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))  # what was written a moment ago is not remembered


def main() -> int:
    """Print the time of three surveys of a thousand combinations."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for at in range(count):
            for stage in STAGES:
                write(Path(folder), Combination(f"model{at}", "implicit precomp gemm", "h200"), stage)
        for _ in range(3):
            start_s, cpu_s = time.perf_counter(), time.process_time()
            found = survey(Path(folder), run_command=lambda command: "")
            lines = status.table(found).count("\n")
            print(
                f"{count} combinations, {len(found.standings)} folders: {time.perf_counter() - start_s:.2f} s "
                f"(CPU {time.process_time() - cpu_s:.2f} s), {lines} lines"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
