"""Pages of invented and of measured results, and one Chromium for all tests of a module."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import commands, reports, tiny

import run_profile
from convscope.report import command, folders, page
from convscope.report.exhibits import Content, content

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write folders of all studies; return the folder that holds them."""
    return reports.every(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def found(results: Path) -> Content:
    """Return what is shown of them."""
    return content(folders.read([results]))


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profile a small model on the CPU by two algorithms; return the folder that holds the runs."""
    root = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patched:
        tiny.register(patched)
        for algorithm in ("direct", "torch"):
            asked = ["--model", tiny.NAME, "--algorithm", algorithm, *commands.FAST, "--num-sizes", "2"]
            assert run_profile.main([*asked, "--output-dir", str(root / algorithm)]) == 0
    return root


BUNDLE = page.Bundle


@functools.cache
def script() -> str:
    """Return the charts' script."""
    with BUNDLE() as bundle:
        return bundle.text()


class KeptBundle:
    """The charts' script, made once for all pages: it is the same in each and takes a second."""

    def __enter__(self) -> KeptBundle:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def text(self) -> str:
        """Return the script."""
        return script()


@pytest.fixture(scope="session", autouse=True)
def kept_bundle() -> Iterator[None]:
    """Have all pages but that of `page_file` take the kept script."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "Bundle", KeptBundle)
        yield


def written(tmp_path_factory: pytest.TempPathFactory, *roots: Path) -> Path:
    """Write the page of some folders by the command; return the file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    assert command.main([*map(str, roots), "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory, results: Path, measured: Path) -> Path:
    """Write the page of invented and measured results, with a script of its own; return the file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "Bundle", BUNDLE)
        return written(tmp_path_factory, results, measured)


@pytest.fixture(scope="session")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of results whose names are an attack; return the file."""
    return written(tmp_path_factory, reports.hostile(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """Start a browser; skip, with the reason, where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: make browser installs Debian's")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
