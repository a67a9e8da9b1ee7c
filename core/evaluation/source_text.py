"""A candidate's source as one text that everybody reads alike: the screens, Python's import and Triton, which reads
kernels from the file again.

Python decodes a file by its encoding line (PEP 263), but parses a string without it: with `# coding: unicode_escape` a
comment can become code that no check has seen.
"""

import codecs
import re

_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
_BYTE_ORDER_MARK = "\ufeff"


def without_mark(source: str) -> str:
    """The text without a byte order mark, which Python accepts in a file and not in a string."""
    return source.removeprefix(_BYTE_ORDER_MARK)


def foreign_encoding(source: str) -> str:
    """The encoding that one of the first two lines declares, if it is not UTF-8; empty otherwise."""
    for line in re.split(r"\r\n|\r|\n", source[:10_000], maxsplit=2)[:2]:
        if found := _COOKIE.match(line):
            try:
                if codecs.lookup(found[1]).name == "utf-8":
                    continue
            except LookupError:
                pass
            return found[1]
    return ""
