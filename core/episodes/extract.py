"""From a completion's text to a candidate: the kernel source, or the verdict that there is none.

Thinking is not an answer, so it is dropped first. What counts then, in this order:

    1. the last closed block that defines `ModelNew`       a later block with an example of use does not hide it
    2. the block left open, where it defines `ModelNew`    cut off, or the closing fence was forgotten
    3. the last closed block, then the block left open
    4. without any fence: the whole answer, where it is code from its first line on and defines `ModelNew`

Fences are Markdown's: three or more backticks or tildes, closed by at least as many of the same kind, indented no more
than three columns deeper than the opening one. A fence with a tag closes too, and opens the next block: no Python goes
on with it, and policies forget to close a draft. Code that is indented with its fence loses that indentation. A fence
inside a string of the kernel (a docstring with an example) is not a fence: where the block found ends within a triple
quoted string, or defines nothing, the text is read again with such strings followed.

Everything is linear in the length of the text: a policy may sample anything. Having no code is the policy's failure,
judged here without asking an evaluator.
"""

import re
from typing import NamedTuple

from core.evaluation.verdict import Verdict

_THINK_TAG = re.compile(r"</?think>")
_DEFINES = re.compile(r"^[ \t]*(?:class[ \t]+ModelNew\b|ModelNew[ \t]*=[^=])", re.MULTILINE)
_CODE_BEGINS = re.compile(r"(?:import|from|class|def|@|#|\"\"\"|''')")
_QUOTE = re.compile(r"\\.|\"\"\"|'''|[\"'#]")


def strip_thinking(text: str) -> str:
    """`text` without `<think>` blocks; an end without a beginning means that the prompt opened it, a beginning without
    an end that nothing but thinking follows."""
    return _spoken(text)[0]


def _spoken(text: str) -> tuple[str, bool]:
    """(what is not thinking, whether the thinking was left open)"""
    kept: list[str] = []
    at, thinking = 0, False
    for tag in _THINK_TAG.finditer(text):
        if tag[0] == "</think>":
            if not thinking:
                kept.clear()
            at, thinking = tag.end(), False
        elif not thinking:
            kept.append(text[at : tag.start()])
            thinking = True
    return "".join(kept if thinking else [*kept, text[at:]]), thinking


def candidate_of(text: str) -> str | None:
    """The kernel source in a completion, with `\\n` line ends, or None."""
    lines = strip_thinking(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    plain = _chosen(_blocks(lines, follow_strings=False))
    if plain is not None and not _is_whole(plain):
        followed = _chosen(_blocks(lines, follow_strings=True))
        if followed is not None and followed.closed and _is_whole(followed):
            plain = followed
    if plain is not None:
        return plain.text
    bare = "\n".join(lines).strip()
    return bare if _CODE_BEGINS.match(bare) and _DEFINES.search(bare) and not _has_fence(lines) else None


def no_candidate(text: str, finish: str) -> Verdict:
    """The verdict for a completion without code; `finish` is why the engine ended it."""
    if finish == "length":
        why = "The answer was cut off at the token limit before any code: answer with the code at once."
    elif _spoken(text)[1]:
        why = "The answer ended while still thinking: close the thinking and give the code."
    else:
        why = "No code block was found: answer with the complete code in one ```python block."
    return Verdict(candidate_key="", kind="fail", tier="static", stage="extract", category="no_code", feedback=why)


class _Fence(NamedTuple):
    """A line that may open or close a block."""

    indent: str
    mark: str
    """Its backticks or tildes."""
    tag: str

    @property
    def wraps(self) -> bool:
        """True for a block of Markdown around the answer, which has fences of its own."""
        return self.tag.lower() in ("markdown", "md")


class _Block(NamedTuple):
    lines: list[str]
    closed: bool

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def _chosen(blocks: list[_Block]) -> _Block | None:
    """The block that counts, by the module's order."""
    said = [block for block in blocks if block.text.strip()]
    for closed, must_define in ((True, True), (False, True), (True, False), (False, False)):
        for block in reversed(said):
            if block.closed == closed and (not must_define or _DEFINES.search(block.text)):
                return block
    return None


def _blocks(lines: list[str], *, follow_strings: bool) -> list[_Block]:
    """All fenced blocks in order; the last one may be open. `follow_strings`: fences inside triple quoted strings are
    part of the block."""
    found: list[_Block] = []
    opening: _Fence | None = None
    body: list[str] = []
    quote = ""
    for line in lines:
        fence = _fence(line)
        if opening is None:
            if fence and not fence.wraps:
                opening, body, quote = fence, [], ""
        elif fence and not quote and _ends(fence, opening):
            found.append(_Block(_dedented(body, opening.indent), closed=True))
            opening, body = (fence if fence.tag and not fence.wraps else None), []
        else:
            body.append(line)
            quote = _quote_after(line, quote) if follow_strings else ""
    if opening is not None:
        if body and body[-1].rstrip().endswith(opening.mark):  # closed at the end of a line of code
            body[-1] = body[-1].rstrip().removesuffix(opening.mark)
        found.append(_Block(_dedented(body, opening.indent), closed=False))
    return found


def _fence(line: str) -> _Fence | None:
    code = line.lstrip(" \t")
    if code[:3] not in ("```", "~~~"):
        return None
    rest = code.lstrip(code[0])
    if code[0] == "`" and "`" in rest:
        return None  # inline code
    return _Fence(line[: len(line) - len(code)], code[: len(code) - len(rest)], (rest.split(None, 1) or [""])[0])


def _ends(fence: _Fence, opening: _Fence) -> bool:
    deeper = len(fence.indent.expandtabs(4)) - len(opening.indent.expandtabs(4))
    return fence.mark.startswith(opening.mark) and deeper <= 3


def _dedented(lines: list[str], indent: str) -> list[str]:
    """`lines` without the indentation of their fence, where all have it."""
    if not indent or not all(line.startswith(indent) for line in lines if line.strip()):
        return lines
    return [line.removeprefix(indent) for line in lines]


def _has_fence(lines: list[str]) -> bool:
    return any(_fence(line) for line in lines)


def _is_whole(block: _Block) -> bool:
    """True when a block defines the module and does not end inside a string."""
    quote = ""
    for line in block.lines:
        quote = _quote_after(line, quote)
    return not quote and bool(_DEFINES.search(block.text))


def _quote_after(line: str, quote: str) -> str:
    """The triple quote that is open after a line of Python that begins inside `quote`, or ""."""
    for found in _QUOTE.finditer(line):
        mark = found[0]
        if quote:
            if mark == quote or (len(quote) == 1 and mark[0] == quote):
                quote = ""
        elif mark == "#":
            break
        elif mark[0] != "\\":
            quote = mark
    return quote if len(quote) == 3 else ""
