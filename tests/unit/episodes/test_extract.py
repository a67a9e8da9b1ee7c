import pytest

from core.episodes.extract import candidate_of, no_candidate, strip_thinking

A, B = "class ModelNew:\n    a = 1", "class ModelNew:\n    b = 2"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"```python\n{A}\n```", A),
        (f"Some words.\n```python\n{A}\n```\nMore words.", A),
        (f"```\n{A}\n```", A),
        (f"~~~python\n{A}\n~~~", A),
        (f"```python\n{A}\n```\nbetter:\n```python\n{B}\n```", B),
        (f"```python\n{A}\n```\nuse it so:\n```python\nm = make()\n```", A),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "y = 2"),
        (f"```python\n{A}", A),
        (f"```python\n{A}\n```\nand\n```python\nclass Model", A),
        (f"<think>\n```python\n{A}\n```\n</think>\n\n```python\n{B}\n```", B),
        (f"let me see\n```python\n{A}\n```\n</think>\n```python\n{B}\n```", B),
        (f"````python\n{A}\n'''\n```\n'''\n````", f"{A}\n'''\n```\n'''"),
        (f"  ```python title\n{A}\n  ```  ", A),
        (f"<think>\n```python\n{A}\n```\n", None),
        (f"<think>\n```python\n{A}\n```\n</think>\nI give up.", None),
        ("```python\n\n```", None),
        ("```python", None),
        ("", None),
    ],
)
def test_candidate_of(text, found):
    assert candidate_of(text) == found


def test_strip_thinking_handles_several_thoughts():
    assert strip_thinking("<think>a</think>b<think>c</think>d") == "bd"


@pytest.mark.parametrize(
    ("text", "finish", "words"),
    [("hm", "length", "cut off"), ("<think>hm", "stop", "still thinking"), ("hm", "stop", "No code block")],
)
def test_no_candidate_is_the_policys_failure_and_says_why(text, finish, words):
    verdict = no_candidate(text, finish)
    assert (verdict.kind, verdict.stage, verdict.category) == ("fail", "extract", "no_code")
    assert words in verdict.feedback
