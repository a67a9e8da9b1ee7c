"""Which answer a verdict is: nothing but a verdict about the kernel may look like one."""

import ast
import json

import msgspec
import pytest

from actors.eval_api import BadRequest, EvalRequest, Terms, _statistics, answer, read_batch, read_id, read_request
from actors.fault_book import is_fault
from core.evaluation.categories import CATEGORIES
from core.evaluation.verdict import Verdict

TERMS = Terms(backends=("triton",), device_class="cpu", target="cuda:90", draws=3)
REQUEST = EvalRequest(original_model_src="a", custom_model_src="b", backend="triton")
SERVER_WORDS = {
    "shared_memory_exceeded", "illegal_memory_access", "memory_fault", "segmentation_fault", "timeout", "unknown",
    "unsupported_architecture", "triton_compilation_error", "triton_jit_error", "syntax_error", "parse_error",
    "process_error", "subprocess_error",
}  # fmt: skip


def told(kind, category="", stage="", request=REQUEST, terms=TERMS, **more):
    verdict = Verdict(candidate_key="k", kind=kind, category=category, stage=stage, **more)
    return answer(verdict, request, terms, evaluator="e")


@pytest.mark.parametrize("category", sorted(set(CATEGORIES) - {"unsupported", "infra"}))
def test_every_failure_has_the_servers_word_or_is_a_wrong_output(category):
    stage = CATEGORIES[category][0]
    result = told("fail", category, stage, feedback="why")
    metadata = result.body["metadata"]
    if "category" in metadata:
        assert metadata["category"] in SERVER_WORDS
    else:
        assert metadata["correctness_issue"] == "why" and stage == "correctness"
    assert metadata["kernelmill"]["category"] == category
    if result.status == 200:
        assert result.body["correctness"] is False
    else:
        assert result.body["detail"] == "why" and "correctness" not in result.body
    assert result.retry_after_s == 0


@pytest.mark.parametrize(
    ("category", "feedback", "status", "word"),
    [
        ("syntax_error", "", 400, "syntax_error"),
        ("timeout", "", 504, "timeout"),
        ("compile_timeout", "", 504, "timeout"),
        ("crash", "the process died of SIGSEGV", 500, "segmentation_fault"),
        ("crash", "the process died of SIGABRT", 500, "memory_fault"),
        ("crash", "the process ended (exit 3)", 500, "process_error"),
        ("memory", "", 200, "process_error"),
        ("output_limit", "", 200, "process_error"),
        ("out_of_bounds", "", 200, "illegal_memory_access"),
        ("shared_memory", "", 200, "shared_memory_exceeded"),
        ("compile_error", "", 200, "triton_compilation_error"),
        ("no_kernel", "", 200, "triton_jit_error"),
        ("import_error", "", 200, "unknown"),
    ],
)
def test_statuses_and_words_are_the_eval_servers(category, feedback, status, word):
    result = told("fail", category, CATEGORIES[category][0], feedback=feedback)
    assert (result.status, result.body["metadata"]["category"]) == (status, word)


@pytest.mark.parametrize(("kind", "status", "retry"), [("infra", 503, True), ("unsupported", 501, False)])
def test_what_is_no_verdict_about_the_kernel_is_no_result(kind, status, retry):
    result = told(kind, kind, compiled=True, feedback="why")
    assert result.status == status and bool(result.retry_after_s) is retry
    assert not {"compiled", "correctness"} & set(result.body)
    assert "why" in result.body["detail"]
    assert result.body["metadata"]["kernelmill"]["kind"] == kind


def test_a_reference_that_does_not_run_is_the_askers_error():
    result = told("infra", "task_error", "load", feedback="task x does not run: NameError: name 'y' is not defined")
    assert (result.status, result.retry_after_s) == (400, 0)
    assert "original_model_src" in result.body["detail"] and "NameError" in result.body["detail"]
    assert not {"compiled", "correctness"} & set(result.body)
    assert not is_fault("infra", "task_error") and is_fault("infra", "infra") and is_fault("fail", "crash")


CLOCK = {
    "calls": 40.0, "mean_ms": 0.52, "std_ms": 0.01, "min_ms": 0.49, "max_ms": 0.6,
    "baseline_calls": 40.0, "baseline_mean_ms": 1.1, "baseline_std_ms": 0.02, "baseline_min_ms": 1.0,
    "baseline_max_ms": 1.2,
}  # fmt: skip


def test_statistics_have_the_eval_servers_names():
    found = _statistics(CLOCK, 0.5)
    assert found == {"mean": 0.52, "std": 0.01, "min": 0.49, "max": 0.6, "num_trials": 40, "median": 0.5}
    assert _statistics(CLOCK, 1.05, "baseline_")["mean"] == 1.1
    assert _statistics({}, 0.5) == {"mean": 0.5}


def test_modelled_time_is_no_runtime_unless_asked_for():
    modelled = {"compiled": True, "correct": True, "speed_kind": "modelled", "runtime_ms": 0.5, "speedup": 2.0}
    result = told("pass", **modelled)
    assert (result.body["runtime"], result.body["runtime_stats"]) == (-1.0, {})
    assert result.body["metadata"]["kernelmill"]["runtime_ms"] == 0.5
    terms = Terms(backends=("triton",), device_class="cpu", target="", draws=3, modelled_runtime=True)
    result = told("pass", terms=terms, **modelled)
    assert (result.body["runtime"], result.body["runtime_stats"]["kind"]) == (0.5, "modelled")


def test_measured_time_is_given_when_it_was_wanted():
    measured = {"compiled": True, "correct": True, "speed_kind": "measured", "runtime_ms": 0.5}
    assert told("pass", **measured).body["runtime_stats"]["mean"] == 0.5
    quiet = EvalRequest(original_model_src="a", custom_model_src="b", measure_performance=False)
    assert told("pass", request=quiet, **measured).body["runtime"] == -1.0


DEEP = b"[" * 20_000 + b"]" * 20_000
"""Deeper than any reader goes."""


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 422, "not an eval request"),
        (b"[]", 422, "Expected `object`"),
        (b'{"original_model_src": "a"}', 422, "`custom_model_src`"),
        (b'{"original_model_src": "a", "custom_model_src": 3}', 422, "$.custom_model_src"),
        (b'{"original_model_src": "a", "custom_model_src": "b", "seed_num": "x"}', 422, "$.seed_num"),
        (b'{"original_model_src": "\\ud800", "custom_model_src": "b"}', 422, "surrogate"),
        (b'{"original_model_src": "\xff", "custom_model_src": "b"}', 422, "not an eval request"),
        (b'{"seed": ' + DEEP + b', "original_model_src": "a", "custom_model_src": "b"}', 422, "recursion"),
        (DEEP, 422, "not an eval request"),
        (b'{"original_model_src": " ", "custom_model_src": "b", "backend": "triton"}', 422, "is empty"),
        (b'{"original_model_src": "a", "custom_model_src": "b", "backend": "hip"}', 400, "'hip'"),
        (b'{"original_model_src": "a", "custom_model_src": "b"}', 400, '"backend": "triton"'),
    ],
)
def test_bad_requests_get_one_clear_line(body, status, text):
    with pytest.raises(BadRequest) as caught:
        read_request(body, ("triton",))
    assert caught.value.status == status
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_the_slime_clients_request_is_read():
    body = (
        b'{"original_model_src": "a", "custom_model_src": "b", "num_correct_trials": 5, "num_perf_trials": 100, '
        b'"measure_performance": true, "backend": "triton", "verbose": false, "seed": 42, "preferred_device": null}'
    )
    request = read_request(body, ("triton",))
    assert (request.custom_model_src, request.task().source, request.task().backend) == ("b", "a", "triton")


@pytest.mark.parametrize("body", [b"{}", b'{"requests": []}', b'{"requests": 3}', b"x", b'{"requests": [%s]}' % DEEP])
def test_bad_batches_get_one_clear_line(body):
    with pytest.raises(BadRequest) as caught:
        read_batch(body)
    assert caught.value.status == 422 and "requests" in str(caught.value)


def test_an_id_that_is_nested_too_deeply_is_none():
    assert read_id(b'{"id": %s}' % DEEP) is None


TRITON = "import triton\n@triton.jit\ndef kernel(x): ...\nclass ModelNew: ..."
CUDA = "from torch.utils.cpp_extension import load_inline\nclass ModelNew: ..."


@pytest.mark.parametrize(
    "source, said, backends, judged",
    [
        (TRITON, None, ("triton", "cuda"), "triton"),
        (TRITON, "cuda", ("triton", "cuda"), "triton"),
        (TRITON, "cuda", ("cuda",), "cuda"),  # a run's own
        (TRITON, None, ("triton",), "triton"),  # a run's own, and a client that leaves the default
        ("# not cpp_extension\n" + TRITON + '\nx = "cpp_extension"', None, ("triton", "cuda"), "triton"),
        (TRITON + "\ndef (", None, ("triton", "cuda"), "triton"),
        (CUDA, None, ("triton", "cuda"), "cuda"),
        (f'"""\n{TRITON}\n"""\n{CUDA}\n# @triton.jit', None, ("triton", "cuda"), "cuda"),
        ("import jitter\nx = 'triton.jit'", None, ("triton", "cuda"), "cuda"),
        (CUDA + TRITON, None, ("triton", "cuda"), "cuda"),
        (CUDA, "triton", ("triton", "cuda"), "triton"),
        ("def (", None, ("triton", "cuda"), "cuda"),
    ],
)
def test_triton_under_the_default_backend_is_judged_as_triton(source, said, backends, judged):
    body = {"original_model_src": "a", "custom_model_src": source} | ({"backend": said} if said else {})
    assert read_request(json.dumps(body).encode(), backends).task().backend == judged


def test_which_backend_it_is_takes_no_tree(monkeypatch):
    """A tree of a megabyte takes many seconds, and requests are read on the event loop."""

    parsed, parse = [], ast.parse

    def noted(source, *args, **more):
        parsed.append(source)
        return parse(source, *args, **more)

    monkeypatch.setattr("ast.parse", noted)
    for source, judged in ((TRITON, "triton"), (CUDA, "cuda")):
        body = {"original_model_src": "a", "custom_model_src": source}
        assert read_request(json.dumps(body).encode(), ("triton", "cuda")).backend == judged
    assert TRITON not in parsed and CUDA not in parsed


@pytest.mark.parametrize("name", ["a", 7, 1.5, True, ["a", 1], {"x": {"y": None}}, None])
def test_an_id_is_anything_and_stays_as_it_is(name):
    body = {"original_model_src": "a", "custom_model_src": "b", "backend": "triton", "id": name}
    found = read_request(msgspec.json.encode(body), ("triton",)).id
    assert found == name and type(found) is type(name)


def test_a_reference_may_begin_with_a_byte_order_mark():
    bodies = [{"original_model_src": mark + "class Model: ...", "custom_model_src": "b"} for mark in ("", "\ufeff")]
    plain, marked = (read_request(msgspec.json.encode(body), ("cuda",)).task() for body in bodies)
    assert plain == marked and not plain.source.startswith("\ufeff")
