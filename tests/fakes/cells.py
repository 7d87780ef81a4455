"""A small study: cells named by a size, each with as many parts as its row counts, and marks that nothing counts."""

from __future__ import annotations

from dataclasses import dataclass

from convscope.storage.files import StudyFiles
from convscope.storage.schema import Part, Schema
from convscope.storage.table import Table


@dataclass(frozen=True)
class CellKey:
    size: int


@dataclass(frozen=True)
class CellRow:
    size: int
    status: str
    count: int | None = None
    mean_ms: float | None = None
    is_fine: bool | None = None
    reason: str | None = None


@dataclass(frozen=True)
class PartRow:
    size: int
    position: int


@dataclass(frozen=True)
class MarkKey:
    name: str
    size: int


@dataclass(frozen=True)
class MarkRow:
    name: str
    size: int
    mark: float | None = None


CELLS = Table(CellRow, unique=("size",), first=2)
PARTS = Table(PartRow, unique=("size", "position"), first=2)
MARKS = Table(MarkRow, unique=("name", "size"), first=2)
SCHEMA = Schema(
    request="request",
    version=1,
    parts=(
        Part(CellKey, {"parts": PARTS, "cells": CELLS}, counted=("parts", "count")),
        Part(MarkKey, {"marks": MARKS}),
    ),
    free=(),
    noun="sizes",
)


def write(files: StudyFiles, cells: str = "", parts: str = "", marks: str | None = None) -> None:
    """Write the tables: lines without a header, "64,ok,2" with the columns from the left."""
    for name, form, lines in (("cells", CELLS, cells), ("parts", PARTS, parts), ("marks", MARKS, marks)):
        if lines is not None:
            width = len(form.columns)
            cells_of = (line.split(",") for line in lines.split())
            rows = [",".join(form.columns), *(",".join(row + [""] * (width - len(row))) for row in cells_of)]
            files.table(name).write_text("\n".join(rows) + "\n")
