"""Plans of shapes: asked of the real cuDNN for cards that are described, empty where that gives no answer."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.drawn_samples import measured

from convscope.cudnn import library
from convscope.cudnn.graph import devices
from convscope.cudnn.graph.engines import Offers
from convscope.cudnn.shape import Convolution
from convscope.dataset import columns, ranked_plans
from convscope.dataset.samples import SampleRow
from convscope.errors import CudnnError, CudnnMissingError

H100, H200 = sorted(devices.BY_NAME)
ROW = dataclasses.replace(
    measured(1, ("Tesla T4",))[0], gpu_name=H200, cudnn=library.version(), batch_size=8, in_channels=64,
    out_channels=128, in_height_px=56, in_width_px=56, math="tf32", algorithm="guess",
)  # fmt: skip
SHAPE = Convolution((8, 64, 56, 56), (128, 64, 3, 3), (1, 1), (1, 1), (1, 1))


def plans_of(row: SampleRow) -> str | None:
    return ranked_plans.filled([row])[0].ranked_plans


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_plans, "card_here", lambda: None)


@pytest.fixture
def no_cudnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(library.NAMED, str(tmp_path / "libcudnn.so.9"))
    library.library.cache_clear()
    yield
    library.library.cache_clear()


def test_they_are_those_that_compute_what_is_asked_for_in_cudnns_own_order():
    asked = dataclasses.replace(SHAPE, math="fp32")
    with Offers(asked) as offers:
        ranked = sorted((each for each in offers.plans() if "a" in each.ranks), key=lambda each: each.ranks["a"])
    right = [str(each.plan) for each in ranked if each.why_not_comparable(asked) is None]
    assert 1 < len(right) < len(ranked)
    assert plans_of(dataclasses.replace(ROW, math="fp32")) == ";".join(right)


@pytest.fixture
def offered_to_a_card(monkeypatch: pytest.MonkeyPatch) -> str:
    """The plans of `ROW`, of which the first engine is offered only where a card is."""
    monkeypatch.setattr(ranked_plans, "ranked", ranked_plans.ranked.__wrapped__)
    every = plans_of(ROW) or ""
    monkeypatch.setattr(ranked_plans, "OF_A_CARD", {int(every.partition(":")[0])})
    return every


def with_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_plans, "card_here", lambda: object())


def test_without_a_card_engines_that_are_offered_to_one_are_left_out(offered_to_a_card: str):
    found = ranked_plans.filled([ROW])[0]
    assert found.ranked_for == ranked_plans.DESCRIPTION
    assert found.ranked_plans == ranked_plans.without_card(offered_to_a_card) != offered_to_a_card


def test_with_a_card_they_are_in_the_list(offered_to_a_card: str, monkeypatch: pytest.MonkeyPatch):
    with_a_card(monkeypatch)
    found = ranked_plans.filled([ROW])[0]
    assert (found.ranked_for, found.ranked_plans) == (ranked_plans.CARD, offered_to_a_card)


def test_plans_that_were_asked_for_without_a_card_are_asked_for_again_where_one_is(monkeypatch: pytest.MonkeyPatch):
    known = dataclasses.replace(ROW, ranked_plans="7")
    assert ranked_plans.filled([known]) == [known]
    with_a_card(monkeypatch)
    other = dataclasses.replace(known, batch_size=9, ranked_for=ranked_plans.CARD)
    again, kept = ranked_plans.filled([known, other])
    assert (again.ranked_for, again.ranked_plans) == (ranked_plans.CARD, plans_of(ROW))
    assert kept.ranked_plans == "7"


def test_a_list_without_a_card_lacks_its_engines():
    assert ranked_plans.without_card("5;58:k25=0;67:k2=1;3:k11=2;0") == "67:k2=1;0"
    assert ranked_plans.without_card("58:k25=0") is None


def test_an_answer_that_fails_leaves_the_plans_that_are_known(monkeypatch: pytest.MonkeyPatch):
    with_a_card(monkeypatch)
    monkeypatch.setattr(ranked_plans, "ranked", lambda shape, name: None)
    known = dataclasses.replace(ROW, ranked_plans="7", ranked_for=ranked_plans.DESCRIPTION)
    assert ranked_plans.filled([known]) == [known]


@pytest.mark.parametrize("known", [None, "7;0"])
def test_a_shape_has_the_plans_that_another_sample_of_it_has_from_a_card(known: str | None):
    card = dataclasses.replace(ROW, ranked_plans="58:k25=0;7;0", ranked_for=ranked_plans.CARD)
    other = dataclasses.replace(ROW, algorithm="torch", run="another", ranked_plans=known)
    elsewhere = dataclasses.replace(other, batch_size=9)
    found = ranked_plans.filled([other, card, elsewhere])
    assert [row.ranked_plans == card.ranked_plans for row in found] == [True, True, False]
    assert [row.ranked_for == ranked_plans.CARD for row in found] == [True, True, False]


@pytest.mark.parametrize(
    ("said", "is_card", "closed"),
    [({"deviceName": H100}, True, 0), ({"deviceName": "Tesla T4"}, False, 1), (None, False, 1)],
)
def test_a_card_counts_where_cudnn_can_be_told_of_it(
    said: dict[str, object] | None, is_card: bool, closed: int, monkeypatch: pytest.MonkeyPatch
):
    contexts = list[object]()

    class Context:
        def close(self) -> None:
            contexts.append(self)

    def properties_of(handle: Context) -> dict[str, object]:
        if said is None:
            raise CudnnError("no description")
        return said

    monkeypatch.undo()
    monkeypatch.setattr(ranked_plans, "Handle", Context)
    monkeypatch.setattr(devices, "properties_of", properties_of)
    assert isinstance(ranked_plans.card_here.__wrapped__(), Context) == is_card
    assert len(contexts) == closed


def test_arithmetic_decides_which_plans_there_are():
    plain = plans_of(dataclasses.replace(ROW, math="fp32"))
    half = plans_of(dataclasses.replace(ROW, dtype="float16", layout="nhwc"))
    assert len({plans_of(ROW), plain, half} - {None}) == 3
    assert all(re.fullmatch(columns.BY_NAME["ranked_plans"].pattern, each or "") for each in (plain, half))


def test_both_cards_are_asked_about():
    assert plans_of(dataclasses.replace(ROW, gpu_name=H100)) == plans_of(ROW) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"cudnn": "8.9.7"},
        {"cudnn": None},
        {"gpu_name": "Tesla T4"},
        {"in_width_px": None},
        {"padding": None},
        {"kernel_size": "99x99"},
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_empty(changes: dict[str, object]):
    assert plans_of(dataclasses.replace(ROW, **changes)) is None  # type: ignore[arg-type]


def test_the_third_number_of_a_version_is_not_looked_at():
    series = ranked_plans.series(library.version())
    assert plans_of(dataclasses.replace(ROW, cudnn=f"{series}.99")) == plans_of(ROW)
    assert ranked_plans.same_as_here(["8.9.7", f"{series}.99", ""]) == f"{series}.99"


def test_the_reason_is_said_where_plans_are_not_known():
    assert ranked_plans.why_not(H200, [library.version()]) is None
    assert ranked_plans.why_not("Tesla T4", ["9.19.0"]) == f"cuDNN is only told of {H100}, {H200}"
    other = ranked_plans.why_not(H200, ["8.9.7"])
    assert other == f"cuDNN {library.version()} is here, the samples are of 8.9.7 (CONVSCOPE_CUDNN names another)"


def test_without_cudnn_nothing_is_known(no_cudnn: None):
    assert ranked_plans.here() is None
    assert plans_of(ROW) is None
    reason = ranked_plans.why_not(H200, ["9.19.0"]) or ""
    assert reason.startswith("cuDNN 9 cannot be loaded (")
    assert reason.endswith("): CONVSCOPE_CUDNN names it: let it name another, or unset it; the samples are of 9.19.0")


ASK = f"""
from convscope.cudnn.graph import devices
from convscope.cudnn.shape import Convolution
from convscope.dataset import columns, ranked_plans
print(ranked_plans.ranked(Convolution((8, 64, 56, 56), (128, 64, 3, 3), (1, 1), (1, 1), (1, 1)), {H200!r}))
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """PyTorch's cuDNN by a path from which it does not find the cuBLASLt that lies beside it."""
    own = Path(library._library_path())
    folder = tmp_path / "cudnn" / "lib"
    folder.mkdir(parents=True)
    for file in own.parent.glob("libcudnn*"):
        (folder / file.name).symlink_to(file)
    return folder / own.name


def test_a_cudnn_that_lies_alone_is_given_pytorchs_cublaslt(elsewhere: Path):
    named = {**os.environ, library.NAMED: str(elsewhere)}
    asked = subprocess.run([sys.executable, "-c", ASK], env=named, capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stdout.strip()) == (0, plans_of(ROW)), asked.stderr


def test_a_cublaslt_beside_cudnn_comes_first(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    beside, loaded = elsewhere.parent / "libcublasLt.so.99", list[str]()
    monkeypatch.setattr(library, "_cublaslt_of", lambda engines: beside.name)
    monkeypatch.setattr(library.ctypes, "CDLL", loaded.append)
    library._load_cublaslt(elsewhere)
    assert loaded == [str(beside)]


def test_without_cublaslt_it_is_one_line(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "_cublaslt_of", lambda engines: "libcublasLt.so.99")
    with pytest.raises(CudnnMissingError, match=r"libcudnn.so.9 needs libcublasLt.so.99, which is not found: "):
        library._load_cublaslt(elsewhere)
