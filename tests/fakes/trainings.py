"""A training study that takes the least time: three steps of a small network on noise."""

from __future__ import annotations

import dataclasses
from typing import Any

from convscope.training.request import Training, check

SMALL = "torchvision:squeezenet1_1"
ASKED = Training(models=(SMALL,), batch_sizes=(4,), gpu="cpu", stem="imagenet", math="fp32", dataset="synthetic",
                 skipped_steps=1, max_steps=3)  # fmt: skip


def asked(**changes: Any) -> Training:
    """Return the request, but for the changes, checked."""
    return check(dataclasses.replace(ASKED, **changes))
