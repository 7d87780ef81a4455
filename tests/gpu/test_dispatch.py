"""A swapped layer that runs its plan past PyTorch's dispatcher: bit for bit what `ai3::conv2d` gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ai3.swap_torch
import pytest
import torch
from torch import nn

from convscope.convolution import algorithms, backends, swap
from convscope.convolution.operator import cuda_operator
from convscope.errors import InputError, NotSupportedError
from convscope.timing import graphs

OF_CUDNN = [name for name, found in algorithms.ALGORITHMS.items() if "cudnn" in found.cuda_providers]
BY_OPERATOR = ai3.swap_torch.Conv2D.forward  # ai3's own way
LAYERS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 1, "bias": False},
    {"kernel_size": 5, "padding": 2, "bias": False},
    {"kernel_size": 3, "stride": 2, "groups": 4},
    {"kernel_size": (1, 7), "padding": (0, 3)},
]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode(), backends.math("fp32"), backends.settings(provider="cudnn"):
        yield
    cuda_operator().release()


def convolution(algorithm: str = "implicit precomp gemm", device: str = "cuda", **options: Any) -> Any:
    """Return a swapped convolution with 16 channels in and 32 out."""
    torch.manual_seed(0)
    with torch.inference_mode(False):
        conv = nn.Conv2d(16, 32, **({"kernel_size": 3, "padding": 1} | options)).to(device)
    model = nn.Sequential(conv)
    swap.Swap(model).apply({"0": algorithm})
    return model[0]


def images(*size: int, device: str = "cuda") -> torch.Tensor:
    return torch.randn(size or (2, 16, 40, 33), device=device)


def directly(module: swap.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return the layer's output; fail where it came through the operator."""
    output = module._direct.run(module, x, module.weight, module.bias)
    assert output is not None, "the call would go through ai3::conv2d"
    return output


def agree(module: swap.Conv2d, x: torch.Tensor) -> bool:
    """Tell whether both ways give the same tensor: its bits, its strides and its kind."""
    one, two, three = directly(module, x), module(x), BY_OPERATOR(module, x)
    alike = [(y.shape, y.stride(), y.dtype, y.device, y.is_inference()) for y in (one, two, three)]
    return alike[0] == alike[1] == alike[2] and torch.equal(one, three) and torch.equal(two, three)


@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("algorithm", OF_CUDNN)
def test_both_ways_agree_or_both_are_refused(algorithm: str, options: dict, math: str):
    module, x = convolution(algorithm, **options), images()
    with backends.math(math):
        try:
            BY_OPERATOR(module, x)
        except NotSupportedError:
            for _ in range(2):
                with pytest.raises(NotSupportedError):
                    module(x)
            return
        assert agree(module, x)


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_both_ways_agree_with_the_triton_kernels(algorithm: str):
    module, x = convolution(algorithm), images()
    with backends.settings(provider="triton"):
        assert agree(module, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_both_ways_agree_in_other_types(dtype: torch.dtype):
    module, x = convolution(), images()
    assert agree(module, x)
    module.to(dtype)
    assert agree(module, x.to(dtype))


def test_both_ways_agree_however_the_input_lies_and_in_both_layouts():
    module, x = convolution(), images()
    for layout in ("nchw", "nhwc", "nchw"):
        with backends.settings(layout=layout):
            for given in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2]):
                assert agree(module, given)


def test_both_ways_agree_after_a_release():
    module, x = convolution(), images()
    for _ in range(3):
        assert agree(module, x)
        cuda_operator().release()


def test_both_ways_agree_when_settings_and_sizes_take_turns():
    module, small, large = convolution(kernel_size=5), images(1, 16, 20, 20), images(3, 16, 40, 40)
    sums = []
    for math in ("fp32", "tf32", "fp32"):
        for layout in ("nchw", "nhwc"):
            with backends.math(math), backends.settings(layout=layout):
                assert agree(module, small)
                assert agree(module, large)
        sums.append(module(large).double().sum())
    assert sums[0] == sums[2]


def test_an_input_without_a_batch_goes_through_the_operator():
    module, x = convolution(), images(16, 20, 20)
    assert module._direct.run(module, x, module.weight, module.bias) is None
    assert torch.equal(module(x), BY_OPERATOR(module, x))
    assert module(x).shape == (32, 20, 20)


@pytest.fixture
def _no_grad() -> Iterator[None]:
    """Leave the inference mode, whose tensors a parameter does not take."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@pytest.mark.usefixtures("_no_grad")
def test_new_weights_are_used_however_they_come():
    module, x = convolution(), images()
    before = directly(module, x)
    module.load_state_dict({name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()})
    assert agree(module, x)
    assert not torch.equal(module(x), before)
    other = {name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()}
    module.load_state_dict(other, assign=True)
    assert agree(module, x)
    assert module.weight.data_ptr() == other["weight"].data_ptr()
    module.weight.data = torch.randn(24, 16, 3, 3, device="cuda")
    module.bias = None
    assert agree(module, x)
    assert module(x).shape[1] == 24
    module.weight = nn.Parameter(torch.randn(8, 16, 1, 1, device="cuda"))
    assert agree(module, x)
    assert module(x).shape[1] == 8


@pytest.mark.usefixtures("_no_grad")
def test_weights_of_another_type_or_device_are_refused():
    module, x = convolution(), images()
    good = module.weight.data
    for bad in (good.half(), good.cpu(), good[:, :8].contiguous()):
        directly(module, x)
        module.weight.data = bad
        with pytest.raises(InputError, match=r"of this convolution is|does not convolve"):
            module(x)
        module.weight.data = good
    assert agree(module, x)


def test_nothing_but_the_output_is_kept():
    module, x = convolution("winograd nonfused", kernel_size=3, padding=1), images(8, 16, 64, 64)
    directly(module, x)
    assert module._direct._found.plan().workspace_bytes > 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = directly(module, x)
    assert torch.cuda.memory_allocated() - before == y.nbytes


def test_a_graph_of_a_direct_call_computes_on_what_its_input_holds_at_replay():
    module, x = convolution(), torch.zeros(1, 16, 64, 64, device="cuda")
    outputs: list[torch.Tensor] = []
    with graphs.capture(lambda: outputs.append(directly(module, x))) as captured:
        x.normal_()
        captured.replay()
        torch.cuda.synchronize()
        assert torch.equal(outputs[-1], BY_OPERATOR(module, x))


def test_the_work_goes_to_the_current_stream():
    module, x = convolution(), torch.zeros(1, 16, 64, 64, device="cuda")
    directly(module, x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1.0)
        output = directly(module, x)
    stream.synchronize()
    assert torch.equal(output, BY_OPERATOR(module, x))


@pytest.mark.usefixtures("_no_grad")
@pytest.mark.filterwarnings("ignore")  # what the compiler warns of is not ours
def test_a_compiled_model_calls_the_operator_and_agrees():
    torch._dynamo.reset()
    module, x = convolution(), images()
    model, found = nn.Sequential(module, nn.ReLU()), list[object]()

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    eager = model(x)
    assert torch.equal(torch.compile(model, backend=keep, fullgraph=True)(x), eager)
    assert torch.equal(torch.compile(model, backend="inductor", fullgraph=True)(x), eager)
    assert torch.ops.ai3.conv2d in found


def test_threads_on_streams_of_their_own_agree_with_one():
    module, ready = convolution("gemm"), threading.Barrier(4)
    inputs = [images(1 + number % 2, 16, 40, 40) for number in range(4)]
    expected = [BY_OPERATOR(module, x) for x in inputs]
    torch.cuda.synchronize()

    def run(number: int) -> bool:
        with torch.inference_mode(), backends.settings(provider="cudnn"), torch.cuda.stream(torch.cuda.Stream()):
            ready.wait()
            outputs = [directly(module, inputs[number]) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
            return all(torch.equal(output, expected[number]) for output in outputs)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [True] * 4


@pytest.mark.quiet
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_of_two_gpus_has_its_own_plan():
    modules = [convolution(device=f"cuda:{index}") for index in range(2)]
    inputs = [images(device=f"cuda:{index}") for index in range(2)]
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            assert agree(modules[current], inputs[current])
            other = 1 - current
            run = modules[other]._direct.run
            assert run(modules[other], inputs[other], modules[other].weight, modules[other].bias) is None
            assert modules[other](inputs[other]).device.index == other
    modules[0].to("cuda:1")
    with torch.cuda.device(1):
        assert agree(modules[0], inputs[1])
