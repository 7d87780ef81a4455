"""Options that have no effect beside others: refused on one line by every command."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import run_inference
import run_profile
import run_training

PROFILE = ["--model", "alexnet", "--algorithm", "torch", "--device", "cpu"]


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (run_profile.main, [*PROFILE, "--models", "vgg16"], "a profile makes no use of --models: leave it out"),
        (
            run_profile.main,
            [*PROFILE, "--no-energy", "--energy-budget", "5", "--energy-warmup", "0.2"],
            "--no-energy makes no use of --energy-warmup, --energy-budget: leave them out",
        ),
        (
            run_profile.main,
            ["--study", "x.toml", "--dtype", "float16", "--layout", "nchw", "--model-args", "width=2"],
            "--study makes no use of --model-args, --dtype, --layout: leave them out",
        ),
        (
            run_profile.main,
            ["--list-combinations", "--batch-sizes", "1,8", "--model-args", "width=2"],
            "--list-combinations makes no use of --model-args, --batch-sizes: leave them out",
        ),
        (
            run_profile.main,
            ["--list-algorithms", "--device", "cpu"],
            "--list-algorithms makes no use of --device: leave it out",
        ),
        (
            run_profile.main,
            ["--list-algorithms", *PROFILE, "--quick"],
            "--list-algorithms makes no use of --algorithm, --quick: leave them out",
        ),
        (
            run_profile.main,
            ["--list-algorithms", "--model", "alexnet", "--input-size", "320", "--input-shape", "48x64"],
            "--input-size makes no use of --input-shape: leave it out",
        ),
        (
            run_profile.main,
            ["--list-combinations", "--input-size", "320", "--input-range", "64", "96"],
            "--input-size makes no use of --input-range: leave it out",
        ),
        (
            run_profile.main,
            ["--list-combinations", "--model", "alexnet", "--estimate"],
            "--list-combinations makes no use of --model, --estimate: leave them out",
        ),
        (
            run_profile.main,
            ["--study", "x.toml", "--list-combinations", "--overwrite"],
            "--list-combinations makes no use of --overwrite: leave it out",
        ),
        (
            run_profile.main,
            ["--list-models", "--check-cuda", "--gpu", "h200"],
            "--list-models with --check-cuda makes no use of --gpu: leave it out",
        ),
        (run_inference.main, ["--slo-ms", "15"], "--scenario batch makes no use of --slo-ms: leave it out"),
        (
            run_inference.main,
            ["--scenario", "single-stream", "--batch-sizes", "1"],
            "--scenario single-stream makes no use of --batch-sizes: leave it out",
        ),
        (run_training.main, ["--data-dir", "data"], "--dataset digits makes no use of --data-dir: leave it out"),
    ],
)
def test_an_option_without_effect_is_refused(
    main: Callable[[list[str]], int], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f": {said} (" in printed.err
    assert printed.err.count("\n") == 1
