"""Kernel names as CUPTI recorded them (H200, cuDNN 9.19, unless said otherwise), and what they are taken for."""

from __future__ import annotations

import pytest
from fakes.kernel_names import (
    COMPLEX_PRODUCT,
    COMPLEX_VECTOR,
    CUTLASS_FMA,
    CUTLASS_TF32,
    EXPLICIT,
    FFT_KERNEL,
    GROUPED_DIRECT,
    IM2COL_KERNEL,
    IMPLICIT_KERNEL,
    TO_NHWC,
    WINOGRAD_DATA,
    XMMA_FFMA,
    XMMA_PRODUCT,
    XMMA_SM90,
    XMMA_TF32,
)

from convscope.verification import kernel_families
from convscope.verification.kernel_families import (
    DIRECT,
    FFT,
    IM2COL,
    IMPLICIT,
    LAYOUT,
    OTHER,
    PRECOMPUTED,
    PRODUCT,
    WINOGRAD,
)

NVJET = "nvjet_sm90_hsh_16x64_64x16_4x1_v_bz_TNN"
RECORDED = [
    (GROUPED_DIRECT, DIRECT),
    (IM2COL_KERNEL, IM2COL),
    (EXPLICIT, IM2COL),
    (IMPLICIT_KERNEL, IMPLICIT),
    (XMMA_FFMA, PRECOMPUTED),
    (XMMA_TF32, PRECOMPUTED),
    (XMMA_SM90, PRECOMPUTED),
    (
        "void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::fprop"
        "::Warp_specialized_params_non_template<xmma__5x_cudnn::Grid_constant_params> >()",
        PRECOMPUTED,
    ),
    (
        "void precomputed_convolve_sgemm<float, 128, 6, 7, 3, 3, 5, 1, false>(int, int, int, float const*, int, float*,"
        " float const*, kernel_conv_params, unsigned long long, int, float, float, int, bool, bool, float const*)",
        PRECOMPUTED,
    ),
    (CUTLASS_TF32, PRODUCT),
    (CUTLASS_FMA, PRODUCT),
    (XMMA_PRODUCT, PRODUCT),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>()", PRODUCT),
    ("void gemmSN_NN_kernel<float, 128, 2, 4, 8, 4, 4, false, cublasGemvTensorStridedBatched<float const>>()", PRODUCT),
    (NVJET, PRODUCT),
    ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float const>>>()", PRODUCT),
    ("void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>>(float const*, float)", PRODUCT),
    (COMPLEX_PRODUCT, FFT),
    (COMPLEX_VECTOR, FFT),
    (FFT_KERNEL, FFT),
    ("void fft1d_r2c_32<float, float, float2, true, false>(float2*, float const*, int, int3, int3, int2, int2)", FFT),
    ("void DSE::regular_fft_pad<0, 1, 128, 16, 32, 1, float, float, float2>(float2*, float*, int, int3)", FFT),
    ("void DSE::vector_fft<1, 2, 256, 16, 16, 1, float, float, float2>(float2*, float2*, int, int3, int3)", FFT),
    ("void flip_filter<float, float>(float*, float const*, int, int, int, int)", FFT),
    ("void internal::region_transform_ABC_val<int, 32, 32, false, internal::TransformParamsABC<float2>>()", FFT),
    (WINOGRAD_DATA, WINOGRAD),
    (TO_NHWC, LAYOUT),
    ("void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>()", LAYOUT),
    ("Memset (Device)", OTHER),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<>>()", OTHER),
]


# Of 16-bit types and NHWC: names in public traces of PyTorch and TensorRT, not recorded by this project.
HALF_XMMA = (
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_"
    "tensor16x8x16_execute_kernel__5x_cudnn"
)
HALF_SM90 = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_g1"
HALF_CUTLASS = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_64x64_32x6_nhwc_align8>()"
VOLTA, TURING = (
    "volta_h884cudnn_256x128_ldg8_relu_exp_small_nhwc_tn_v1",
    "turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
)
HALF_PRODUCT = "ampere_h16816gemm_128x64_ldg8_stages_64x3_nn"
DEPTHWISE_NHWC = "void conv2d_c1_k1_nhwc_kernel_specialized<__half, __half, __half, float, float, 5, 1, 8, 3, true>()"
HALF_LAYOUT = [
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>()",
    "void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false, (cudnnKernelDataType_t)0>()",
    "void nhwcAddPaddingKernel<__half, __half, float, true, (cudnnKernelDataType_t)0>()",
    "void nchwAddPaddingKernel<__half, __half, float, true>()",
    "void cudnn::ops::nhwcToFoldedNhwcKernel<__half, __half, float, true>()",
    "void cudnn::ops::foldedNhwcToNhwcKernel<__half, __half, float, true>()",
    "void nchwToFoldedNhwcKernel<__half, __half, float, true>()",
]
HALF = [
    *((name, PRECOMPUTED) for name in (HALF_XMMA, HALF_SM90, HALF_CUTLASS, VOLTA, TURING)),
    (HALF_PRODUCT, PRODUCT),
    (DEPTHWISE_NHWC, DIRECT),
    *((name, LAYOUT) for name in HALF_LAYOUT),
]


@pytest.mark.parametrize(("name", "family"), HALF)
def test_a_kernel_of_16_bits_is_of_its_family(name: str, family: str):
    assert kernel_families.family(name) == family


@pytest.mark.parametrize("name", [HALF_XMMA, HALF_SM90, HALF_CUTLASS, VOLTA, TURING, HALF_PRODUCT, NVJET])
def test_kernels_of_16_bits_on_the_matrix_unit_say_so_in_their_names(name: str):
    assert kernel_families.uses_tensor_cores(name)


@pytest.mark.parametrize("name", [DEPTHWISE_NHWC, *HALF_LAYOUT])
def test_kernels_of_16_bits_without_the_matrix_unit_do_not_pass_for_such(name: str):
    assert not kernel_families.uses_tensor_cores(name)


def test_changes_of_layout_speak_neither_for_nor_against_an_algorithm_in_16_bits():
    kernels = [*HALF_LAYOUT, HALF_XMMA]
    assert kernel_families.stranger("implicit precomp gemm", kernels, pointwise=False) is None
    assert kernel_families.stranger("implicit precomp gemm", HALF_LAYOUT, pointwise=False) == ""
    assert kernel_families.working(dict.fromkeys(kernels, 1)) == {HALF_XMMA: 1}


@pytest.mark.parametrize(("name", "family"), RECORDED)
def test_a_recorded_kernel_is_of_its_family(name: str, family: str):
    assert kernel_families.family(name) == family


@pytest.mark.parametrize("name", [XMMA_TF32, XMMA_SM90, CUTLASS_TF32])
def test_tensor_core_kernels_say_so_in_their_names(name: str):
    assert kernel_families.uses_tensor_cores(name)


@pytest.mark.parametrize("name", [XMMA_FFMA, XMMA_PRODUCT, CUTLASS_FMA, IMPLICIT_KERNEL, GROUPED_DIRECT, TO_NHWC])
def test_fma_kernels_do_not_pass_for_tensor_core_kernels(name: str):
    assert not kernel_families.uses_tensor_cores(name)


@pytest.mark.parametrize(
    ("algorithm", "kernels"),
    [
        ("gemm", [IM2COL_KERNEL, EXPLICIT]),
        ("implicit gemm", [IMPLICIT_KERNEL]),
        ("implicit precomp gemm", [TO_NHWC, XMMA_TF32, "Memset (Device)"]),
        ("implicit precomp gemm", [IMPLICIT_KERNEL]),
        ("fft", [FFT_KERNEL, COMPLEX_VECTOR]),
        ("fft tiling", [FFT_KERNEL, COMPLEX_PRODUCT]),
        ("winograd nonfused", [WINOGRAD_DATA, XMMA_PRODUCT]),
    ],
)
def test_an_algorithm_may_have_its_own_kernels(algorithm: str, kernels: list[str]):
    assert kernel_families.stranger(algorithm, kernels, pointwise=False) is None


@pytest.mark.parametrize(
    ("algorithm", "kernels", "odd"),
    [
        ("gemm", [GROUPED_DIRECT], GROUPED_DIRECT),
        ("implicit gemm", [GROUPED_DIRECT], GROUPED_DIRECT),
        ("implicit gemm", [XMMA_FFMA], XMMA_FFMA),
        ("fft", [TO_NHWC, XMMA_TF32], XMMA_TF32),
        ("winograd nonfused", [IMPLICIT_KERNEL], IMPLICIT_KERNEL),
        ("winograd", [WINOGRAD_DATA, XMMA_PRODUCT], XMMA_PRODUCT),
    ],
)
def test_a_kernel_of_another_algorithm_is_named(algorithm: str, kernels: list[str], odd: str):
    assert kernel_families.stranger(algorithm, kernels, pointwise=False) == odd


def test_a_matrix_product_is_the_whole_work_of_a_pointwise_layer_only():
    assert kernel_families.stranger("implicit precomp gemm", [CUTLASS_TF32], pointwise=True) is None
    assert kernel_families.stranger("implicit precomp gemm", [CUTLASS_TF32], pointwise=False) == CUTLASS_TF32


def test_kernels_that_only_move_data_prove_nothing():
    assert kernel_families.stranger("implicit precomp gemm", [TO_NHWC, "Memset (Device)"], pointwise=False) == ""
    assert kernel_families.stranger("winograd nonfused", [XMMA_PRODUCT], pointwise=False) == ""


def test_a_name_that_promises_no_kernel_is_never_contradicted():
    assert kernel_families.stranger("guess", [GROUPED_DIRECT], pointwise=False) is None
    assert kernel_families.stranger("torch", [XMMA_TF32], pointwise=False) is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (GROUPED_DIRECT, "cudnn::cnn::conv2d_grouped_direct_kernel"),
        (XMMA_TF32, "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw"),
        (COMPLEX_VECTOR, "internal::gemvx::kernel"),
        ("Memset (Device)", "Memset"),
    ],
)
def test_the_short_name_leaves_out_templates_and_parameters(name: str, short: str):
    assert kernel_families.short_name(name) == short


def test_the_work_of_two_algorithms_is_compared_without_layout_changes_and_memsets():
    assert kernel_families.working({TO_NHWC: 2, XMMA_TF32: 1, "Memset (Device)": 1}) == {XMMA_TF32: 1}


@pytest.mark.parametrize(
    ("asked", "kernels", "pointwise", "shown"),
    [
        ("gemm", [GROUPED_DIRECT], False, "direct"),
        ("gemm", ["im2col4d_kernel", "volta_sgemm_128x64_nn"], False, "gemm"),
        ("gemm", ["volta_sgemm_128x64_nn"], True, "gemm"),
        ("fft", [IMPLICIT_KERNEL], False, "implicit gemm"),
        ("fft tiling", ["fft2d_r2c_32x32"], False, "fft tiling"),
        ("fft", ["something_else"], False, "fft"),
        ("plan:38", [GROUPED_DIRECT], False, "plan:38"),
        ("gemm", [], False, "gemm"),
    ],
)
def test_kernels_show_the_algorithm_that_ran(asked: str, kernels: list[str], pointwise: bool, shown: str):
    assert kernel_families.shown(asked, kernels, pointwise=pointwise) == shown


def test_the_main_family_is_that_of_the_algorithm_and_not_of_what_stands_beside_it():
    assert kernel_families.main_family(["volta_sgemm_128x64_nn", "winogradForwardData9x9"]) == kernel_families.WINOGRAD
    assert kernel_families.main_family(["nchwToNhwcKernel", "implicit_convolve_sgemm"]) == kernel_families.IMPLICIT
    assert kernel_families.main_family(["vectorized_elementwise_kernel"]) == kernel_families.OTHER
    assert kernel_families.main_family([]) == ""
