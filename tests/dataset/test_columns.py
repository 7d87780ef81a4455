"""Columns of samples: one table of them, from which the documents and the checks are made."""

from __future__ import annotations

from convscope.dataset import columns
from convscope.dataset.collect.group import STATUS
from convscope.dataset.collect.request import SETTINGS
from convscope.dataset.samples import SAMPLES


def test_every_column_of_a_sample_is_described_in_order():
    assert [column.name for column in columns.COLUMNS] == SAMPLES.columns


def test_units_in_names_are_the_units():
    suffixes = {"_ms": "ms", "_j": "J", "_bytes": "bytes", "_px": "pixels"}
    for column in columns.COLUMNS:
        for suffix, unit in suffixes.items():
            if column.name.endswith(suffix):
                assert column.unit == unit, column.name


def test_what_a_collection_writes_is_allowed():
    assert {*STATUS.values()} == {*columns.STATUSES}
    for settings in SETTINGS.values():
        for name, value in settings.items():
            assert value in columns.BY_NAME[name].values
