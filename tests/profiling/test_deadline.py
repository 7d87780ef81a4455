"""The end of a job, and the sizes that are not begun before it."""

from __future__ import annotations

import pytest

from convscope.errors import InputError
from convscope.profiling.deadline import Deadline, read_end_s


def ok(size: int, wall_s: float) -> dict[str, str]:
    return {"input_size": str(size), "status": "ok", "wall_s": str(wall_s)}


def test_a_size_takes_as_long_as_its_neighbours_say():
    deadline = Deadline(None, [ok(100, 2.0), ok(200, 5.0), ok(400, 9.0), ok(150, 3.0) | {"status": "oom"}])
    assert deadline.expected_s(200) == 5.0
    assert deadline.expected_s(120) == 5.0  # at most as long as a larger one
    assert deadline.expected_s(360) == pytest.approx(5.0 * 1.8**2)  # more than the larger one: the safe side
    assert deadline.expected_s(800) == pytest.approx(36.0)
    assert deadline.expected_s(50) == 2.0


def test_a_size_that_cannot_end_in_time_is_named_with_both_times():
    deadline = Deadline(1000.0, clock=lambda: 900.0)
    assert deadline.missed_by(224) is None  # nobody knows how long it takes
    deadline.learn(224, 60.0)
    assert deadline.missed_by(224) is None
    assert deadline.missed_by(448) == "448 px takes about 240 s, and the job ends in 100 s"


def test_the_time_that_ending_takes_is_kept_free():
    deadline = Deadline(100.0, [ok(224, 60.0)], clock=lambda: 20.0)
    assert deadline.missed_by(224) is not None
    assert Deadline(110.0, [ok(224, 60.0)], clock=lambda: 20.0).missed_by(224) is None


def test_without_an_end_every_size_is_begun():
    assert read_end_s({}) is None
    assert read_end_s({"CONVSCOPE_END_S": ""}) is None
    assert Deadline(None, [ok(224, 1e9)]).missed_by(224) is None


def test_an_end_that_is_no_time_is_refused():
    assert read_end_s({"CONVSCOPE_END_S": "1793000000"}) == 1793000000.0
    with pytest.raises(InputError, match="CONVSCOPE_END_S is 'tomorrow': give seconds since 1970"):
        read_end_s({"CONVSCOPE_END_S": "tomorrow"})
