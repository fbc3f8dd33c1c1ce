"""What oneDNN and MKL say of themselves, and that listening to them disturbs nobody."""

from __future__ import annotations

import ctypes

import pytest
import torch

from wattserve_server.engine.variants.cpu_verbose import cpu_report, parse, unit

SAID = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with float16, Intel DL Boost and Intel AMX support
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,exec_time
onednn_verbose,v1,primitive,exec,cpu,eltwise,jit:avx512_core_bf16,forward_training,data:f32::blocked:abc::f0,,,4,0.0
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef,src:bf16::blocked:ab::f0 \
wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user attr-post-ops:sum,,64x64:64x128,0.01
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef,src:bf16::blocked:ab::f0 \
wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,attr-scratchpad:user attr-post-ops:sum,,64x64:64x64,0.01
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_vnni,undef,src:u8::blocked:ab::f0 \
wei:s8::blocked:ba::f0 dst:s32::blocked:ab::f0,attr-scratchpad:user,,64x64:64x128,0.01
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_s8::blocked:ab:f0 wei_s8::blocked:ba:f0 \
dst_s32::blocked:ab:f0,,,32x64:64x64,0.02
onednn_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,src_f32::blocked:aBcd16b:f0 \
wei_f32::blocked:ABcd16b16a:f0 dst_f32::blocked:aBcd16b:f0,,alg:convolution_direct,mb8,0.4
onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,src:f16::blocked:ab::f0 wei:f16::blocked:ba::f0 \
dst:f16::blocked:ab::f0,,,1x1:1x1,0.1
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture, Lnx 2.60GHz lp64
MKL_VERBOSE SGEMM_BATCH(N,N,0x7ffd,0x7ffd) 12.04us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2
MKL_VERBOSE GEMM_BF16BF16F32(T,N,128,64,64,0x7ffd) 6.78us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2
a line of somebody else's"""


def test_the_libraries_words_name_implementation_operands_and_instructions() -> None:
    report = parse(SAID.splitlines())
    assert report.instructions == "Intel AVX-512 with float16, Intel DL Boost and Intel AMX support"
    assert [(str(each), each.calls, unit(each)) for each in report.implementations] == [
        ("oneDNN brg_matmul:avx512_core_amx (bf16 x bf16)", 2, "AMX"),
        ("oneDNN brg_matmul:avx512_core_vnni (int8 x int8)", 1, "VNNI"),
        ("oneDNN gemm_api (int8 x int8)", 1, ""),
        ("oneDNN jit:avx512_core (fp32 x fp32)", 1, "AVX512"),
        ("oneDNN ref:any (fp16 x fp16)", 1, "reference code"),
        ("MKL SGEMM_BATCH (fp32 x fp32)", 1, ""),
        ("MKL GEMM_BF16BF16F32 (bf16 x bf16)", 1, ""),
    ]


class Stumble(Exception):
    pass


def c_prints(text: bytes) -> None:
    """As a C library does, on C's own stream."""
    libc = ctypes.CDLL(None)
    libc.printf(b"%s", text)
    libc.fflush(None)


def test_what_others_print_meanwhile_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with cpu_report():
        print("from Python", flush=True)
        c_prints(b"from C\nMKL_VERBOSE SGEMM(N,N) 1us\n")
    c_prints(b"later\n")
    assert capfd.readouterr().out.splitlines() == ["from Python", "from C", "later"]


def test_the_stream_is_back_after_a_failure_inside(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stumble), cpu_report():
        raise Stumble
    c_prints(b"visible\n")
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    c_prints(b"")
    assert capfd.readouterr().out == "visible\n"


def test_where_the_stream_cannot_be_exchanged_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    with cpu_report() as report:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    assert (report.implementations, report.instructions) == ((), "")
