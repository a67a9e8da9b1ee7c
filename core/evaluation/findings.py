"""What judging found, as data, and its text for the policy.

The first line stands alone within 90 characters (`compact`, for policies with a small context); what follows adds the
line of code, numbers and advice, all together within 400 characters. One cause per text.
"""

from typing import Literal

import msgspec

from core.evaluation.messages import trim_compiler_message as trim_compiler_message
from core.evaluation.verdict import Kind, Stage

COMPACT_CHARS = 90
FULL_CHARS = 400


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Why a candidate did not pass."""

    stage: Stage
    category: str
    headline: str
    """What is wrong, with its numbers; without the category."""
    detail: str = ""
    line: int = 0
    """Line in the candidate's source, 0 when there is none."""
    code: str = ""
    """That line's text."""
    kind: Kind = "fail"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def printable(text: str) -> str:
    """One line without control characters: a candidate's words must not write a log's or a terminal's lines."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _split(text: str, limit: int) -> tuple[str, str]:
    """A first part of at most `limit` characters, broken between words where that loses little, and the rest."""
    if len(text) <= limit:
        return text, ""
    at = text.rfind(" ", limit // 2, limit - 1)
    at = at if at > 0 else limit - 2
    return text[:at].rstrip() + " …", text[at:].lstrip()


def feedback_text(
    finding: Finding,
    style: Literal["full", "compact"] = "full",
    limit: int = FULL_CHARS,
    line_limit: int = COMPACT_CHARS,
) -> str:
    """`category: headline`, then (full) the rest of a long headline, the line of code and the detail.

    The whole is at most `limit` characters long, its first line at most `line_limit` (60 or more).
    """
    if line_limit < 60 or limit < line_limit:
        raise ValueError(f"feedback of {limit} characters, first line {line_limit}: wanted limit >= line >= 60")
    place = f" (line {finding.line})" if finding.line else ""
    head, rest = _split(printable(finding.headline), line_limit - len(finding.category) - 2 - len(place))
    first = f"{finding.category}: {head}{place}"
    if style == "compact":
        return first
    code = f"  {_cut(printable(finding.code), 120)}" if finding.code else ""
    parts = [first, f"… {rest}" if rest else "", code, finding.detail]
    return _cut("\n".join(part for part in parts if part), limit)


def joined(feedback: str) -> str:
    """The feedback for a person, with a headline that was parted for the policy in one line again."""
    return feedback.replace(" …\n… ", " ", 1)


def compact(feedback: str) -> str:
    """The compact text of a verdict whose full feedback is `feedback`: its first line."""
    return feedback.partition("\n")[0]
