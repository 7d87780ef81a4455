"""Tiles of plans: as their knobs say them, and as the names of the kernels say that plans ran."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from fakes import ROOT

from convscope.dataset import choices
from convscope.dataset.samples import ARITHMETIC, SHAPE, kernel_names
from convscope.prediction.features import features
from convscope.prediction.shapes.tiles import TILED, USUAL, Tile, engine_of, tile_of

COLUMNS = ("algorithm", "kernels", "status", "ranked_plans", "ranked_for", *SHAPE, *ARITHMETIC)
NAMED = (
    re.compile(r"tilesize(\d+)x(\d+)x(\d+)_"),  # sm90_xmma_fprop_implicit_gemm_…_tilesize128x64x32_…
    re.compile(r"fprop\w*?_(\d+)x(\d+)_(\d+)x\d"),  # cutlass_tensorop_s1688fprop_optimized_tf32_256x64_16x4_…
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plan:62:k2=4,k13=1,k18=0,k25=1,k27=8,k28=2", Tile(256, 64, 64, 8, 2, packs=True, is_known=True)),
        ("plan+packed:67:k2=8,k13=0,k25=1,k27=1,k28=1", Tile(64, 32, 32, packs=True, is_known=True)),
        ("plan:45:k2=5,k5=4,k14=4", Tile(64, 64, 64, is_known=True)),
        ("plan:45:k2=1,k5=3", Tile(128, 64, 32, is_known=True)),  # as the usual one
        ("plan:70:k2=12,k18=0", Tile(32, 32, 8, is_known=True)),
        ("plan:46:k2=4,k5=2,k14=3", Tile(256, 64, 16, transposes=True, is_known=True)),
        ("plan:23:k2=5,k12=-1,k13=1,k14=3,k17=16", Tile(64, 64, 64, is_known=True, slices=16)),
        ("plan+packed:41:k2=8,k12=10,k13=1,k17=18", Tile(64, 32, 64, is_known=True, slices=18, buffers=10)),
        ("plan:71:k0=1", Tile(128, 128, 32, is_known=True, step_bytes=64)),
        ("plan:58", Tile(64, 64, 32, by_image=True)), ("plan:1", Tile(128, 64, 32, borders=True)),
        ("direct", Tile(64, 64, 16, fits=True)),
    ],
)  # fmt: skip
def test_an_algorithm_says_its_tile_and_how_blocks_go_together(name: str, expected: Tile):
    assert tile_of(name) == expected


@pytest.mark.parametrize(
    "name",
    ["torch", "gemm", "plan:28:k2=4,k3=0", "plan:0", "plan:62:k2=99", "plan:62", "plan:62:k2", "x:62:k2=5", "a:b:c"],
)
def test_what_says_no_tile_has_the_usual_one(name: str):
    assert tile_of(name) == USUAL
    assert not USUAL.is_known


def named(kernels: str) -> tuple[int, ...] | None:
    """Return the pixels, filters and terms that the name of one of the kernels says."""
    found = (pattern.search(name) for name in kernel_names(kernels) or () for pattern in NAMED)
    return next((tuple(map(int, each.groups())) for each in found if each), None)


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_the_tiles_of_plans_are_those_in_the_names_of_the_kernels_that_ran(card: str):
    read = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=[*COLUMNS])
    ran = choices.with_plans(read[(read["status"] == "ok") & read["kernels"].notna()])
    ran = ran[ran["algorithm"].str.match(rf"plan[^:]*:(?:{'|'.join(map(str, TILED))}):")]
    pairs = ran.groupby(["algorithm", "kernels"], as_index=False).size()
    pairs["named"] = pairs["kernels"].map(named)
    pairs["said"] = [(tile.pixels, tile.filters, tile.terms) for tile in map(tile_of, pairs["algorithm"])]
    pairs = pairs[pairs["named"].notna()]
    engines = {int(name.split(":")[1]) for name in pairs["algorithm"]}
    assert engines == {*TILED}
    agrees = pairs["named"] == pairs["said"]
    assert pairs["size"][agrees].sum() / pairs["size"].sum() > 0.99
    by_plan = agrees.groupby(pairs["algorithm"]).mean()
    assert by_plan[by_plan < 0.5].index.tolist() == []


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_engines_whose_tile_no_knob_says_have_it_in_the_names_of_their_kernels(card: str):
    read = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=[*COLUMNS])
    read = read[(read["status"] == "ok") & read["kernels"].notna()]

    def sizes(engine: int, dtype: str, pattern: str) -> list[str]:
        """Return the sizes that kernels have in their names, the most frequent first; nan for names without."""
        is_asked = read["algorithm"].str.match(rf"plan[^:]*:{engine}(?:$|:)") & (read["dtype"] == dtype)
        return [
            str(size) for size in read["kernels"][is_asked].str.extract(pattern)[0].value_counts(dropna=False).index
        ]

    one, most = tile_of("plan:71"), tile_of("plan:58")
    for dtype, element_bytes in (("float16", 2), ("float32", 4)):
        terms = one.step_bytes // element_bytes
        assert sizes(71, dtype, r"_(\d+x\d+x\d+)_\d+_\d+") == [f"{one.pixels}x{one.filters}x{terms}"]
    assert sizes(58, "float32", r"_(\d\d+x\d\d+)")[0] == f"{most.pixels}x{most.filters}"
    assert sizes(58, "float16", r"_(\d\d+x\d\d+)")[0] == "64x16"


@pytest.mark.parametrize(
    ("name", "expected"), [("plan:0", 0), ("plan+packed:62:k2=5", 62), ("direct", None), ("torch", None), ("a:b", None)]
)
def test_a_plan_is_of_an_engine(name: str, expected: int | None):
    assert engine_of(name) == expected


def test_groups_of_plans_that_transpose_them_in_16_bits_are_a_class_of_their_own():
    found = {}
    for card in ("h100", "h200"):
        read = pd.read_parquet(ROOT / "data" / card / "samples.parquet", columns=[*COLUMNS, "gpu_name"])
        ran = choices.with_plans(read[(read["status"] == "ok") & read["kernels"].notna()])
        ran = ran[ran["algorithm"].str.match(r"plan:(?:45|46):") & (ran["groups"] > 1)].reset_index(drop=True)
        ran["class"] = features(ran, {}).classes[0]
        ran["transposes"] = ran["kernels"].str.contains("genericTranspose|tensorTransform")
        ran["slowly"] = ran["kernels"].str.contains("genericTranspose")
        found[card] = ran.groupby("class")[["transposes", "slowly"]].mean()
    both = pd.concat(found.values())
    assert both.loc[["transposed"], "transposes"].tolist() == [1, 1]
    assert both.loc[["transposed"], "slowly"].min() > 0.5
    assert both.drop("transposed")["slowly"].max() == 0
