"""Parts that the time of a convolution is a sum of whose threads each compute an output: engine 0 of cuDNN.

A thread adds up the terms of its output one after another. A multiprocessor has 1,024 threads at once: with more
outputs than the card has threads, they are computed in rounds. So 2,000 outputs take as long as 100,000.

Source: the times of plan 0 on an H200 and an H100, by the kernel `conv2d_grouped_direct_kernel` (data/).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convscope.prediction.shapes.parts import Parts, Rates
from convscope.prediction.shapes.sizes import Sizes

THREADS = 1024
"""Of a multiprocessor at once."""


def parts_ms(sizes: Sizes, is_threaded: npt.NDArray[np.bool_], rates: Rates) -> Parts:
    """Return the parts of each row: channels and terms of a sum, in rounds; 0 for rows of other engines."""
    rounds = sizes.pixels * sizes.filters / (rates.multiprocessors * THREADS)
    found = {}
    for name, count in (("rounds", rounds), ("whole rounds", np.ceil(rounds))):
        found[f"channels in {name}"] = count * sizes.channels / sizes.groups
        found[f"terms in {name}"] = count * sizes.terms
    return {name: np.where(is_threaded, value, 0.0) for name, value in found.items()}
