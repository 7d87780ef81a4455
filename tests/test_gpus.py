"""Cards by the names that their drivers give them."""

from __future__ import annotations

import pytest

from convscope import gpus

DRIVER_NAMES = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-40GB": "a100",
    "Tesla V100-SXM2-16GB": "v100",
    "NVIDIA L40S": "l40s",
    "NVIDIA L40": "l40",
    "NVIDIA L4": "l4",
    "NVIDIA A40": "a40",
    "Tesla T4": "t4",
    "NVIDIA GeForce RTX 4090": "4090",
    "NVIDIA GeForce RTX 2080 Ti": "2080ti",
    "NVIDIA GeForce RTX 2080": "2080",
}


@pytest.mark.parametrize(("name", "label"), DRIVER_NAMES.items())
def test_a_known_card_has_a_short_label(name: str, label: str):
    assert gpus.label(name) == label


@pytest.mark.parametrize(
    ("name", "label"),
    [("NVIDIA RTX A4000", "rtx-a4000"), ("NVIDIA GH200 480GB", "gh200-480gb"), ("Tesla K80", "k80"), ("???", "gpu")],
)
def test_an_unknown_card_goes_by_its_drivers_name(name: str, label: str):
    assert gpus.identify(name) is None
    assert gpus.label(name) == label


@pytest.mark.parametrize(
    ("name", "bandwidth_gbps"),
    [
        ("NVIDIA H200", 4800),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H100 NVL", 3900),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA A100-PCIE-40GB", 1555),
        pytest.param(
            "NVIDIA A100-SXM4-80GB",
            2039,
        ),
        pytest.param(
            "NVIDIA A100 80GB PCIe",
            1935,
        ),
    ],
)
def test_variants_of_a_card_have_their_own_bandwidth(name: str, bandwidth_gbps: float):
    gpu = gpus.identify(name)
    assert gpu is not None
    assert gpu.bandwidth_gbps == bandwidth_gbps


def test_a_v100_on_pcie_is_slower_than_one_on_sxm2():
    pcie, sxm2 = gpus.identify("Tesla V100-PCIE-16GB"), gpus.identify("Tesla V100-SXM2-16GB")
    assert pcie is not None
    assert sxm2 is not None
    assert pcie.fp32_tflops < sxm2.fp32_tflops


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.pattern)
def test_every_card_names_the_source_of_its_peaks(gpu: gpus.Gpu):
    assert gpu.source.startswith("NVIDIA ")


# Float32 units of a multiprocessor: 64 up to Turing but for Pascal's GP104, and in the A100; 128 in the others.
LANES = {**dict.fromkeys(("a100", "a30", "v100", "t4", "p100", "2080ti", "2080"), 64)}
BOOST_MHZ = {"h200": (1700, 2000), "a100": (1400, 1420), "l40s": (2500, 2530), "t4": (1560, 1600), "p4": (1060, 1120)}


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.pattern)
def test_peak_and_multiprocessors_give_a_clock_that_a_card_can_have(gpu: gpus.Gpu):
    assert gpu.sm_count is not None
    boost_mhz = gpu.fp32_tflops * 1e6 / (2 * LANES.get(gpu.label, 128) * gpu.sm_count)
    low, high = BOOST_MHZ.get(gpu.label, (1250, 2550))
    assert low <= boost_mhz <= high
    if gpu.boost_mhz is not None:
        assert gpu.base_mhz is not None
        assert gpu.base_mhz < gpu.boost_mhz == pytest.approx(boost_mhz, rel=0.05)
        assert gpu.clock_source


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.pattern)
def test_no_peak_counts_sparsity(gpu: gpus.Gpu):
    if gpu.tf32_tflops is not None:
        assert gpu.fp16_tflops == pytest.approx(2 * gpu.tf32_tflops, rel=0.02)


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"])
def test_cards_before_ampere_have_no_tf32(name: str):
    gpu = gpus.identify(name)
    assert gpu is not None
    assert gpu.tf32_tflops is None


@pytest.mark.parametrize("wanted", ["h200", "H200", " nvidia h200 ", "NVIDIA H200"])
def test_a_card_answers_to_its_label_and_to_its_name(wanted: str):
    assert gpus.matches(wanted, "NVIDIA H200")


@pytest.mark.parametrize("wanted", ["h100", "h20", "200", ""])
def test_a_card_does_not_answer_to_another_name(wanted: str):
    assert not gpus.matches(wanted, "NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("NVIDIA H100 80GB HBM3", "GPU-7f-1"), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-7f-1")],
)
def test_a_slice_of_a_card_has_a_uuid_of_another_kind(name: str, uuid: str):
    assert gpus.uuid(name, "7f-1") == uuid
