"""Compilers' messages, trimmed to what a writer of the kernel can act on.

Kept: every distinct error with its place in the candidate's own source. Dropped: source listings, carets, call stacks,
colours, folders, build commands, notes, warnings beside errors, counts.

    at 4:8:\\ndef a(...):\\n    y = helper(x)\\n        ^\\nShape element 1 must be a power of 2
                                             -> 4:8: y = helper(x): Shape element 1 must be a power of 2
    /tmp/x/main.cu(12): error: identifier "foo" is undefined          -> main.cu(12): identifier "foo" is undefined
    ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)
                                             -> k uses too much shared data (262,144 bytes, 232,448 max)
"""

import re

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:()'\"]+/)+")
_TRITON_PLACE = re.compile(r"^at (\d+:\d+):$")
_WRAPPED = re.compile(r"""^(\w*(?:Error|Exception|Failure))\((['"])(.*)\2,?\)$""", re.DOTALL)
_HEX = re.compile(r"0x([0-9a-fA-F]+)(?= bytes| max)")
_ERRORS = (
    re.compile(r"^(?P<place>[^\s:(]+(?:\(\d+\)|:\d+(?::\d+)?)): (?:fatal )?error(?: \S+)?: (?P<text>.*)$"),
    re.compile(r"^(?P<place>)(?:.*[:)\s])?(?P<text>undefined reference to .*)$"),
    re.compile(r"^ptxas (?P<place>[^,;]*, line \d+)?[;:, ]*(?:error|fatal)\s*: (?P<text>.*)$"),
    re.compile(r"^(?:nvcc|nvlink|ld|collect2|g\+\+|c\+\+|cc1plus)\s*(?:fatal|error)\s*:(?P<place>) (?P<text>.*)$"),
    re.compile(r"^(?:fatal )?error:(?P<place>) (?P<text>.*)$"),
    re.compile(r"^(?P<place>)(?P<text>(?:ImportError: )?\S+: undefined symbol: .*)$"),
    re.compile(r"^(?P<place>)(?P<text>[A-Z]\w*(?:Error|Exception): .*)$"),
)
_NOISE = ("ptxas fatal   : Ptx assembly aborted", "ld returned", "errors detected in the compilation")


def trim_compiler_message(text: str, limit: int) -> str:
    """What matters of a message by Triton, nvcc, ptxas, the host compiler or the linker, in at most `limit` characters.

    Errors are joined by `; ` in the order in which they were reported, each once; a text in which none is recognised is
    folded into one line. `limit` must be positive.
    """
    text = _COLOURS.sub("", text).replace("\r", "")
    lines = [_FOLDERS.sub("", line).strip() for line in text.split("\n")]
    found: list[str] = []
    for part in (_triton(text), *(_error(line) for line in lines)):
        if part and not any(part in known or part.rpartition(": ")[2] == known for known in found):
            found.append(part)
    trimmed = "; ".join(found) or " ".join(" ".join(lines).split())
    return trimmed if len(trimmed) <= limit else trimmed[: limit - 1].rstrip() + "…"


def _error(line: str) -> str:
    if any(noise in line for noise in _NOISE):
        return ""
    for pattern in _ERRORS:
        match = pattern.match(line)
        if match:
            text = _HEX.sub(lambda number: f"{int(number[1], 16):,}", match["text"].strip())
            text = re.sub(r"^Entry function '(\w+)' ", r"\1 ", text)
            return f"{match['place']}: {text}" if match["place"] else text
    return ""


def _triton(text: str) -> str:
    """The innermost `at line:column` block: place, the marked line, the message below its caret."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if _TRITON_PLACE.match(line.strip())]
    if not starts:
        return ""
    place = _TRITON_PLACE.match(lines[starts[-1]].strip())
    block = lines[starts[-1] + 1 :]
    caret = next((number for number, line in enumerate(block) if line.strip() == "^"), None)
    if place is None or caret is None:
        return " ".join(" ".join(block).split())
    code = block[caret - 1].strip() if caret else ""
    message = " ".join(" ".join(block[caret + 1 :]).split())
    wrapped = _WRAPPED.match(message)
    if wrapped:
        message = f"{wrapped[1]}: {wrapped[3]}"
    return ": ".join(part for part in (place[1], code, message.replace("module 'triton.language'", "tl")) if part)
