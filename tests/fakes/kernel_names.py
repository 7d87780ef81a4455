"""Kernel names as CUPTI recorded them (H200, cuDNN 9.19, unless said otherwise)."""

from __future__ import annotations

GROUPED_DIRECT = (
    "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, false, false, 0, 0, int, float, float, "
    "float, float, float, float>(cudnn::cnn::GroupedDirectFpropParams, float const*, float const*, float*)"
)
IM2COL_KERNEL = (
    "void cudnn::engines_precompiled::im2col4d_kernel<float, long>(cudnn::engines_precompiled::im2col4d_params, "
    "cudnnConvolutionStruct, cudnnTensorStruct, float const*, float*)"
)
EXPLICIT = "void explicit_convolve_sgemm<float, int, 128, 6, 7, 3, 3, 5, 0, false>(int, int, int, float const*, int)"
IMPLICIT_KERNEL = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int, int)"
XMMA_FFMA = (
    "sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_"
    "ffma_aligna4_alignc4_execute_kernel__5x_cudnn"
)
XMMA_TF32 = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_warpsize2x2x1_g1_"
    "tensor16x8x8_alignc4_execute_kernel__5x_cudnn"
)
XMMA_SM90 = (
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32_warpgroupsize1x1x1_g1_"
    "execute_segment_k_off_kernel__5x_cudnn"
)
CUTLASS_TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>(cutlass_80_tensorop::Params)"
CUTLASS_FMA = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)"
XMMA_PRODUCT = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel"
    "__5x_cublas"
)
COMPLEX_PRODUCT = (
    "sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize32x32x8_stage3_warpsize2x2x1_ffma_aligna8_alignc8_execute_kernel"
    "__5x_cublas"
)
COMPLEX_VECTOR = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float2, float2, float2, float2, false, "
    "true, false, false, 6, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float2 const>>>"
)
WINOGRAD_DATA = (
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::"
    "WinogradDataParams<float, float>)"
)
FFT_KERNEL = "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int, int, int, int, int)"
TO_NHWC = (
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
    "(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, float const*, float*)"
)
