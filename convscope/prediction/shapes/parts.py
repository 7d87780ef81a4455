"""Parts that the time of a call by tiles is a sum of.

Each is a time in ms that the card would take for it at its peaks, or a count. How much of each a plan really costs is
learned (`learners.costs`). Waves are of blocks over the multiprocessors, one block on each; a
step is what a block adds to its tile at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from convscope.prediction.shapes.sizes import Floats, Sizes
from convscope.prediction.shapes.tiles import Tile

LINE_BYTES = 128
"""Bytes of channels that groups are packed to at most, if a tile has as many filters; as many groups where there are
fewer, as the names of kernels say."""
NARROWEST = 4
"""Channels that a group is computed as at least where groups are packed."""
MOST_IDLE = 8.0
"""Cap on whole waves over those that are needed: below one wave the ratio only repeats how few blocks there are."""
PADDED = 8
"""Channels and filters, of a group, are padded to a multiple of it by kernels of their own; weights by channels."""
NARROWEST_TILE = 32
"""Filters of a tile, at least, where it is no wider than a group's."""
SEVERAL = 2
"""Buffers from which adding up the slices of a sum takes the longer, the more there are."""
OF_ANY = frozenset({"call", "input", "output", "filters", "groups"})
"""Parts that a call has however it is computed."""
Parts = dict[str, Floats]
Labels = npt.NDArray[np.object_]


@dataclass(frozen=True)
class Rates:
    """Peaks of each row's card: in its arithmetic, of the memory, and multiprocessors."""

    tflops: Floats
    bandwidth_gbps: Floats
    multiprocessors: Floats
    element_bytes: Floats

    def products_ms(self, products: Floats) -> Floats:
        """Return the time of so many multiplications and additions in the arithmetic of a row."""
        return 2 * products / self.tflops / 1e9

    def elements_ms(self, elements: Floats) -> Floats:
        """Return the time to move so many elements."""
        return elements * self.element_bytes / self.bandwidth_gbps / 1e6


@dataclass(frozen=True)
class Tiled:
    """Tiles that cover the outputs of each row.

    Attributes:
        tiles: of all pixels, filters, groups and slices of a sum.
        blocks: the same in whole clusters.
        cluster: blocks of one.
        steps: of a tile; `steps_by_tap` where each tap has steps of its own.
        pixels, filters, terms: of a tile and a step.
        width, filters_of_group: channels and filters of a group as they are computed: where groups are packed, both the
            power of two that is as large as the larger of them.
        is_packed: rows with groups by a plan that packs them, and how many are packed `together`.
        is_transposed: rows with groups in 16 bits by a plan that transposes each by itself.
        slices, buffers: of a sum, and that they are added up in (`Tile`).
        is_known: rows whose name or engine says the tile.
        borders: rows whose outputs at borders are computed by kernels of their own.
    """

    tiles: Floats
    blocks: Floats
    cluster: Floats
    steps: Floats
    steps_by_tap: Floats
    pixels: Floats
    filters: Floats
    terms: Floats
    width: Floats
    filters_of_group: Floats
    is_packed: npt.NDArray[np.bool_]
    together: Floats
    is_transposed: npt.NDArray[np.bool_]
    slices: Floats
    buffers: Floats
    is_known: npt.NDArray[np.bool_]
    borders: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, sizes: Sizes, tiles: list[Tile], element_bytes: Floats, is_last: npt.NDArray[np.bool_]) -> Tiled:
        """Return it for rows of these sizes by algorithms of these tiles; `is_last`: channels lie last (NHWC)."""
        names = ("pixels", "filters", "terms", "step_bytes", "cluster_pixels", "cluster_filters", "slices", "buffers")
        high, wide, terms, step_bytes, along, across, slices, buffers = (
            np.array([getattr(tile, name) for tile in tiles], float) for name in names
        )
        terms = np.where(step_bytes > 0, step_bytes / element_bytes, terms)
        packed = np.array([tile.packs for tile in tiles]) & (sizes.groups > 1)
        channels, filters = sizes.channels / sizes.groups, sizes.filters / sizes.groups
        whole = np.maximum(2.0 ** np.ceil(np.log2(filters)), NARROWEST_TILE)
        wide = np.where(np.array([tile.fits for tile in tiles]), np.minimum(wide, whole), wide)
        power = np.maximum(2.0 ** np.ceil(np.log2(np.maximum(channels, filters))), NARROWEST)
        channels, filters = np.where(packed, power, channels), np.where(packed, power, filters)
        most = np.minimum(LINE_BYTES / element_bytes, wide)
        together = np.where(packed, np.maximum(most / channels, 1), 1.0)
        images = np.where(np.array([tile.by_image for tile in tiles]) & ~is_last, sizes.batch, 1.0)
        rows, columns = images * np.ceil(sizes.pixels / images / high), np.ceil(filters * together / wide)
        bundles, taps = np.ceil(sizes.groups / together) * slices, sizes.kernel.prod(axis=1)
        return cls(
            tiles=rows * columns * bundles,
            blocks=np.ceil(rows / along) * along * np.ceil(columns / across) * across * bundles,
            cluster=along * across,
            steps=np.ceil(np.ceil(taps * channels * together / terms) / slices),
            steps_by_tap=taps * np.ceil(channels * together / terms) / slices,
            pixels=high, filters=wide, terms=terms, width=channels, filters_of_group=filters, is_packed=packed,
            together=together,
            is_transposed=np.array([tile.transposes for tile in tiles]) & (sizes.groups > 1) & (element_bytes == 2),
            slices=slices, buffers=buffers, is_known=np.array([tile.is_known for tile in tiles]),
            borders=np.array([tile.borders for tile in tiles]),
        )  # fmt: skip

    def features(self, sizes: Sizes, multiprocessors: Floats) -> Parts:
        """Return waves, whole ones over them, outputs of tiles over those needed, steps, and blocks of a cluster."""
        waves = self.blocks / multiprocessors
        outputs = self.tiles * self.pixels * self.filters
        return {
            "plan_waves": np.log(waves),
            "plan_last_wave": np.minimum(np.ceil(waves) / waves, MOST_IDLE),
            "plan_last_two_waves": np.minimum(2 * np.ceil(waves / 2) / waves, MOST_IDLE),
            "plan_tile": np.log(outputs / (sizes.pixels * sizes.filters)),
            "plan_steps": np.log(self.steps),
            "plan_cluster": np.log(self.cluster),
        }


def parts_ms(sizes: Sizes, tiled: Tiled, rates: Rates) -> Parts:
    """Return the parts of each row by their names, none below 0; of a usual tile where nothing says it."""
    return {
        "call": np.ones(len(sizes.pixels)),
        **_bytes(sizes, tiled, rates),
        **_groups(sizes, tiled, rates),
        **_tiles(tiled, rates),
    }


def _step_ms(tiled: Tiled, rates: Rates) -> Floats:
    """Return the time of a step of a wave of blocks, one on each multiprocessor."""
    return rates.products_ms(tiled.pixels * tiled.filters * tiled.terms * rates.multiprocessors)


def _bytes(sizes: Sizes, tiled: Tiled, rates: Rates) -> Parts:
    """Return the bytes, and those that are moved once more where channels or filters are padded, or gathered.

    Kernels that pad the input and the output, of each group if groups are not packed, take time besides, however little
    they move.
    """
    moved = {
        "input": sizes.inputs, "output": sizes.pixels * sizes.filters, "filters": sizes.terms * sizes.filters,
    }  # fmt: skip
    groups = np.where(tiled.is_packed, 1.0, sizes.groups)  # packed ones are not padded one by one
    channels, filters = sizes.channels / groups, sizes.filters / groups
    padded = {"input": channels, "output": filters, "filters": channels}
    found = {name: rates.elements_ms(count) for name, count in moved.items()}
    for name, width in padded.items():
        more = np.ceil(width / PADDED) * PADDED / width
        found[f"padded {name}"] = np.where(more > 1, found[name] * more, 0.0)
        if name != "filters":  # which are padded where the input is
            found[f"call to pad {name}"] = np.where(more > 1, groups, 0.0)
    patches = rates.elements_ms(sizes.pixels * sizes.terms * sizes.groups)
    return {**found, "patches": np.where(sizes.kernel.prod(axis=1) > 1, patches, 0.0)}


def _tiles(tiled: Tiled, rates: Rates) -> Parts:
    """Return the parts of a product by tiles of the plan's own size."""
    step_ms = _step_ms(tiled, rates)
    waves = tiled.blocks / rates.multiprocessors
    loads = tiled.blocks * tiled.steps * tiled.terms * (tiled.pixels + tiled.filters)
    return {
        "blocks of a cluster": tiled.cluster - 1,
        "tiles": tiled.tiles / rates.multiprocessors * tiled.steps * step_ms,
        "waves": waves * tiled.steps * step_ms,
        "whole waves": np.ceil(waves) * tiled.steps * step_ms,
        "pairs of waves": 2 * np.ceil(waves / 2) * tiled.steps * step_ms,
        "waves by tap": waves * tiled.steps_by_tap * step_ms,
        "whole waves by tap": np.ceil(waves) * tiled.steps_by_tap * step_ms,
        "ends of tiles": np.ceil(waves) * step_ms,
        "loads": rates.elements_ms(loads),
        "steps": tiled.steps,
        **_slices(tiled, rates),
    }


def _slices(tiled: Tiled, rates: Rates) -> Parts:
    """Return the parts of sums that are split among blocks, of which each writes its own."""
    is_split, waves = tiled.slices > 1, tiled.blocks / rates.multiprocessors
    sums_ms = np.where(is_split, rates.elements_ms(tiled.tiles * tiled.pixels * tiled.filters), 0.0)
    return {
        "slices": tiled.slices - 1,
        "waves of slices": np.where(is_split, waves, 0.0),
        "sums of slices": sums_ms,
        "sums in buffers": np.where(tiled.buffers >= SEVERAL, sums_ms * tiled.buffers, 0.0),
    }


def _groups(sizes: Sizes, tiled: Tiled, rates: Rates) -> Parts:
    """Return the parts of groups: launched one after another, or padded to powers of two; and of borders of images."""
    is_grouped = sizes.groups > 1
    step_ms = _step_ms(tiled, rates)
    tiles = np.ceil(sizes.pixels / tiled.pixels) * np.ceil(sizes.filters / sizes.groups / tiled.filters)
    steps = sizes.groups * np.ceil(sizes.terms / tiled.terms)
    wider = tiled.width * sizes.groups / sizes.channels, tiled.filters_of_group * sizes.groups / sizes.filters
    moved = sizes.inputs, sizes.pixels * sizes.filters
    one_by_one = {
        "groups": sizes.groups,
        "waves of groups": np.ceil(tiles / rates.multiprocessors) * steps * step_ms,
        "steps of groups": steps,
    }
    packed = {
        f"packed {name}": rates.elements_ms(elements * more)
        for name, elements, more in zip(("input", "output"), moved, wider, strict=True)
    }
    return {
        "borders": np.where(tiled.borders, sizes.borders * sizes.groups, 0.0),
        "terms at borders": np.where(tiled.borders & (sizes.borders > 0), sizes.groups * sizes.terms, 0.0),
        **{name: np.where(is_grouped, value, 0.0) for name, value in one_by_one.items()},
        **{name: np.where(tiled.is_packed, value, 0.0) for name, value in packed.items()},
    }
