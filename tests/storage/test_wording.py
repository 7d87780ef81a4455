"""Earlier texts of `timing_method`: each has its present text, which stays as it is."""

from __future__ import annotations

import pytest

from convscope.dataset import samples
from convscope.storage import wording
from convscope.timing import eager, graphs, stopwatch


def test_the_present_texts_are_those_that_are_written_now():
    written = {graphs.REPLAY_METHOD, eager.HIDDEN_METHOD, eager.INCLUDED_METHOD, stopwatch.LAUNCHED_METHOD}
    assert {*wording.PRESENT.values()} == {*written, samples.IN_A_PASS, "one time, as published"}


@pytest.mark.parametrize(("earlier", "now"), wording.PRESENT.items())
def test_an_earlier_text_has_its_present_one_with_what_stands_behind_it(earlier: str, now: str):
    assert wording.present(earlier) == now
    assert wording.present(now) == now
    assert wording.present(f"{earlier}; {earlier}{graphs.OVERFULL}") == f"{now}; {now}{graphs.OVERFULL}"


def test_no_method_stays_none():
    assert wording.present(None) is None
