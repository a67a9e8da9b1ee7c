"""A call's mode is told where it tells wrong calls from right ones, else it would read like the cause."""

from collections.abc import Callable

import msgspec
import pytest
import torch

from core.evaluation import diagnosis, values
from core.evaluation.draws import Draw
from core.evaluation.reference import Expected
from core.evaluation.report import DrawFrame, Report
from core.evaluation.verdict import Verdict

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]
PLAIN, GRAD, EVAL, EVAL_GRAD = (True, False), (True, True), (False, False), (False, True)
BY_TORCH = "out.copy_(torch.relu(x * 2.0))"
ESCAPES = "[x[i].item() for i in range(200)]"


def scene(calls: list[tuple[tuple[bool, bool], bool]]) -> tuple[Report, list[Draw]]:
    """Calls as (mode, whether a kernel was launched), each with the right output."""
    tree, blobs = values.encode(torch.ones(4))
    blob = b"".join(bytes(part) for part in blobs)
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(tree))
    wanted = Expected(structure=["tensor"], native=[torch.ones(4)], exact=[torch.ones(4).double()], is_double=True)
    draws = [
        Draw(
            inputs=[[], {}], init=[[], {}], variant=0, required=[], state={}, plain={}, training=training, grad=grad,
            same_places=False, role="original", kind="plain", expected=wanted,
        )
        for (training, grad), _ in calls
    ]  # fmt: skip
    frames = {at: (DrawFrame(draw=at, tree=tree, launches=int(fine)), blob) for at, (_, fine) in enumerate(calls)}
    return Report(draws=frames), draws


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([(GRAD, False)], ""),
        ([(EVAL, False)], ""),
        ([(GRAD, False), (PLAIN, False)], ""),
        ([(GRAD, True), (GRAD, False)], ""),
        ([(GRAD, True), (GRAD, False), (PLAIN, True)], ""),
        ([(GRAD, False), (EVAL, False), (PLAIN, True)], ""),
        ([(PLAIN, True), (GRAD, False)], "with gradients on"),
        ([(GRAD, False), (PLAIN, True)], "with gradients on"),
        ([(GRAD, False), (PLAIN, True), (EVAL_GRAD, False)], "with gradients on"),
        ([(PLAIN, False), (GRAD, True), (EVAL, False)], "with gradients off"),
        ([(PLAIN, True), (EVAL, False), (GRAD, True)], "in eval mode"),
        ([(PLAIN, True), (EVAL_GRAD, False), (EVAL, False)], "in eval mode"),
        ([(PLAIN, False), (EVAL_GRAD, True), (GRAD, False)], "in training mode"),
        ([(PLAIN, True), (EVAL_GRAD, False)], "in eval mode with gradients on"),
    ],
)
def test_a_mode_is_named_only_where_it_tells_wrong_from_right(calls, told) -> None:
    report, draws = scene(calls)
    finding = diagnosis.wrong_already(report, draws, may_mutate=False)
    assert finding is not None and finding.category == "no_kernel"
    end = f" ({told}; not in other modes)" if told else ""
    assert finding.headline == f"forward launched no Triton kernel{end}"


@pytest.mark.parametrize(("work", "category"), [(BY_TORCH, "torch_fallback"), (ESCAPES, "data_escape")])
def test_what_a_candidate_does_in_every_mode_has_no_mode_in_it(verdict_of: Ask, variant: Variant, work, category):
    for _ in range(4):  # modes and their order are drawn
        verdict = verdict_of(variant(after=work))
        assert verdict.category == category, verdict.feedback
        assert "gradients" not in verdict.feedback and "mode" not in verdict.feedback, verdict.feedback


@pytest.mark.parametrize(("work", "category"), [(BY_TORCH, "torch_fallback"), (ESCAPES, "data_escape")])
def test_what_it_does_in_one_mode_names_the_mode(verdict_of: Ask, variant: Variant, work, category) -> None:
    verdict = verdict_of(variant(after=f"if torch.is_grad_enabled():\n            {work}"))
    assert verdict.category == category, verdict.feedback
    assert "with gradients on; not in other modes)" in verdict.feedback
