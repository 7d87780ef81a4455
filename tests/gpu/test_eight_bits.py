"""Convolutions of 8-bit integers on a GPU: the integers that PyTorch computes, by every block shape, and in a graph."""

from __future__ import annotations

import pytest
import torch
import torchvision

from convscope.convolution.fusion import graphs as fusion
from convscope.failures import is_kernel_refusal
from convscope.inference import agreement, pictures, weights
from convscope.inference.engines.eight_bits import layers
from convscope.inference.engines.fused import steps
from convscope.kernels.channels_last.windows import Window
from convscope.kernels.eight_bits import convolution, numbers
from convscope.timing import graphs

CAPABILITY = (9, 0)
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < CAPABILITY, reason="tensor descriptors of Hopper"
)


def drawn(*size: int) -> torch.Tensor:
    x = torch.randn(size, device="cuda", dtype=torch.float16)
    return x.contiguous(memory_format=torch.channels_last) if len(size) == 4 else x


@pytest.mark.parametrize("elements", [1, 4096, 100_001])
def test_numbers_become_what_pytorch_rounds_them_to(elements: int):
    x = drawn(elements)
    assert torch.equal(numbers.to_eight_bits(x, 0.02), numbers.rounded(x, 0.02))


@pytest.mark.parametrize(
    ("size", "filters", "side", "stride", "padding"),
    [
        ((3, 64, 56, 56), 256, 1, 1, 0),
        ((1, 2048, 7, 7), 512, 1, 1, 0),
        ((5, 256, 28, 28), 512, 1, 2, 0),
        ((3, 128, 28, 30), 128, 3, 1, 1),
        ((2, 96, 14, 13), 64, 3, 1, 1),
        ((4, 128, 56, 56), 128, 3, 2, 1),
        ((1, 512, 14, 14), 512, 3, 2, 1),
        ((2, 32, 20, 12), 64, 7, 2, 3),
    ],
)
@pytest.mark.parametrize(("kind", "adds", "is_int8"), [("relu", True, True), ("", False, True), ("relu", False, False)])
def test_every_block_shape_computes_pytorchs_integers(
    size: tuple[int, ...], filters: int, side: int, stride: int, padding: int, kind: str, adds: bool, is_int8: bool
):
    torch.manual_seed(0)
    where = Window((side, side), (stride, stride), (padding, padding), (1, 1))
    x, weight = drawn(*size), drawn(filters, size[1], side, side) / (size[1] * side**2) ** 0.5
    assert convolution.takes(weight, where, kind)
    step = numbers.step_of(x)
    kernel = convolution.Convolution8(weight, drawn(filters), where, kind, step, 0.03, 0.05 if is_int8 else None)
    x8 = numbers.to_eight_bits(x, step)
    added = numbers.to_eight_bits(drawn(size[0], filters, *kernel.size(x8)), 0.03) if adds else None
    assert kernel.is_for(x8, added)
    exact = kernel.exactly(x8, added)
    every = kernel.candidates(x8, 4)
    fitting = 0
    for blocks in every:
        try:
            y = kernel(x8, added, blocks)
        except Exception as error:
            if not is_kernel_refusal(error):  # of more shared memory than a multiprocessor has
                raise
            continue
        fitting += 1
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert (y.dtype, y.shape) == (exact.dtype, exact.shape)
        if is_int8:
            assert (y.int() - exact.int()).abs().max() <= 1, blocks
            assert (y != exact).double().mean() < 1e-4, blocks
        else:
            torch.testing.assert_close(y, exact, rtol=1e-3, atol=1e-3)
    assert fitting > len(every) / 2


def test_a_resnet_in_8_bits_agrees_as_its_roundings_allow_at_each_replay():
    network = torchvision.models.resnet18().eval()
    weights.draw(network, pictures.scenes(8, 224, 5), seed=0)
    images = [pictures.scenes(8, 224, seed) for seed in (1, 2)]
    with torch.inference_mode():
        judge = agreement.judged(network, images[0], [], "int8", "fp32")
        exact = [network(each).double() for each in images]
        model, _ = fusion.fused(fusion.folded(network)[0], steps.step_of)
        model = model.half().cuda().to(memory_format=torch.channels_last)

        def on_gpu(each: torch.Tensor) -> torch.Tensor:
            return each.cuda().half().contiguous(memory_format=torch.channels_last)

        assert layers.with_eight_bits(model, on_gpu(pictures.scenes(32, 224, 3))) == (19, 20)
        given = on_gpu(images[0])
        results: list[torch.Tensor] = []

        def step() -> None:
            results[:] = [model(given)]

        with graphs.capture(step) as captured:
            for which in (1, 0, 1):
                given.copy_(images[which])
                captured.replay()
                torch.cuda.synchronize()
                assert 0.005 < judge.error(results[0].cpu(), exact[which]) < judge.allowed
