"""Order of work of the 3-D study: layers, stress test, network; measured, written, drawn and printed in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from convscope.conv3d import comparison, report, stress
from convscope.conv3d.cosmoflow import EndToEnd
from convscope.conv3d.implementations import Implementations, why_not_here
from convscope.conv3d.request import Conv3d, Parts
from convscope.conv3d.rows import SCHEMA, LayerKey, NetworkKey, StressKey, StressRow
from convscope.convolution import roofline
from convscope.convolution.layer import Layer
from convscope.convolution.roofline import Ceilings
from convscope.kernels import autotune
from convscope.kernels.autotune import BlockCache
from convscope.kernels.blocks import Blocks3d
from convscope.storage.environment import Environment
from convscope.storage.paths import now_utc
from convscope.storage.store import Store

TUNED = "tuned.json"


@dataclass
class Conv3dStudy:
    """Measures the cells of a request that a folder does not have yet.

    Attributes:
        stop: asked between the cells; where it says True the study ends there.
        note: called with one line where something is worth knowing.
    """

    request: Conv3d
    layers: Sequence[Layer]
    parts: Parts
    device: torch.device
    environment: Environment
    stop: Callable[[], bool]
    note: Callable[[str], None]

    def run(self, folder: Path, overwrite: bool, any_card: bool = False, take_over: bool = False) -> int:
        """Do all parts, write them into a folder and print them.

        Returns 1 where a result is wrong, or where all of a part is unsupported; else 0.

        Raises:
            InputError: the folder cannot be used, or there is no file of choices.
            WriteError: the folder cannot be written any more.
            DeviceFaultError: the GPU is lost.
        """
        with contextlib.ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            cache = _block_cache(self.parts.load_tuned, self.device)
            store = stack.enter_context(Store(folder, SCHEMA, note=self.note, take_over=take_over))
            cells = self._cells()
            missing = store.missing(
                self.request, self.environment, cells, overwrite, self._covers, self._counts, any_card=any_card
            )
            if missing or overwrite or self._rounds_left(store):
                self._measure(store, set(missing), cache)
        return self._report(store)

    def _cells(self) -> list[Any]:
        names = [(name, layout) for layout in self.request.layouts for name in self.request.implementations]
        layers = self.layers if self.parts.layers else ()
        cells = [LayerKey(layer.name, layer.position, *name) for layer in layers for name in names]
        return [*cells, *(NetworkKey(*name) for name in names if self.parts.end_to_end)]

    def _covers(self, key: Any) -> bool:
        """Tell whether a cell is a round of the stress test that is asked for: too many to be listed."""
        if not isinstance(key, StressKey):
            return False
        asked = key.layout == stress.layout_of(self.request, key.round)
        return asked and key.round < self.parts.stress and key.implementation in self.request.implementations

    def _rounds_left(self, store: Store) -> bool:
        return sum(map(self._covers, store.cells())) < self.parts.stress * len(self.request.implementations)

    def _counts(self, row: Mapping[str, str]) -> bool:
        """Tell whether a cell that is there has what is asked for: verified, timed; failures are tried again."""
        if row["status"] != "ok":
            return row["status"] == "unsupported"
        verified, timed = row.get("elementwise_error", "-"), row.get("median_ms", "-")
        return bool((verified or not self.request.verify) and (timed or not self.request.compare))

    def _measure(self, store: Store, missing: set[Any], cache: BlockCache[Blocks3d]) -> None:
        timed = self.request.compare and any(
            isinstance(cell, LayerKey) and why_not_here(cell.implementation, self.device) is None for cell in missing
        )
        for remark in self.parts.remarks:
            self.note(remark)
        limits = roofline.measure_ceilings(self.device) if timed else None
        entries = {} if limits is None else {"ceilings": dataclasses.asdict(limits)}
        store.begin(self.request, self.environment, sys.argv, **entries)
        with Implementations(self.device, cache) as implementations:
            try:
                self._layer_cells(store, missing, implementations, limits)
                self._stress_cells(store, implementations)
                self._network_cells(store, missing, implementations)
            finally:
                _save_choices(store, implementations)
        store.note_in_run(ended_utc=now_utc())

    def _layer_cells(
        self, store: Store, missing: set[Any], implementations: Implementations, limits: Ceilings | None
    ) -> None:
        for layer in self.layers:
            for layout in self.request.layouts:
                names = [
                    name for name in self.request.implementations
                    if LayerKey(layer.name, layer.position, name, layout) in missing
                ]  # fmt: skip
                if names and not self.stop():
                    self._layer_cell(store, layer, layout, names, implementations, limits)

    def _layer_cell(
        self, store: Store, layer: Layer, layout: str, names: Sequence[str], implementations: Implementations,
        limits: Ceilings | None,
    ) -> None:  # fmt: skip
        """Measure a layer in a layout by some implementations, as those that were there before were measured."""
        asked, where = self.request, (layer.position, layout)
        known = [row for row in store.objects("conv3d")["conv3d"] if (row.position, row.layout) == where]
        again = [row for row in known if row.implementation in names]
        verify = asked.verify or any(row.elementwise_error is not None for row in again)
        compare = asked.compare or any(row.median_ms is not None for row in again)
        request = dataclasses.replace(asked, implementations=tuple(names), verify=verify, compare=compare)
        self.note(f"{layer.name}, {layout.upper()}: {layer}")
        compared = comparison.LayerComparison(request, layer, layout, implementations, limits)
        compared.run()
        store.append([*compared.rows, *compared.samples])
        _save_choices(store, implementations)
        if len(names) < len(known) + len(names) - len(again):
            every = store.objects("conv3d")["conv3d"]
            store.update(comparison.with_ratios([row for row in every if (row.position, row.layout) == where]))

    def _stress_cells(self, store: Store, implementations: Implementations) -> None:
        done = store.cells().keys()
        if not self._rounds_left(store) or self.stop():
            return
        rows: list[StressRow] = []

        def save() -> bool:
            if rows:
                store.append(rows)
                rows.clear()
            return self.stop()

        def skip(turn: int, name: str) -> bool:
            return StressKey(turn, name, stress.layout_of(self.request, turn)) in done

        try:
            stress.run(self.request, self.parts.stress, implementations, self.note, rows, save, skip)
        finally:
            save()

    def _network_cells(self, store: Store, missing: set[Any], implementations: Implementations) -> None:
        for layout in self.request.layouts:
            names = tuple(name for name in self.request.implementations if NetworkKey(name, layout) in missing)
            if not names or self.stop():
                continue
            request = dataclasses.replace(self.request, implementations=names)
            network = EndToEnd(request, implementations, self.layers[0].batch, layout)
            network.run(self.note, partial(self._save_last, store, network))

    def _save_last(self, store: Store, network: EndToEnd) -> bool:
        """Write the last network that was measured; tell whether the study is to end."""
        last = network.rows[-1]
        store.append([last, *(kind for kind in network.kinds if kind.implementation == last.implementation)])
        return self.stop()

    def _report(self, store: Store) -> int:
        """Draw and print what the folder has of the request; return as `run`."""
        cells = set(self._cells())
        every = store.objects("conv3d", "stress", "end_to_end", "breakdown")
        rows = {
            name: [row for row in found if (key := SCHEMA.part_of(name).key_of_row(row)) in cells or self._covers(key)]
            for name, found in every.items()
        }
        ceilings = (store.read_run() or {}).get("ceilings")
        limits = Ceilings(**ceilings) if ceilings else None
        if self.parts.plots:
            every_frame = store.read_all("conv3d", "samples", "breakdown")
            frames = {name: frame[frame["layout"].notna()] for name, frame in every_frame.items()}
            report.draw(frames["conv3d"], frames["samples"], frames["breakdown"], limits, store.path, self.note)
        print(report.summary(rows, limits if self.parts.layers and self.request.compare else None))
        print(f"results: {store.path}")
        of_parts = [rows[name] for name in ("conv3d", "stress", "end_to_end") if rows[name]]
        idle = any(all(row.status == "unsupported" for row in part) for part in of_parts)
        if idle:
            self.note("no implementation that was asked for can do this here (the rows say why): nothing was measured")
        return int(idle or any(map(comparison.is_broken, of_parts)))


def _save_choices(store: Store, implementations: Implementations) -> None:
    """Write the blocks that the tuned kernel was given beside the tables, those of earlier calls too."""
    chosen = implementations.cache.used
    if chosen:
        path = store.path / TUNED
        earlier = json.loads(path.read_text()) if path.exists() else {}
        store.save_text(TUNED, json.dumps(earlier | json.loads(autotune.as_text(chosen)), indent=1, sort_keys=True))


def _block_cache(load_tuned: str | None, device: torch.device) -> BlockCache[Blocks3d]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    if load_tuned:
        return BlockCache.of_file(Path(load_tuned), Blocks3d)
    return BlockCache(autotune.cache_file(name, "conv3d"), Blocks3d, fixed=load_tuned is not None)
