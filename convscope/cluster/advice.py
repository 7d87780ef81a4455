"""Commands that submit again what failed: built from checked fields, quoted, and such that they destroy nothing.

A folder's files may be a stranger's, and the reader pastes the line into a shell: a line that runs code which a file
names is offered only where nobody but the reader can have written that file.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from convscope.cluster.history import HISTORY, Job
from convscope.cluster.progress import Progress
from convscope.cluster.standing import TROUBLED, Standing
from convscope.convolution import algorithms, names
from convscope.errors import InputError
from convscope.storage.paths import RETRIED, SCRIPTS, STAGES, Combination

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_OF_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", re.ASCII)
_OPTION = re.compile(r"--[a-z][a-z-]*(=.*)?", re.ASCII)


class Row(NamedTuple):
    """Line of the status table: a combination; `folder` where that is not the combination's own."""

    combination: Combination
    folder: str

    def __str__(self) -> str:
        return f"{self.combination}" + (f", in {self.folder}" if self.folder else "")


def row_of(folder: Progress) -> Row:
    """Return the line of the status table that a folder belongs to."""
    own = folder.path.name == folder.combination.folder_name or folder.combination.algorithm == "?"
    return Row(folder.combination, "" if own else folder.path.name)


def again(standings: Sequence[Standing]) -> list[str]:
    """Return the commands that submit again what failed or is stale: one for each stage and set of flags.

    Of one combination only the earliest stage is named: its failure stopped the others. Nothing is offered for bad
    input, damaged files, sizes that are unsupported, flags that cannot be read, and `unsafe` ones.
    """
    by_hand: list[str] = []
    groups: dict[tuple[str, str], list[Combination]] = {}
    for folder in _earliest(standings):
        if _may_be_a_strangers_code(folder):
            continue
        if folder.job is None:
            by_hand += _own_command(folder)
        elif not row_of(folder).folder and is_known(folder.combination):
            flags = kept_flags(folder.job)
            if flags is not None:
                words = ["--local"] * (not folder.job.of_slurm) + _with_retry(flags, folder)
                groups.setdefault((folder.stage, shlex.join(words)), []).append(folder.combination)
    return [_command(stage, flags, every) for (stage, flags), every in groups.items()] + by_hand


def unsafe(standings: Sequence[Standing]) -> list[Progress]:
    """Return the folders whose command `again` leaves out because it may run what somebody else wrote."""
    return [folder for folder in _earliest(standings) if _may_be_a_strangers_code(folder)]


def _earliest(standings: Sequence[Standing]) -> list[Progress]:
    earliest: dict[Row, Standing] = {}
    for each in sorted(standings, key=lambda each: STAGES.index(each.progress.stage)):
        if each.state in TROUBLED:
            earliest.setdefault(row_of(each.progress), each)
    return [each.progress for each in earliest.values() if _helps(each)]


def _may_be_a_strangers_code(folder: Progress) -> bool:
    """Tell whether the command of a folder runs code, and others may have written the files that name it.

    A command that was given by hand can name code in many ways.
    """
    is_code = _runs_code(folder.combination.model) if folder.job else bool(folder.command)
    return is_code and not _is_mine(folder.path)


def _runs_code(model: str) -> bool:
    """Tell whether building a model may run code that its name chooses; arguments of a library can name weights."""
    if kind := names.kind_of(model):
        return kind != names.TABLE
    bare = model.removeprefix(names.TIMM).removeprefix(names.HF)
    return bare != model and not _OF_HUB.fullmatch(bare)


def _is_mine(path: Path) -> bool:
    """Tell whether folder, `run.json` and history are the reader's, and no other group or user may write the files."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        files = [each.lstat() for each in (path / "run.json", path / HISTORY) if os.path.lexists(each)]
    except OSError:
        return False
    return all(
        found.st_uid == os.getuid()
        and not found.st_mode & stat.S_IWOTH
        and (found.st_gid == os.getgid() or not found.st_mode & stat.S_IWGRP)
        for found in files
    )


def is_known(combination: Combination) -> bool:
    """Tell whether a stage would take these names."""
    try:
        algorithms.find(combination.algorithm)
    except InputError:
        return False
    base = names.without_arguments(combination.model)
    is_a_library_s = _NAME.fullmatch(base.removeprefix(names.PREFIX)) or base.startswith((names.TIMM, names.HF))
    return bool(is_a_library_s or names.kind_of(base)) and _NAME.fullmatch(combination.gpu) is not None


def kept_flags(job: Job) -> list[str] | None:
    """Return a job's flags without --overwrite, None where they are none that a stage could have been given."""
    try:
        words = shlex.split(job.flags)
    except ValueError:
        return None
    return _kept(words) if job.flags.isprintable() and "$'" not in job.flags else None


def _kept(words: Sequence[str]) -> list[str] | None:
    options = [word for word in words if word.startswith("--")]
    if (words and not words[0].startswith("--")) or not all(map(_OPTION.fullmatch, options)):
        return None
    # The command lines take an option's first letters for the option, where no other begins so.
    return [word for word in words if not (word.startswith("--ov") and "--overwrite".startswith(word))]


def _helps(each: Standing) -> bool:
    """Tell whether the same command may end better."""
    folder = each.progress
    if folder.broken or each.bad_input:
        return False
    return not folder.complete or bool(folder.bad.keys() & {*RETRIED})


def _with_retry(words: list[str], folder: Progress) -> list[str]:
    return [*words, "--retry"] if folder.complete and "--retry" not in words else words


# By the name of the file that Python ran: the script `convscope`, and the module.
_PROFILE = {"convscope": ["convscope", "profile"], "__main__.py": ["python", "-m", "convscope", "profile"]}


def _own_command(folder: Progress) -> list[str]:
    """Return the command that a run was started with by hand, where it says so."""
    program, *words = folder.command or ("",)
    start = ["python", "run_profile.py"]
    if Path(program).name != start[1]:
        start = _PROFILE.get(Path(program).name, [])
        if not start or words[:1] != ["profile"]:
            return []
        words = words[1:]
    kept = _kept(words)
    if kept is None or not all(map(str.isprintable, words)):
        return []
    return [shlex.join([*start, *_with_retry(kept, folder)])]


def _command(stage: str, flags: str, every: Sequence[Combination]) -> str:
    words = shlex.join(word for each in every for word in (each.model, each.algorithm, each.gpu))
    given = words if len(every) == 1 else f"--matrix <(printf '%s\\t%s\\t%s\\n' {words})"
    return f"./{SCRIPTS[stage]} {given} {flags}".rstrip()
