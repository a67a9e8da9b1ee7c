"""From a completion's text to a candidate: the kernel source, or the verdict that there is none.

Thinking is not an answer, so it is dropped first. Of the fenced blocks that are closed the last one that defines
`ModelNew` counts, else the last one; a fence that is left open counts only where no block is closed. Having no code is
the policy's failure, judged here without asking an evaluator.
"""

import re

from core.evaluation.verdict import Verdict

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$")
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


def strip_thinking(text: str) -> str:
    """`text` without `<think>` blocks; an end without a beginning means that the prompt opened it, a beginning without
    an end that nothing but thinking follows."""
    text = _THINKING.sub("", text)
    text = text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def candidate_of(text: str) -> str | None:
    """The kernel source in a completion, or None."""
    closed, unclosed = _blocks(strip_thinking(text))
    answers = [block for block in closed if "ModelNew" in block]
    for blocks in (answers, closed, unclosed):
        if blocks:
            return blocks[-1]
    return None


def _blocks(text: str) -> tuple[list[str], list[str]]:
    """(closed blocks, the open one if any), blank ones left out."""
    closed: list[str] = []
    lines: list[str] = []
    mark = ""
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if not mark:
            mark = fence[1] if fence else ""
        elif fence and fence[1].startswith(mark) and not fence[2]:
            closed.append("\n".join(lines))
            lines, mark = [], ""
        else:
            lines.append(line)
    unclosed = ["\n".join(lines)] if mark else []
    return [block for block in closed if block.strip()], [block for block in unclosed if block.strip()]


def no_candidate(text: str, finish: str) -> Verdict:
    """The verdict for a completion without code; `finish` is why the engine ended it."""
    if finish == "length":
        why = "The answer was cut off at the token limit before any code: answer with the code at once."
    elif "<think>" in _THINKING.sub("", text):
        why = "The answer ended while still thinking: close the thinking and give the code."
    else:
        why = "No code block was found: answer with the complete code in one ```python block."
    return Verdict(candidate_key="", kind="fail", tier="static", stage="extract", category="no_code", feedback=why)
