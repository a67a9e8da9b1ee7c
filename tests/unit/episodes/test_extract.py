import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.episodes.extract import candidate_of, no_candidate, strip_thinking

A, B = "class ModelNew:\n    a = 1", "class ModelNew:\n    b = 2"
DOCSTRING = "class ModelNew:\n    '''Use it so:\n```\nmodel = ModelNew()\n```\n    '''\n    a = 1"
HEAD_STRING = '"""\n```python\nmodel = ModelNew()\n```\n"""\n' + A
INDENTED_STRING = 'class ModelNew:\n    """\n    ```\n    m()\n    ```\n    """\n    a = 1'
CUDA = 'SOURCE = r"""\n// don\'t\n#include <x>\n"""\n' + A
PLAIN_TEXT = "I would use a class ModelNew, but can't."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"```python\n{A}\n```", A),
        (f"Some words.\n```python\n{A}\n```\nMore words.", A),
        (f"```\n{A}\n```", A),
        (f"~~~python\n{A}\n~~~", A),
        (f"~~~ python `x`\n{A}\n~~~", A),
        (f"```{{.python}}\n{A}\n```", A),
        (f"```Python3\n{A}\n```", A),
        # several blocks: the last that defines the module
        (f"```python\n{A}\n```\nbetter:\n```python\n{B}\n```", B),
        (f"```python\n{A}\n```\nuse it so:\n```python\nm = make()\n```", A),
        (f"```python\n{A}\n```\nuse it so:\n```python\nm = ModelNew()\n```", A),
        (f"```text\nModelNew\n```\n```python\n{A}\n```\n```\nModelNew is fast\n```", A),
        ("```python\nmake()\n\nModelNew = make()\n```\n```\nModelNew()\n```", "make()\n\nModelNew = make()"),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "y = 2"),
        # unclosed
        (f"```python\n{A}\n\nBetter:\n```python\n{B}\n```", B),
        (f"```python\n{A}\n```python\nclass Model", A),
        (f"```\nthe plan\n```python\n{A}\n```", A),
        (f"```python\n{A}", A),
        (f"```python\n{A}\n```\nand\n```python\nclass Model", A),
        (f"```text\nthe plan\n```\n```python\n{A}", A),
        (f"```python\n{A}```", A),
        (f"```python\n{A}  ``` ", f"{A}  "),
        ("```python\nx = 1\n```\n```python\ny = ", "x = 1"),
        # thinking
        (f"<think>\n```python\n{A}\n```\n</think>\n\n```python\n{B}\n```", B),
        (f"let me see\n```python\n{A}\n```\n</think>\n```python\n{B}\n```", B),
        (f"<think>\n```python\n{A}\n```\n", None),
        (f"<think>\n```python\n{A}\n```\n</think>\nI give up.", None),
        (f"```python\n{A}\n```\n</think>\nI give up.", None),
        (f"<think>\n```python\nopen fence\n</think>\n```python\n{B}\n```", B),
        # fences in fences
        (f"````python\n{A}\n'''\n```\n'''\n````", f"{A}\n'''\n```\n'''"),
        (f"````python\n{A}\n```\n````", f"{A}\n```"),
        (f"~~~\n{A}\n```\n~~~", f"{A}\n```"),
        (f"```markdown\nHere:\n```python\n{A}\n```\n```", A),
        (f"```python\n{DOCSTRING}\n```", DOCSTRING),
        (f"```python\n{DOCSTRING}\n```\nor\n```python\n{B}\n```", B),
        (f"```python\n{B}\n```\nor\n```python\n{DOCSTRING}\n```\nGood.", DOCSTRING),
        (f"```python\n{HEAD_STRING}\n```", HEAD_STRING),
        (f"```python\n{INDENTED_STRING}\n```", INDENTED_STRING),
        (f"```python\n{CUDA}\n```", CUDA),
        (f"```python\nclass ModelNew:\n    '''not closed\n```\nsorry:\n```python\n{B}\n```", B),
        ("```python\nclass ModelNew:\n    '''not closed\n```\nthe end", "class ModelNew:\n    '''not closed"),
        (f"```python\n{A}  # don't ''' mind\n```\n'''\n```\nx\n```", f"{A}  # don't ''' mind"),
        # indentation and line ends
        (f"  ```python title\n{A}\n  ```  ", A),
        ("1. so:\n   ```python\n   class ModelNew:\n\n       a = 1\n   ```", "class ModelNew:\n\n    a = 1"),
        ("\t```python\n\tclass ModelNew:\n\t    a = 1\n\t```", A),
        (f"```python\r\n{A}\r\n```\r\n".replace("\n    ", "\r\n    "), A),
        (f"```python\r{A}\r```".replace("\n", "\r"), A),
        # no fence: bare code counts, words do not
        (A, A),
        (f"\n\nimport torch\n\n{A}\n", f"import torch\n\n{A}"),
        (f"<think>\nhm\n</think>\n\nimport torch\n{A}", f"import torch\n{A}"),
        (f"Here it is:\nimport torch\n{A}", None),
        ("import torch\nx = 1", None),
        (PLAIN_TEXT, None),
        # nothing
        ("use ```ModelNew```", None),
        ("```python\n\n```", None),
        ("```python", None),
        ("```", None),
        ("", None),
    ],
)
def test_candidate_of(text, found):
    assert candidate_of(text) == found


def test_strip_thinking_handles_several_thoughts():
    assert strip_thinking("<think>a</think>b<think>c</think>d") == "bd"
    assert strip_thinking("a</think>b</think>c<think>d") == "c"
    assert strip_thinking("a<think>b<think>c</think>d") == "ad"


@pytest.mark.parametrize(
    ("text", "finish", "words"),
    [
        ("hm", "length", "cut off"),
        ("<think>hm", "stop", "still thinking"),
        ("<think>hm</think>", "stop", "No code block"),
        ("hm", "stop", "No code block"),
    ],
)
def test_no_candidate_is_the_policys_failure_and_says_why(text, finish, words):
    verdict = no_candidate(text, finish)
    assert (verdict.kind, verdict.stage, verdict.category) == ("fail", "extract", "no_code")
    assert words in verdict.feedback


PIECES = ["```", "~~~", "````", "python", "\n", "\r\n", " ", "    ", "'''", '"""', "'", "#", "\\", "`", "x = 1"]
PIECES += ["class ModelNew:", "<think>", "</think>", "import torch", "ModelNew = ", "markdown"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(max_examples=400, deadline=None)
def test_whatever_is_sampled_a_candidate_is_spoken_text_without_the_fences_around_it(text):
    found = candidate_of(text)
    if found is None:
        assert no_candidate(text, "stop").category == "no_code"
        return
    spoken = strip_thinking(text).replace("\r\n", "\n").replace("\r", "\n")
    assert found.strip() and "\r" not in found
    assert all(line.strip() in spoken for line in found.split("\n"))


@given(st.text(max_size=200).filter(lambda text: "`" not in text and "think>" not in text), st.sampled_from("`~"))
@settings(max_examples=200, deadline=None)
def test_a_block_comes_back_as_it_was_written(body, mark):
    body = body.replace("\r", "").replace("~", "")
    code = f"{body}\n{A}"
    fence = mark * 3
    assert candidate_of(f"words\n{fence}python\n{code}\n{fence}\nmore words") == code


LONG = 150_000
HUGE = {
    "thoughts": "<think>" * LONG,
    "ends of thoughts": "</think>" * LONG,
    "thoughts and ends": "<think>a</think>" * LONG,
    "backticks": "`" * LONG + "x`",
    "a tag": "```" + "a" * LONG + "`",
    "spaces": " " * LONG + "```",
    "fences": "```python\n" * LONG,
    "blocks": f"```python\n{A}\n```\n" * (LONG // 10),
    "open strings": "```python\nclass ModelNew:\n'''\n```\n" * (LONG // 10),
    "quotes": "```python\nclass ModelNew: " + "'\"" * LONG,
    "backslashes": "```python\nclass ModelNew: '''" + "\\" * LONG,
    "words": "ModelNew = " * LONG,
    "classes": "class " * LONG,
    "blank lines": "class" + " \n\t" * LONG + "ModelNew",
}


CPU_S = 30
"""Linear work on all of these takes 3 s of a core; anything quadratic takes many minutes."""
MEASURED = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S}, {CPU_S}))
from core.episodes.extract import candidate_of, no_candidate
from tests.unit.episodes.test_extract import HUGE
for kind, text in HUGE.items():
    print(kind, flush=True)
    candidate_of(text)
    no_candidate(text, "stop")
print("done")
"""


def test_the_work_is_linear_in_the_length():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=600)
    assert done.stdout.split("\n")[-2:] == ["done", ""], f"too slow, or failed, at {done.stdout[-80:]} {done.stderr}"
