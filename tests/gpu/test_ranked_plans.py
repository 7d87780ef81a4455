"""Plans that cuDNN ranks for a described card, in processes that have a card and in such that have none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fakes import ROOT

from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Mode, Offers
from convscope.cudnn.legacy import Handle
from convscope.cudnn.shape import Convolution
from convscope.dataset import ranked_plans

SHAPES = [
    Convolution((8, 64, 56, 56), (128, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", "fp32"),
    Convolution((8, 64, 56, 56), (128, 64, 1, 1), (0, 0), (1, 1), (1, 1), 1, "float32", "tf32"),
    Convolution((8, 64, 56, 56), (64, 1, 3, 3), (1, 1), (1, 1), (1, 1), 64, "float16", "tf32", "nhwc"),
    Convolution((8, 64, 56, 56), (128, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1, "float16", "tf32", "nhwc"),
]
ASK = """
import json
from convscope.cudnn.shape import Convolution, Fused
from convscope.dataset import ranked_plans
print(json.dumps([bool(ranked_plans.card_here()), *(ranked_plans.ranked(each, {name!r}) for each in {shapes!r})]))
"""


def asked(name: str, **environment: str) -> list[object]:
    """Return of a fresh process whether it has a card, and its plans of a described one."""
    code = ASK.format(name=name, shapes=SHAPES)
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    found: list[object] = json.loads(ran.stdout)
    return found


@pytest.fixture(autouse=True)
def handle() -> Handle:
    """The context of a card that cuDNN can be told of."""
    found = ranked_plans.card_here()
    return found or pytest.skip("cuDNN cannot be told of this card")


def test_a_described_card_is_offered_what_the_card_itself_is(handle: Handle):
    has_card, *found = asked(str(devices.properties_of(handle)["deviceName"]))
    for shape, plans in zip(SHAPES, found, strict=True):
        with Offers(shape, handle) as offers:
            of_card = [str(each.plan) for each in offers.of_mode(Mode.A) if not each.why_not_comparable(shape)]
        assert plans == ";".join(of_card)
    assert has_card
    engines = {int(plan.partition(":")[0]) for plans in found for plan in str(plans).split(";")}
    assert engines >= ranked_plans.OF_A_CARD


@pytest.mark.parametrize("name", sorted(devices.BY_NAME))
def test_without_a_card_lists_are_the_same_but_for_its_engines(name: str):
    with_one, without = asked(name), asked(name, CUDA_VISIBLE_DEVICES="")
    assert (with_one[0], without[0]) == (True, False)
    assert without[1:] == [ranked_plans.without_card(str(plans)) for plans in with_one[1:]]
