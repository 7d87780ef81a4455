"""Result folder of a study: `run.json` and tables keyed by cell, written cell by cell, read back, mended after a cut.

Each file is replaced whole (`table`), the table that makes a cell count last: a cell counts when it stands there, and
its rows of the other tables are there by then. A run may be killed, or run out of disk, at any moment. No measured row
is deleted: what is measured anew is kept first, in a folder `before-<time>` inside this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from convscope.errors import CONTINUE, InputError, WriteError
from convscope.storage import mending, table
from convscope.storage.environment import ORIGIN, Environment
from convscope.storage.files import Rows, StudyFiles
from convscope.storage.lock import NAME as LOCK
from convscope.storage.lock import Lock
from convscope.storage.paths import new_beside, now_utc
from convscope.storage.schema import Part, Request, Schema
from convscope.storage.table import Replacement, write_atomically

if TYPE_CHECKING:
    import pandas as pd


class Store:
    """The files of a study; inside its `with` block this process holds their directory, and only then it writes.

    Args:
        stem: first part of the tables' names; "" for none.
        note: called with one line where something is worth knowing.
        take_over: as of `Lock`.

    Raises:
        InputError: entered, where it cannot be made or written, or another run holds it.
        WriteError: from all that writes, where that fails or the folder was taken away; the files are as they were.
    """

    def __init__(
        self,
        path: Path | str,
        schema: Schema,
        stem: str = "",
        note: Callable[[str], None] = lambda line: None,
        take_over: bool = False,
    ) -> None:
        self.path, self.schema, self.note, self._take_over = Path(path), schema, note, take_over
        self.files = StudyFiles(self.path, schema, stem)
        self._lock: Lock | None = None
        self._replaced: Callable[[Any], bool] | None = None
        self._anew = False
        self._has_kept = False
        self._origin: dict[str, Any] = {}

    def __enter__(self) -> Store:
        self.prepare()
        self._lock = Lock(self.path / LOCK, take_over=self._take_over).__enter__()
        if self._lock.taken_from:
            self.note(f"took {self.path} over from {self._lock.taken_from}")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def prepare(self) -> None:
        """Make the directory and prove that files can be written there; raises an InputError where not."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            Replacement(self.files.run, "proof").drop()
        except (OSError, ValueError) as error:  # a path that no file system can have is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            line = f"cannot write results to {self.path} ({why}): choose another folder with --output-dir"
            raise InputError(line) from None

    # ---- reading

    def read_run(self) -> dict[str, Any] | None:
        """Return the content of `run.json` in this version's form, None without one; raises as `Schema.read`."""
        return self.schema.read(self.files.run)

    def read(self, name: str) -> pd.DataFrame:
        """Return a table, the rows of whole cells, empty where there is none yet; also while a run is writing.

        Raises:
            InputError: a file is not such a table, or a cell lacks rows; the message names file and line.
        """
        return self.read_all(name)[name]

    def read_all(self, *names: str) -> dict[str, pd.DataFrame]:
        """Return several tables of one moment by name, all of the schema's without a name; raises as `read`."""
        wanted = names or tuple(self.schema.tables)
        rows = self._whole(wanted)
        return {name: table.frame(self.schema.tables[name], rows[name]) for name in wanted}

    def objects(self, *names: str) -> dict[str, list[Any]]:
        """Return several tables of one moment as row objects by name; raises as `read`."""
        rows = self._whole(names)
        return {name: table.objects(self.schema.tables[name], rows[name]) for name in names}

    def _whole(self, names: Sequence[str]) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        for part in self.schema.parts:
            if mine := [name for name in part.tables if name in names]:
                found |= self.files.whole(part, mine)
        return found

    def cells(self) -> dict[Any, Mapping[str, str]]:
        """Return a row of each cell that is there as it stands on disk, by key, whatever became of it."""
        return {part.key_of(row): row for part in self.schema.parts for row in self.files.rows(part.main)}

    def measured(self) -> dict[Any, Mapping[str, str]]:
        """Return the cells that could be measured, as `cells` does."""
        return {key: row for key, row in self.cells().items() if row.get("status", "ok") == "ok"}

    # ---- beginning

    def missing(
        self,
        request: Request,
        environment: Environment,
        cells: Sequence[Any],
        overwrite: bool = False,
        covers: Callable[[Any], bool] = lambda key: False,
        counts: Callable[[Mapping[str, str]], bool] = lambda row: True,
        any_card: bool = False,
    ) -> list[Any]:
        """Return the cells of a request to measure, after mending what a run that was cut off left.

        With `overwrite` these are all of them; nothing is replaced before `begin`.

        Args:
            covers: tells whether a further cell of the folder belongs to the request, and is replaced too.
            counts: tells from the row of a cell that is there whether it has all that is asked for.
            any_card: cells of another card of the same name may join; each row names its card.

        Raises:
            InputError: the folder holds cells that were measured under other settings, or nobody knows under which.
        """
        self._replaced, self._anew = None, False
        if overwrite:

            def replaced(key: Any) -> bool:
                return key in cells or covers(key)

            self._replaced = replaced
            self._anew = self._nothing_stays(replaced, request, environment, any_card)
            return list(cells)
        earlier = self.read_run()
        if earlier is None and (line := mending.finish_keeping(self.files)):
            self.note(line)
        self._refuse_others(earlier, request, environment, any_card)
        for line in self.mend():
            self.note(f"{self.path}: {line}")
        return self._not_done(cells, earlier, counts)

    def _refuse_others(
        self, earlier: Mapping[str, Any] | None, request: Request, environment: Environment, any_card: bool
    ) -> None:
        """Raise InputError where the folder's tables were measured otherwise, or nobody knows how."""
        if earlier is None and any(path.exists() for path in self.files.tables):
            raise InputError(
                f"{self.path} has tables and no run.json, so nobody knows how they were measured: "
                "choose another --output-dir, or --overwrite"
            )
        odd = self.schema.differences(earlier, request, environment, any_card) if earlier is not None else []
        if odd:
            only_card = all(line.startswith("gpu_uuid ") for line in odd)
            raise InputError(
                f"{self.path} holds a run with other settings ({'; '.join(odd)}): "
                f"choose another --output-dir, or --overwrite{', or --any-card: each row names its card' * only_card}"
            )

    def _not_done(
        self, cells: Sequence[Any], earlier: Mapping[str, Any] | None, counts: Callable[[Mapping[str, str]], bool]
    ) -> list[Any]:
        done, noun = {key: row for key, row in self.cells().items() if counts(row)}, self.schema.noun
        left = [cell for cell in cells if cell not in done]
        if not left and cells:
            if earlier is not None and earlier.get("ended_utc", "") is None:  # cut off after the last cell
                self.note_in_run(ended_utc=_last_end_utc(list(done.values())))
            self.note(f"all {len(cells)} {noun} are in {self.path}: nothing measured (--overwrite)")
        elif left and done:
            self.note(f"{len(done)} {noun} are in {self.path}: measuring the {len(left)} that are missing")
        return left

    def _nothing_stays(
        self, replaced: Callable[[Any], bool], request: Request, environment: Environment, any_card: bool
    ) -> bool:
        """Tell whether no cell of the folder can stand beside those that replace some of them, or none is left."""
        try:
            earlier = self.read_run()
            if earlier is None or self.schema.differences(earlier, request, environment, any_card):
                return True
            self.mend()
            return all(map(replaced, self.cells()))
        except InputError:  # damaged: all of it is kept, and none of it used
            return True

    def mend(self) -> list[str]:
        """Set right what a run that was cut off left; return a line for each thing (`mending.mend`).

        Raises:
            InputError: there is damage that no cut leaves.
        """
        with self._writing():
            return mending.mend(self.files)

    def begin(self, request: Request, environment: Environment, command: Sequence[str], **more: Any) -> None:
        """Move aside what an --overwrite replaces, then write `run.json`; rows appended from now on name this start.

        Args:
            more: further entries of `run.json`.
        """
        if self._replaced:
            self._keep(move=self._anew)
            keys = set(filter(self._replaced, self.cells()))
            with self._writing():
                for part in self.schema.parts:
                    mending.drop(self.files, part, keys)
            self._replaced = None
        earlier, now = self.read_run(), now_utc()
        starts = [*(earlier["starts"] if earlier else ()), self.schema.start(request, environment, command, now)]
        self._write_document(
            dict(self.schema.entries)
            | (earlier or {"started_utc": now})
            | {
                "schema_version": self.schema.version,
                self.schema.request: self.schema.joined(earlier, request),
                "environment": dataclasses.asdict(environment),
                "command": list(command),
                "starts": starts,
                "ended_utc": None,
                "error": None,
            }
            | more
        )
        self._origin = {name: getattr(environment, name) for name in ORIGIN} | {"start": len(starts) - 1}

    def _keep(self, move: bool) -> None:
        kept = mending.keep(self.files, datetime.now(timezone.utc), move)
        self._has_kept = True
        if kept:
            self.note(f"what was in {self.path} is kept in {kept}")

    def note_in_run(self, **more: object) -> None:
        """Put further entries into `run.json`: its end, an error, which are those of its last start too."""
        document = self.read_run() or {}
        for start in document.get("starts", [])[-1:]:
            start |= {name: more[name] for name in start.keys() & more.keys()}
        self._write_document(document | more)

    def _write_document(self, document: Mapping[str, Any]) -> None:
        self.save_text("run.json", json.dumps(document, indent=2))

    # ---- writing

    def append(self, rows: Iterable[Any], instead_of: Collection[Any] = ()) -> None:
        """Add cells of one part, their rows of all tables at once, safely on the disk when this returns.

        A row of the same cell is replaced; one that was measured is kept first.

        Args:
            instead_of: keys of other cells whose rows go.
        """
        if self._lock is not None:
            self._lock.confirm()
        every = [self._with_origin(row) for row in rows]
        part = self.schema.part_with(every[0])
        gone = ({part.key_of_row(row) for row in every} | set(instead_of)) & self.cells().keys()
        if gone & self.measured().keys() and not self._has_kept:
            self._keep(move=False)
        with self._writing():
            self._write(part, every, gone)

    def extend(self, rows: Sequence[Any]) -> None:
        """Add rows of the other tables of cells that count already, safely on the disk when this returns."""
        if self._lock is not None:
            self._lock.confirm()
        with self._writing():
            self._write(self.schema.part_with(rows[0]), rows, set())

    def _with_origin(self, row: Any) -> Any:
        named = self._origin.keys() <= {field.name for field in dataclasses.fields(row)}
        return dataclasses.replace(row, **self._origin) if named else row

    def update(self, rows: Sequence[Any]) -> None:
        """Replace rows of the table that makes cells count by rows of the same cells with other derived columns."""
        part = self.schema.part_with(rows[0])
        form, new = part.tables[part.main], {part.key_of_row(row): row for row in rows}
        objects = table.objects(form, self.files.rows(part.main))
        lines = table.lines_of(form, [new.get(part.key_of_row(row), row) for row in objects], with_header=True)
        self.save_text(self.files.table(part.main).name, lines.removesuffix("\n"))

    def _write(self, part: Part, every: Sequence[Any], gone: set[Any]) -> None:
        written: list[Replacement] = []
        try:
            for name, form in part.tables.items():
                path, new = self.files.table(name), [row for row in every if type(row) is form.row_type]
                if gone and path.exists():
                    stays = table.select(path, form, lambda row: part.key_of(row) not in gone)
                    written.append(Replacement(path, stays + table.lines_of(form, new, with_header=False)))
                elif new or part.counted:
                    lines = table.lines_of(form, new, with_header=not path.exists())
                    written.append(Replacement(path, lines, after=True))
            for replacement in written:
                replacement.commit()
            table.sync_directory(self.path)
        except OSError:
            for replacement in written:
                replacement.drop()
            raise

    def sort(self) -> None:
        """Bring sorted tables into their order on disk, at the end of a run; `mend` does where a run was killed."""
        with self._writing():
            mending.sort(self.files)

    def save_text(self, name: str, text: str) -> None:
        """Write a file of text beside the tables, whole."""
        with self._writing():
            write_atomically(self.path / name, text + "\n")

    def save_folder(self, name: str, source: Path) -> None:
        """Put a copy of a folder beside the tables, whole; one of that name is replaced.

        Args:
            name: may have folders in it.
        """
        path = self.path / name
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            new, old = new_beside(path), new_beside(path)
            shutil.copytree(source, new)
            if path.exists():
                path.rename(old)
            new.rename(path)
            shutil.rmtree(old, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._lock is not None:
                self._lock.confirm()  # where the folder was taken away meanwhile, that is why
            raise WriteError(
                f"cannot write to {self.path} ({error.strerror}): the {self.schema.noun} already written are complete; "
                f"remove the cause, then {CONTINUE}"
            ) from None


def _last_end_utc(cells: Sequence[Mapping[str, str]]) -> str | None:
    """Return when the last cell was finished, as far as the rows say."""
    ends = []
    for cell in cells:
        with contextlib.suppress(KeyError, ValueError, OverflowError):
            ended = datetime.fromisoformat(cell["started_utc"]) + timedelta(seconds=float(cell["wall_s"]))
            ends.append(ended.astimezone(timezone.utc))
    return max(ends).isoformat(timespec="seconds") if ends else None
