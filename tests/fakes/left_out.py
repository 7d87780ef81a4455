"""Rows that a fitted process leaves out, judged by a process that never had them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from convscope.prediction.features import features
from convscope.prediction.learners import process
from convscope.prediction.learners.process import Process
from convscope.prediction.shapes.sizes import Floats


def assert_missed_as_by(alone: Process, frame: pd.DataFrame, wanted: Floats) -> None:
    """Assert that a fit to samples twice, which leaves out the second ones, misses what a fit to the first ones does.

    Args:
        alone: fitted to the samples with the first half of `wanted`, whose mean is that of the second.
        wanted: of the samples, twice; a third of the second ones are judged.
    """
    twice = pd.concat([frame, frame], ignore_index=True)
    out = np.arange(len(twice)) >= len(frame)
    judged = out & (np.arange(len(twice)) % 3 == 0)
    rests = process.fit(features(twice, {}), twice, wanted, {}, [(judged, out)]).rests[0]
    expected = wanted - alone.predict(features(twice, {}), twice)
    assert np.isfinite(rests).tolist() == judged.tolist()
    np.testing.assert_allclose(rests[judged], expected[judged], atol=1e-6)
