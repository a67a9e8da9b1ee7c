"""A source is text: odd but valid text is judged as Python reads it, everything else is refused with a category."""

from collections.abc import Callable

import pytest

from core.evaluation.verdict import Verdict

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]

HONEST: dict[str, Callable[[str], str]] = {
    "crlf": lambda source: source.replace("\n", "\r\n"),
    "cr": lambda source: source.replace("\n", "\r"),
    "tabs": lambda source: source.replace("    ", "\t"),
    "byte_order_mark": lambda source: "\ufeff" + source.lstrip(),
    "form_feed": lambda source: "\f" + source,
    "trailing_blanks": lambda source: source.replace("\n", "   \n") + "\n" * 1000,
    "no_last_newline": lambda source: source.rstrip("\n"),
    "unicode_names": lambda source: source.replace("offsets", "größe_π"),
    "unicode_text": lambda source: source + "\nTEXT = '漢字 😀 \u2028 \u202e'  # \u0301\n",
    "encoding_cookie": lambda source: "# -*- coding: utf-8 -*-" + source,
    "future": lambda source: "from __future__ import annotations" + source,
    "docstring_first": lambda source: '"""A kernel."""\nfrom __future__ import annotations' + source,
}
REFUSED = {
    "empty": ("", "no_model_new, syntax_error"),
    "blank": (" \n\t\n", "no_model_new, syntax_error"),
    "docstring_only": ('"""A kernel."""', "no_model_new"),
    "comment_only": ("# nothing", "no_model_new"),
    "prose": ("Here is the kernel you asked for:", "syntax_error"),
    "null_byte": ("x = 1\0", "syntax_error"),
    "null_byte_in_text": ("class ModelNew: pass\nx = '\0'", "syntax_error"),
    "surrogate": ("class ModelNew: pass\nx = '\ud800'", "syntax_error"),
    "surrogate_in_comment": ("class ModelNew: pass\n# \udfff", "syntax_error"),
    "mixed_indentation": ("class ModelNew:\n\tx = 1\n        y = 1", "syntax_error"),
    "late_future": ("import torch\nclass ModelNew: pass\nfrom __future__ import division", "no_kernel, syntax_error"),
    "deep_brackets": ("x = " + "(" * 300 + ")" * 300, "syntax_error"),
    "deep_minus": ("x = " + "-" * 100_000 + "1", "syntax_error"),
    "deep_attributes": ("class ModelNew: pass\nx = a" + ".b" * 100_000, "syntax_error, no_kernel"),
    "deep_blocks": ("\n".join(" " * i + "if 1:" for i in range(150)), "syntax_error"),
    "long_integer": ("class ModelNew: pass\nx = " + "9" * 5000, "syntax_error"),
    "ten_megabytes": ("#" * 10_000_000, "too_large"),
    "ten_megabytes_of_lines": ("x = 1\n" * 1_700_000, "too_large"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_odd_text_is_python_all_the_same(verdict_of: Ask, variant: Variant, name: str) -> None:
    verdict = verdict_of(HONEST[name](variant()))
    assert verdict.kind == "pass", verdict.feedback


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_no_candidate_is_refused(verdict_of: Ask, variant: Variant, name: str) -> None:
    source, categories = REFUSED[name]
    verdict = verdict_of(source)
    assert verdict.kind == "fail" and verdict.category in categories.split(", "), verdict.feedback
    assert verdict_of(variant()).kind == "pass"


@pytest.mark.parametrize("coding", ["latin-1", "utf-16", "utf-7", "no_such_coding", "rot13", "unicode_escape"])
def test_a_cookie_does_not_hide_code_from_the_screens(verdict_of: Ask, variant: Variant, coding: str) -> None:
    """The text was parsed as it stands; read in another coding it must not become another program."""
    hidden = variant(top="X = '+AAo-raise KeyError()+AAo-'\n# \\u000araise KeyError()")
    verdict = verdict_of(f"# -*- coding: {coding} -*-" + hidden)
    assert verdict.category == "syntax_error" and coding in verdict.feedback
    assert verdict_of("# -*- coding: utf8 -*-" + variant()).kind == "pass"
