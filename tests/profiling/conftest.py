"""A model of three convolutions for what does not depend on the model: AlexNet's 61 million weights take a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fakes import tiny
from fakes.commands import Printed

import run_profile


@pytest.fixture(scope="module", autouse=True)
def tiny_model() -> Iterator[None]:
    """Have `torchvision:tiny` among the models."""
    with pytest.MonkeyPatch.context() as patched:
        tiny.register(patched)
        yield


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Return the command line as a function of its words."""

    def main(*arguments: str) -> Printed:
        capsys.readouterr()
        try:
            code: object = run_profile.main(list(arguments))
        except SystemExit as ended:
            code = ended.code
        return Printed(code, *capsys.readouterr())

    return main
