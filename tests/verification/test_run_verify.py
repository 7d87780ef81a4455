"""The command line that proves which algorithm ran, on a CPU."""

from __future__ import annotations

import types

import pytest
import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from triton.runtime.errors import OutOfResources

import run_verify
from convscope import failures
from convscope.convolution import models


@pytest.mark.parametrize("algorithm", ["direct", "smm"])
def test_ai3_on_a_cpu_is_confirmed_by_names_and_outputs(algorithm: str, capsys: pytest.CaptureFixture[str]):
    code = run_verify.main(["--model", "alexnet", "--algorithm", algorithm, "--device", "cpu", "--input-size", "64"])
    printed = capsys.readouterr().out.splitlines()
    assert code == 0
    assert printed[0] == f"alexnet, {algorithm}, 64 px, batch 1, fp32, on a CPU"
    assert printed[1] == "✓ replaced: 5 of 5 convolutions carry the algorithm's name"
    assert printed[2] == f"✓ identifier: 5 layers ran ai3's {algorithm}"
    assert printed[3] == "· kernels: not checked, a CPU launches none"
    assert printed[4].startswith("✓ layers against float64: 5 of 5 within their tolerance")
    assert printed[5].startswith("✓ whole model against float64: ")
    assert printed[-1] == "CONFIRMED (by names, identifiers and outputs; kernels were not checked)"


def test_a_layer_that_computes_something_else_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    exact = SwappedConv2d.forward
    monkeypatch.setattr(SwappedConv2d, "forward", lambda module, given: exact(module, given) * 1.001)
    code = run_verify.main(["--model", "alexnet", "--algorithm", "direct", "--device", "cpu", "--input-size", "64"])
    printed = capsys.readouterr().out.splitlines()
    assert code == 1
    assert printed[4].startswith("✗ layers against float64: 0 of 5 within their tolerance")
    assert printed[5].startswith("✗ whole model against float64: ")
    assert printed[-1] == "NOT CONFIRMED"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--algorithm", "torch"],
            "nothing to verify; run_verify.py --plans names the plan that PyTorch picked for each",
        ),
        (["--algorithm", "gemm"], "gemm needs a CUDA device"),
        (["--algorithm", "gem"], "unknown algorithm 'gem': choose one of "),
        (["--algorithm", "direct", "--input-size", "3"], "alexnet cannot take 3×3 images"),
        (["--algorithm", "heuristic a"], "heuristic a needs a CUDA device"),
        (["--algorithm", "autotune"], "autotune needs a CUDA device"),
        (
            ["--algorithm", "planned"],
            "planned, and no other algorithm, takes the plans of a document: --algorithm-file FILE",
        ),
        (["--algorithm-file", "no.json"], "no.json cannot be read ("),
        (["--algorithm", "plan:38:k2=8"], "plan:38:k2=8 needs a CUDA device"),
        (["--algorithm", "plan:38:2=8"], "'38:2=8' is no plan: write an engine and its knobs"),
        (["--plans", "--minutes", "-1"], "argument --minutes: invalid number of minutes value: '-1'"),
        (["--plans", "--minutes", "nan"], "argument --minutes: invalid number of minutes value: 'nan'"),
        (["--plans"], "--plans times cuDNN's plans on a GPU: there is none here, or --device names the CPU"),
        ([], "one of the arguments --algorithm --algorithm-file --support --choice --plans --first-call is required"),
    ],
)
def test_what_cannot_be_verified_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = run_verify.main(["--model", "alexnet", "--device", "cpu", *arguments])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("run_verify.py: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("model", ["alexnet", "all"])
@pytest.mark.parametrize(
    ("question", "advice"),
    [
        (["--plans"], "--with-algorithms times those of a CPU"),
        (["--support"], "what the rules say is in run_profile.py --list-algorithms"),
        (["--plans", "--with-algorithms"], "--device cpu measures on the CPU"),
        (["--choice"], "--device cpu measures on the CPU"),
    ],
)
def test_without_a_gpu_a_question_is_answered_with_what_is_right_for_it(
    model: str, question: list[str], advice: str, capsys: pytest.CaptureFixture[str]
):
    assert run_verify.main(["--model", model, "--device", "cuda", *question]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("run_verify.py: --device cuda: PyTorch sees 0 CUDA devices here; ")
    assert line.endswith(advice)


@pytest.mark.parametrize(
    ("question", "ignored"),
    [
        (["--choice"], ["--provider", "triton"]),
        (["--choice"], ["--max-workspace", "nonsense"]),
        (["--choice"], ["--unsupported", "error"]),
        (["--support"], ["--provider", "cudnn"]),
        (["--support"], ["--unsupported", "skip"]),
        (["--support"], ["--rounds", "5"]),
        (["--support"], ["--minutes", "5"]),
        (["--choice"], ["--minutes", "5"]),
        (["--plans"], ["--provider", "cudnn"]),
        (["--plans"], ["--unsupported", "skip"]),
        (["--choice"], ["--any-card"]),
        (["--plans"], ["--max-workspace", "1GB"]),
        (["--algorithm", "direct"], ["--minutes", "5"]),
        (["--algorithm", "direct"], ["--max-workspace", "nonsense"]),
        (["--algorithm", "direct"], ["--rounds", "5"]),
        (["--algorithm", "direct"], ["--overwrite"]),
        (["--algorithm", "direct"], ["--output-dir", "somewhere"]),
    ],
)
def test_an_option_that_has_no_effect_is_refused_even_with_its_default(
    question: list[str], ignored: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        run_verify.main(["--model", "alexnet", "--device", "cpu", *question, *ignored])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"run_verify.py: {question[0]} makes no use of {ignored[0]}: leave it out (--help lists the options)\n"
    )


@pytest.mark.parametrize(("codes", "whole", "asked"), [([0, 1, 0, 0, 0, 0], 1, 6), ([0, 2], 2, 2), ([0] * 6, 0, 6)])
def test_on_a_gpu_each_of_all_models_has_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, codes: list[int], whole: int, asked: int
):
    commands: list[list[str]] = []

    def ran(command: list[str], check: bool) -> types.SimpleNamespace:
        commands.append(command)
        return types.SimpleNamespace(returncode=codes[len(commands) - 1])

    monkeypatch.setattr(run_verify, "find_device", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(run_verify.subprocess, "run", ran)
    assert run_verify.main(["--model", "all", "--choice"]) == whole
    assert len(commands) == asked
    last = run_verify.parser().parse_args(commands[-1][2:])
    assert (last.model, last.choice) == (models.MODELS[asked - 1], True)


@pytest.mark.parametrize("question", [["--algorithm", "direct"], ["--choice"]])
def test_a_kernel_that_does_not_fit_the_card_is_one_line(
    question: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    refusal = OutOfResources(300_000, 232_448, "shared memory")

    def refuse(*arguments: object) -> None:
        raise refusal

    monkeypatch.setattr(run_verify, "_verify", refuse)
    monkeypatch.setattr(run_verify, "_tabulate", refuse)
    assert run_verify.main(["--model", "alexnet", "--device", "cpu", *question]) == 1
    assert capsys.readouterr().err == f"run_verify.py: alexnet: unsupported: {refusal}\n"


def test_a_lost_gpu_ends_with_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def lose(*arguments: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(run_verify, "_verify", lose)
    monkeypatch.setattr(failures, "device_fault", lambda device: "ECC")
    assert run_verify.main(["--model", "alexnet", "--device", "cpu", "--algorithm", "direct"]) == 70
    assert capsys.readouterr().err.startswith("run_verify.py: alexnet: the GPU is lost (ECC)")
