"""Documents of a published data set: `datapackage.json` (Frictionless) and `croissant.json` (Croissant 1.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convscope.dataset import calls, parquet
from convscope.dataset.calls import CALLS
from convscope.dataset.columns import BY_NAME, COLUMNS, Column
from convscope.dataset.package import words
from convscope.dataset.package.facts import Facts, Release
from convscope.dataset.package.partition import ROLES
from convscope.dataset.samples import SAMPLES

DATAPACKAGE, CROISSANT = "datapackage.json", "croissant.json"
SAMPLES_FILE, CONFLICTS_FILE = f"samples{parquet.SUFFIX}", "conflicts.csv"
CALLS_FILE = f"{calls.NAME}{parquet.SUFFIX}"
LICENCE, LICENCE_URL = "CC-BY-4.0", "https://creativecommons.org/licenses/by/4.0/"
_MEDIA = {parquet.SUFFIX: "application/vnd.apache.parquet", ".csv": "text/csv"}
_TYPES = {"str": "string", "int": "integer", "float": "number"}
_NUMBER = {
    "name": parquet.NUMBER,
    "type": "integer",
    "description": "number of the sample, from 0, in the order of keys",
}

_POSITION = {
    "name": "position", "type": "integer", "description": words.POSITION,
    "constraints": {"required": True, "minimum": 0},
}  # fmt: skip


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    Attributes:
        kind: of a file of splits, the kind; "" of the others.
        fields: as Frictionless describes them.
        key: the columns that name a row.
    """

    path: str
    content: bytes
    text: str
    fields: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...]
    kind: str = ""

    @property
    def name(self) -> str:
        """Its name in the documents: "samples", "splits-layer"."""
        return self.path.rpartition(".")[0].replace("/", "-")

    @property
    def sha256(self) -> str:
        """The SHA-256 of its content, in hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def media_type(self) -> str:
        """Its media type."""
        return _MEDIA[self.path[self.path.rindex(".") :]]


def field(column: Column) -> dict[str, Any]:
    """Return a column as Frictionless describes it; `unit` is this project's own property."""
    constraints: dict[str, Any] = {} if column.is_optional else {"required": True}
    constraints |= {"enum": [*column.values]} if column.values else {}
    constraints |= {"pattern": column.pattern} if column.pattern else {}
    constraints |= {"minimum": column.minimum} if column.minimum is not None else {}
    unit = {"unit": column.unit} if column.unit else {}
    found = {"name": column.name, "type": _TYPES[column.kind], "description": column.description, **unit}
    return found | ({"constraints": constraints} if constraints else {})


def samples_file(content: bytes) -> DataFile:
    """Return the file of the samples."""
    fields = (_NUMBER | {"constraints": {"required": True, "unique": True}}, *map(field, COLUMNS))
    return DataFile(SAMPLES_FILE, content, words.SAMPLES, fields, (parquet.NUMBER,))


def calls_file(content: bytes) -> DataFile:
    """Return the file of the calls of whole models."""
    fields = [_POSITION if name == "position" else _required(BY_NAME[name]) for name in CALLS.columns]
    return DataFile(CALLS_FILE, content, words.CALLS, tuple(fields), CALLS.unique)


def _required(column: Column) -> dict[str, Any]:
    found = field(column)
    text = found["description"].partition(";")[0]  # which says in samples what an empty cell means
    return found | {"description": text, "constraints": {**found.get("constraints", {}), "required": True}}


def conflicts_file(content: bytes) -> DataFile:
    """Return the file of the repeats that do not agree."""
    return DataFile(CONFLICTS_FILE, content, words.CONFLICTS, tuple(_conflict_fields()), ("sample", "other_sample"))


def _conflict_fields() -> Iterator[dict[str, Any]]:
    for name, text in words.OF_CONFLICTS.items():
        like = BY_NAME.get(name.removeprefix("other_"), BY_NAME["mean_ms"] if name.endswith("_ms") else None)
        known = field(like) if like else {"type": "integer" if name.endswith("sample") else "string"}
        unit = {"unit": known["unit"]} if "unit" in known else {}
        yield {"name": name, "type": known["type"], "description": text, **unit}


def split_file(kind: str, names: Sequence[str], content: bytes) -> DataFile:
    """Return the file of the splits of a kind."""
    roles = {"required": True, "enum": [*ROLES]}
    fields = [{"name": name, "type": "string", "description": words.ROLE, "constraints": roles} for name in names]
    number = _NUMBER | {"constraints": {"required": True, "unique": True}}
    return DataFile(f"splits/{kind}{parquet.SUFFIX}", content, words.SPLITS[kind], (number, *fields), ("sample",), kind)


def datapackage(files: Sequence[DataFile], known: Facts, release: Release, name: str) -> dict[str, Any]:
    """Return the document of Frictionless (Data Package 2.0)."""
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": name, "title": words.title(known), "description": words.about(known), "version": release.version,
        "created": f"{release.day}T00:00:00Z", "keywords": [*words.KEYWORDS],
        **({"homepage": release.url} if release.url else {}),
        "licenses": [{"name": LICENCE, "path": LICENCE_URL, "title": "Creative Commons Attribution 4.0"}],
        "contributors": [{"title": release.creator}],
        "resources": [_resource(each) for each in files],
    }  # fmt: skip


def _resource(file: DataFile) -> dict[str, Any]:
    schema: dict[str, Any] = {"fields": [*file.fields], "primaryKey": [*file.key]}
    if file.path == SAMPLES_FILE:
        schema |= {"uniqueKeys": [[*SAMPLES.unique]], "missingValues": ["", "nan"]}  # as pandas reads an absent cell
    elif file.path != CALLS_FILE:
        numbers = ("sample", "other_sample") if file.path == CONFLICTS_FILE else ("sample",)
        to = {"resource": "samples", "fields": [parquet.NUMBER]}
        schema["foreignKeys"] = [{"fields": [each], "reference": to} for each in numbers]
    return {
        "name": file.name, "type": "table", "path": file.path, "description": file.text,
        "format": file.path.rpartition(".")[2], "mediatype": file.media_type, "encoding": "utf-8",
        "hash": f"sha256:{file.sha256}", "schema": schema,
    }  # fmt: skip


_CONTEXT: Mapping[str, Any] = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/", "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo", "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "examples": {"@id": "cr:examples", "@type": "@json"},
    "description": {"@container": "@language"}, "name": {"@container": "@language"},
} | {
    name: f"cr:{name}"
    for name in (
        *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
        *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
        *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
        *("separator", "source", "subField", "transform"),
    )
}  # fmt: skip
_READ_AS = {_MEDIA[parquet.SUFFIX]: "application/x-parquet"}  # the name that readers of Croissant know
_CROISSANT_TYPES = {"string": "sc:Text", "integer": "sc:Integer", "number": "sc:Float"}


def croissant(files: Sequence[DataFile], known: Facts, release: Release, name: str) -> dict[str, Any]:
    """Return the document of Croissant 1.1, with the fields on responsible use that NeurIPS 2026 asks for."""
    return {
        "@context": {**_CONTEXT}, "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": name, "description": words.about(known), "version": release.version, "license": LICENCE_URL,
        "datePublished": release.day, "url": release.url, "keywords": [*words.KEYWORDS], "isLiveDataset": False,
        "creator": {"@type": "sc:Organization", "name": release.creator}, "citeAs": words.citation(known, release),
        **words.responsible(known),
        "distribution": [_distributed(each) for each in files],
        "recordSet": [_record_set(each) for each in files],
    }  # fmt: skip


def _distributed(file: DataFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject", "@id": file.path, "name": file.path, "description": file.text,
        "contentUrl": file.path, "contentSize": f"{len(file.content)} B",
        "encodingFormat": _READ_AS.get(file.media_type, file.media_type),
        "sha256": file.sha256,
    }  # fmt: skip


def _record_set(file: DataFile) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet", "@id": file.name, "name": file.name, "description": file.text,
        "key": [{"@id": _id(file, each)} for each in file.key],
        "field": [_of_field(file, each) for each in file.fields],
    }  # fmt: skip


def _id(file: DataFile, name: str) -> str:
    return f"{file.name}/{'_'.join(name.split())}"  # an @id has no spaces


def _of_field(file: DataFile, described: Mapping[str, Any]) -> dict[str, Any]:
    name, unit = described["name"], described.get("unit")
    to_samples = file.path != SAMPLES_FILE and name in ("sample", "other_sample")
    return {
        "@type": "cr:Field", "@id": _id(file, name), "name": name,
        "description": described["description"] + (f" ({unit})" if unit else ""),
        "dataType": _CROISSANT_TYPES[described["type"]],
        "source": {"fileObject": {"@id": file.path}, "extract": {"column": name}},
        **({"references": {"field": {"@id": f"samples/{parquet.NUMBER}"}}} if to_samples else {}),
    }  # fmt: skip
