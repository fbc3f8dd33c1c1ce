"""What a CUDA kernel's name is read to mean."""

from __future__ import annotations

import pytest

from wattserve_server.engine.variants.profile import kernel_facts, on_tensor_cores, told_precision

TF32_KERNEL = (
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel"
)
INT8_KERNEL = "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16"


@pytest.mark.parametrize(
    ("name", "precision", "tensor_cores"),
    [
        (INT8_KERNEL, "int8", True),
        ("sm90_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize128x128x128_warpgroupsize1x1x1", "int8", True),
        ("cutlass_75_simt_igemm_s8_128x64_32x2_tn_align1", "int8", False),
        ("nvjet_hsh_128x64_64x8_2x1_v_bz_TNT", "fp16", True),
        ("nvjet_tst_128x64_64x8_2x1_v_bz_TNT", "bf16", True),
        ("nvjet_qqtst_128x64_128x6_2x1_v_bz_TNT", "fp8", True),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128__5x_cublas", "fp8", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16", True),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", "fp16", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp16", True),
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "fp16", True),
        (TF32_KERNEL, "tf32", True),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", "tf32", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma", "fp32", False),
        ("ampere_sgemm_128x64_tn", "fp32", False),
        ("cutlass_80_simt_sgemm_128x64_8x5_tn_align1", "fp32", False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", "", None),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>",
            "",
            None,
        ),
        ("some_kernel_of_tomorrow", "", None),
    ],
)
def test_a_kernels_name_tells_its_operands_and_whether_tensor_cores_ran(
    name: str, precision: str, tensor_cores: bool | None
) -> None:
    facts = kernel_facts(name)
    assert (facts.precision, facts.tensor_cores) == (precision, tensor_cores)


def test_helpers_beside_a_kernel_do_not_hide_what_it_tells() -> None:
    names = (
        "void at::native::elementwise_kernel<128, 2>",
        "void cublasLt::splitKreduce_kernel<32>",
        TF32_KERNEL,
    )
    assert told_precision(names) == "tf32"
    assert on_tensor_cores(names) is True
    assert on_tensor_cores(names[:2]) is None
