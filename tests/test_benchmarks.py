"""Benchmarks on a machine without a GPU: those that need one say so."""

from __future__ import annotations

import runpy
import sys

import pytest
from fakes import ROOT


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["branches", "channels_last", "fidelity", "kernels", "second_context"])
def test_a_benchmark_that_needs_a_gpu_says_so(name: str, monkeypatch: pytest.MonkeyPatch):
    main = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))["main"]
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(Exception, match=f"PyTorch sees 0 CUDA devices here; {name}.py times a GPU$"):
        main()
