"""Fixtures of all tests: hypothesis without a clock and without chance, and a machine whose GPUs are out of sight.

By default a test that draws examples draws a few; with `-m long` or `-m gpu` it draws all. `-m long` therefore runs
those tests too, beside the ones that are marked.

Without a GPU PyTorch's compiler writes plain C++ and starts no processes: else most of its time goes into those, and
into finding out which vector instructions there are.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

if not os.path.exists("/dev/nvidiactl"):
    # Read when torch is imported, here and in the processes that tests start; a patch of its config ends at the thread.
    os.environ |= {
        "TORCHINDUCTOR_VEC_ISA_OK": "0",
        "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }

from gpu import card

os.environ |= card.choice()  # PyTorch reads it once, when anything asks for a GPU

import pytest
import torch
from fakes.killing import Victims, clock_shim, mount_namespaces
from hypothesis import settings

_frozen: Path | None = None  # the module whose tests run now
settings.register_profile("all", deadline=None, derandomize=True, max_examples=40, database=None)
settings.register_profile("few", settings.get_profile("all"), max_examples=8)


def _asks_for(marker: str, config: pytest.Config) -> bool:
    return re.search(rf"(?<!not )\b{marker}\b", config.option.markexpr) is not None


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples are drawn, before any test is collected; collect garbage as rarely as commands do."""
    gc.set_threshold(50_000)
    # Ignored in the background and under nohup, and what tests start would inherit that: they test these signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    settings.load_profile("all" if _asks_for("long", config) or _asks_for("gpu", config) else "few")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `-m long`, have tests with drawn examples selected as well."""
    if _asks_for("long", config):
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and item.path.parent.name != "gpu":
                item.add_marker("long")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before a module's first test, have collections of garbage pass over what is there: runs ask for many."""
    global _frozen
    if item.path != _frozen:
        _frozen = item.path
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """One server for the runs that tests kill, take the disk away from, or set the clock of."""
    with Victims(namespace=mount_namespaces(), **clock_shim(tmp_path_factory.mktemp("clock"))) as made:
        yield made


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make PyTorch see no CUDA device, on a machine that has one too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
