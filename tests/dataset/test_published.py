"""The published data sets: whole, valid by the tools of their standards, and enough to learn from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fakes import standards

from convscope import __main__ as program
from convscope.dataset import samples
from convscope.prediction import evaluation, predictor

PUBLISHED = sorted(path.parent for path in (Path(__file__).parents[2] / "data").glob("*/datapackage.json"))
H200 = next(path for path in PUBLISHED if path.name == "h200")


@pytest.mark.long
@pytest.mark.parametrize("folder", [pytest.param(path, id=path.name) for path in PUBLISHED])
class TestPublished:
    def test_it_holds(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        assert program.main(["check", str(folder)]) == 0, capsys.readouterr().out
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"{folder}: holds: ")

    @pytest.mark.parametrize("library", standards.DOCUMENTS)
    def test_its_documents_are_valid(self, folder: Path, library: str):
        """With the first rows of the samples: to read all takes these libraries minutes, and `check` does."""
        done = standards.judged(library, folder, "samples", rows=2000)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
class TestLearned:
    """From the samples of batch 8 in float16 on an H200, of images below 224 pixels, by names of algorithms."""

    def test_layers_that_were_not_learned_are_predicted(self):
        frame = learnable()
        found = {each.by: each for each in evaluation.scores(frame, "time", ["layer"], {}) if not each.group}
        own, nearest = found[evaluation.PREDICTOR], found["nearest layer"]
        assert own.median_pct < 20
        assert own.mape_pct < 0.5 * nearest.mape_pct
        assert 80 < own.covered_pct < 98

    def test_the_same_samples_in_another_order_give_the_same_predictor(self):
        frame = learnable()
        frame = frame[frame["algorithm"].isin(["torch", "implicit precomp gemm"])]
        other = predictor.usable(frame.sample(frac=1.0, random_state=1), "time")
        one, two = (predictor.fit(each, "time", {}) for each in (predictor.usable(frame, "time"), other))
        assert [trees.text for trees in one.core.folds] == [trees.text for trees in two.core.folds]
        assert one.process == two.process
        assert one.widths == two.widths


def learnable() -> pd.DataFrame:
    every = samples.read([H200 / "samples.parquet"])
    some = (every["batch_size"] == 8) & (every["dtype"] == "float16") & (every["input_size"] < 224)
    return predictor.usable(every[some & ~every["algorithm"].str.startswith("plan:")], "time")
