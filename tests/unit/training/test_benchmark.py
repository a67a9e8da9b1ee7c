"""The learner's benchmark: failures of a child are lines like any other, and a trace is read rightly."""

import sys

from tests.benchmarks.children import json_lines
from tests.benchmarks.learner import final
from tests.benchmarks.learner_profile import kind_of, kinds_of, report
from tests.benchmarks.learner_shapes import parse, token_ids


def lines(code: str, limit_s: float = 60.0) -> list[dict]:
    return list(json_lines([sys.executable, "-c", code], limit_s))


def test_what_a_child_said_stays_when_it_fails(capsys):
    code = """
import sys
print('{"a": 1}'); print('a log line'); print('{broken'); print('oh dear', file=sys.stderr); sys.exit(3)"""
    assert lines(code) == [{"a": 1}, {"error": "ended with code 3: oh dear"}]
    assert "oh dear" in capsys.readouterr().err


def test_a_child_without_an_end_is_ended_with_its_children(capsys):
    code = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('{\"a\": 1}', flush=True); time.sleep(600)"
    )
    assert lines(code, 2.0) == [{"a": 1}, {"error": "took more than 2 s"}]


def test_shapes():
    assert parse("2x5") == [5, 5] and parse("5+7") == [5, 7]
    assert [len(row) for row in token_ids("5+7", 100)] == [5, 7]


def kernel(name, ts, dur, cat="kernel"):
    return {"name": name, "cat": cat, "ts": ts, "dur": dur}


def test_kinds_of_kernels():
    assert kind_of("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>") == "attention_backward"
    assert kind_of("void pytorch_flash::flash_fwd_kernel<...>") == "attention_forward"
    assert (
        kind_of("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128") == "attention_forward"
    )
    assert kind_of("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_128x64") == "attention_backward"
    assert kind_of("void cudnn::fusion::compute_dot_do_o_specialized<true>") == "attention_backward"
    assert kind_of("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN") == kind_of("sm90_xmma_gemm_bf16bf16_f32") == "matmul"
    assert kind_of("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3") == "compiled"
    assert kind_of("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>") == "optimizer"
    names = ["nvjet_a", "nvjet_b", "_statistics", "elementwise", "_gradient", "nvjet_c", "nvjet_d", "nvjet_e"]
    assert kinds_of(names) == [
        "matmul", "head_matmul", "head", "other", "head", "head_matmul", "head_matmul", "matmul",
    ]  # fmt: skip


def test_a_trace_is_summed_and_gaps_are_idle():
    events = [
        kernel("nvjet_a", 0, 10), kernel("nvjet_a", 10, 10), kernel("flash_fwd_kernel", 30, 20),
        kernel("Memcpy HtoD", 45, 10, "gpu_memcpy"), kernel("aten::mm", 0, 1000, "cpu_op"),
    ]  # fmt: skip
    got = report(events)
    assert got["window_ms"] == 0.06 or got["window_ms"] == 0.05  # 55 µs, rounded
    assert got["shares"]["idle"] == round(10 / 55, 4) and got["shares"]["matmul"] == round(20 / 55, 4)
    assert got["top"][0] == {"kind": "matmul", "ms": 0.02, "count": 2, "name": "nvjet_a"} and got["kernels"] == 4
    assert got["largest_gaps_ms"] == [[0.01, "nvjet_a", "flash_fwd_kernel"]]
    assert "error" in report([])


def test_the_configuration_that_counts_measured_every_shape():
    from argparse import Namespace

    results = {
        "varlen": {"1x8": {"tokens_per_s": 100}, "2x4": {"tokens_per_s": 50}},
        "cudnn": {"1x8": {"tokens_per_s": 90}, "2x4": {"tokens_per_s": 90}},
        "full": {"1x8": {"tokens_per_s": 500}, "error": "out of memory"},
    }
    trl = [
        {"shape": "1x8", "variant": "plain,keep", "tokens_per_s": 30, "peak_gib": 1.0},
        {"shape": "1x8", "variant": "liger,keep", "tokens_per_s": 45, "peak_gib": 2.0},
        {"shape": "1x8", "variant": "liger,keep,bf16", "tokens_per_s": 80, "peak_gib": 2.0},
        {"error": "ended with code 1"},
    ]
    said = Namespace(model="tiny", ranks=1)
    got = final(results, trl, ["1x8", "2x4"], said, {"card": "cpu", "torch": "2"})
    assert got["configuration"]["name"] == "cudnn" and got["errors"] == {"full": "out of memory"}
    slower = {shape: {"tokens_per_s": rate, "grad_norm": None} for shape, rate in (("1x8", 100), ("2x4", 50))}
    assert got["others"] == {"varlen": slower}
    assert got["1x8"]["ratio"] == 2.0 and got["1x8"]["trl_variant"] == "liger,keep" and got["2x4"]["ratio"] is None
    assert "error" in final({}, [], ["1x8"], said, {"card": "cpu", "torch": "2"})
