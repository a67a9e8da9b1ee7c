"""The wording of prompts: what the policy is asked at first, and what it is told after each turn.

    kernelbench  prose with a worked example, for models that were trained on language
    kernelllm    the same knowledge as one plain text to be continued, without a chat template: KernelLLM was trained on
                 pairs of such a text (wish, example before and after, module, wish) and an answer
    compact      the task's computation alone, and feedback of at most `COMPACT_FEEDBACK` characters, for small
                 policies that were taught this form

All styles end every turn's prompt with a user message, and expect the answer in one ```python block. All
functions are pure: equal inputs give equal prompts, so groups share their prefix and replays are exact.
"""

import ast
import re
from collections.abc import Sequence
from typing import Literal

from core import parsing
from core.episodes import examples
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

Style = Literal["kernelbench", "compact", "kernelllm"]
STYLES: tuple[Style, ...] = ("kernelbench", "compact", "kernelllm")
PLAIN_STYLES = frozenset({"kernelllm"})
"""Styles that go through no chat template (`Chat.for_style`)."""
Message = dict[str, str]
"""{"role": "user" | "assistant" | "system", "content": text}"""

COMPACT_FEEDBACK = 90
"""Most characters of feedback in the compact style."""
MAX_FEEDBACK = 1200
"""Most characters of the judge's text that the prose style quotes; the judge bounds its own text well below this."""

LANGUAGES = {"triton": "Triton", "cuda": "CUDA C++"}


def first_messages(task: Task, style: str) -> list[Message]:
    """The messages of an episode's first prompt. Raises ValueError for an unknown style."""
    if style == "compact":
        return [{"role": "user", "content": compact_source(task.source)}]
    if style == "kernelbench":
        return [{"role": "user", "content": _one_shot(task)}]
    if style == "kernelllm":
        return [{"role": "user", "content": _to_continue(task)}]
    raise ValueError(f"unknown prompt style {style!r}; known: {', '.join(STYLES)}")


def feedback_message(verdict: Verdict, score: float | None, style: str, turn: int) -> str:
    """The user message that follows turn `turn` (counted from 0): what became of its kernel, and the wish for a better
    one. Raises ValueError for an unknown style."""
    if style == "compact":
        return compact_feedback(verdict)
    if style in ("kernelbench", "kernelllm"):
        return _prose_feedback(verdict, score, turn)
    raise ValueError(f"unknown prompt style {style!r}; known: {', '.join(STYLES)}")


def summary_line(verdict: Verdict, score: float | None, style: str, turn: int) -> str:
    """What a compressed history says of turn `turn` (counted from 0), in one line.

    Attempt 2: wrong_value, score 0.10
    Attempt 3: correct, 1.30x, score 0.60
    3 ok 1.30x 0.60                          in the compact style
    """
    compact = style == "compact"
    outcome = ("ok" if compact else "correct") if verdict.kind == "pass" else verdict.category or verdict.kind
    facts = [" ".join(outcome.split())]
    if verdict.kind == "pass" and verdict.speedup is not None:
        facts.append(f"{verdict.speedup:.2f}x")
    if score is not None:
        facts.append(f"{score:.2f}" if compact else f"score {score:.2f}")
    return " ".join([str(turn + 1), *facts]) if compact else f"Attempt {turn + 1}: {', '.join(facts)}"


def summary(lines: Sequence[str], style: str) -> str:
    """The part of a compressed prompt that holds the summary lines."""
    said = "\n".join(lines)
    return said if style == "compact" else f"Earlier attempts, whose code is not shown:\n{said}"


# ---------------------------------------------------------------------------------------------------- prose


def _one_shot(task: Task) -> str:
    language = LANGUAGES[task.backend]
    where = (
        "Write the kernels with @triton.jit and launch them from `forward`."
        if task.backend == "triton"
        else "Write the kernels in CUDA C++ and build them with torch.utils.cpp_extension.load_inline."
    )
    return f"""You write fast GPU kernels. Below is a PyTorch module `Model`. Write a module `ModelNew` that computes \
the same outputs with your own {language} kernels, as fast as you can.

Rules:
- `ModelNew` takes the same constructor and `forward` arguments as `Model`, has the same parameters under the same \
names, and returns outputs of the same shapes and types.
- The computation is done by your kernels: fusing several operations into one kernel is usually what pays. {where}
- Results must be correct for every input of these shapes, not only for the ones you have seen.
- Answer with the complete code in one ```python block: imports, kernels and `ModelNew`. No tests, no examples of use.

An example. For the module

```python
{examples.TASK}
```

an answer is

```python
{examples.ANSWERS[task.backend]}
```

Now the module to speed up:

```python
{task.source.strip()}
```

Write `ModelNew` for it."""


def _to_continue(task: Task) -> str:
    language = LANGUAGES[task.backend]
    return f"""You replace PyTorch operators of a module by your own {language} kernels, to make it faster. Which \
operators to replace is your choice, and so are fusing several of them and changing the algorithm.

An example of the syntax. The module

```
{examples.TASK}
```

becomes, with {language} kernels,

```
{examples.ANSWERS[task.backend]}
```

The module to speed up:

```
{task.source.strip()}
```

Write the module named Model with your own {language} kernels and name it ModelNew. Give the complete new code in one \
code block: real code that compiles and runs, and neither other text nor tests."""


def _prose_feedback(verdict: Verdict, score: float | None, turn: int) -> str:
    lines = [f"Attempt {turn + 1} was judged:"]
    if verdict.stage == "extract":
        lines.append("- Code: none was found in the answer.")
    else:
        lines.append(f"- Compiled: {_yes(verdict.compiled)}")
        lines.append(f"- Correct: {_yes(verdict.correct)}")
    if verdict.runtime_ms is not None and verdict.baseline_ms is not None:
        kind = f" ({verdict.speed_kind})" if verdict.speed_kind else ""
        lines.append(f"- Runtime{kind}: {verdict.runtime_ms:.4g} ms; PyTorch takes {verdict.baseline_ms:.4g} ms")
    if verdict.speedup is not None:
        lines.append(f"- Speedup: {verdict.speedup:.2f}x")
    if score is not None:
        lines.append(f"- Score: {score:.2f}")
    if verdict.kind != "pass":
        stage = f" at the stage `{verdict.stage}`" if verdict.stage else ""
        lines.append(f"- Problem{stage}: {verdict.category or verdict.kind}")
    if verdict.feedback:
        lines.append(f"\n{verdict.feedback.strip()[:MAX_FEEDBACK]}")
    if verdict.kind == "pass":
        wish = "The kernel is correct. Make it faster"
    elif verdict.stage == "extract":
        wish = "Answer the task"
    else:
        wish = "Find the cause and correct the kernel"
    lines.append(f"\n{wish}, and answer with the complete new code in one ```python block.")
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# -------------------------------------------------------------------------------------------------- compact

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|inf|nan)"
_INDEX = re.compile(r"[\[(]\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*[\])]")
_GOT = re.compile(rf"(?:\bgot\s*:?|=)\s*({_NUMBER})(?![\w])", re.IGNORECASE)
_WANT = re.compile(rf"\b(?:want(?:ed)?|expect(?:ed|s)?|should be)\s*:?\s*({_NUMBER})(?![\w])", re.IGNORECASE)
_ANY_NUMBER = re.compile(rf"(?<![\w.])({_NUMBER})(?![\w])")


def compact_feedback(verdict: Verdict) -> str:
    """One line of at most COMPACT_FEEDBACK characters.

    `slow 1.3x`                                  correct, with its speedup (`ok` where no speed is known)
    `fail wrong_value [37] got 0.3 want 1.2`     the category, then the first index, value and expected value that the
                                                 judge's text names
    `fail timeout 20`                            the category, then the text's first numbers (four at most)
    """
    if verdict.kind == "pass":
        return "ok" if verdict.speedup is None else f"slow {verdict.speedup:.1f}x"
    head = f"{verdict.kind} {verdict.category}".strip()
    text = verdict.feedback
    index, got, want = _INDEX.search(text), _GOT.search(text), _WANT.search(text)
    if want:
        parts = [f"[{index[1].replace(' ', '')}]"] if index else []
        parts += [f"got {_short(got[1])}"] if got else []
        parts += [f"want {_short(want[1])}"] if want else []
    else:
        parts = [_short(number) for number in _ANY_NUMBER.findall(text)[:4]]
    while parts and len(" ".join([head, *parts])) > COMPACT_FEEDBACK:
        parts.pop()
    return " ".join([head, *parts])[:COMPACT_FEEDBACK]


def _short(number: str) -> str:
    """Three significant digits: a small policy can't use more."""
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.3g}"


def compact_source(source: str) -> str:
    """What of a task's source its computation needs, in canonical layout: `Model.forward`, a constructor that does
    something, helpers and constants that these name. Imports, input makers, profiles, docstrings, comments and
    annotations are left out. A source that does not parse, or has no `Model.forward`, comes back stripped but whole.

        compact_source("import torch ... class Model(nn.Module): def forward(self, x): return x + 1 ...")
        -> "def forward(self, x):\\n    return x + 1"
    """
    try:
        module = parsing.parse(source)
    except SyntaxError:
        return source.strip()
    model = next((node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
    methods = [] if model is None else [node for node in model.body if isinstance(node, ast.FunctionDef)]
    if not any(method.name == "forward" for method in methods):
        return source.strip()
    kept = [method for method in methods if method.name != "__init__" or not _trivial(method)]
    return "\n".join(ast.unparse(_Bare().visit(node)) for node in [*_named(module, kept), *kept])


def _trivial(init: ast.FunctionDef) -> bool:
    """True when a constructor only calls its parent's."""
    body = [node for node in init.body if not _is_docstring(node)]
    return all(isinstance(node, ast.Pass) or ast.unparse(node).startswith("super(") for node in body)


def _named(module: ast.Module, kept: list[ast.FunctionDef]) -> list[ast.stmt]:
    """Module-level helpers and constants that `kept` needs, directly or through each other, in source order."""
    definitions: dict[str, ast.stmt] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "Model":
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            definitions |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    needed: list[ast.stmt] = []
    open_nodes: list[ast.AST] = list(kept)
    while open_nodes:
        for name in ast.walk(open_nodes.pop()):
            found = definitions.get(name.id) if isinstance(name, ast.Name) else None
            if found is not None and found not in needed:
                needed.append(found)
                open_nodes.append(found)
    return sorted(needed, key=lambda node: node.lineno)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _Bare(ast.NodeTransformer):
    """Drops docstrings and annotations."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        node.body = [child for child in node.body if not _is_docstring(child)] or [ast.Pass()]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = [child for child in node.body if not _is_docstring(child)] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None or not node.simple:
            return node
        return ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
