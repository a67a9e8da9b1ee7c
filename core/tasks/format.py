"""The KernelBench format: read, check and build a task's source.

Reading never runs anything: sources are parsed, and sizes and profiles are read as literals. Only `build` runs the
source, and only `build` imports torch. Every refusal is a `TaskError` of one line that names the task and what is
missing.
"""

import ast
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core import parsing
from core.identity import digest
from core.tasks.task import PROFILES

Sizes = dict[str, Any]


class TaskError(ValueError):
    """A task that can't be used: names the task, says what was found and what was wanted."""


def parse(source: str, name: str) -> ast.Module:
    """The source's AST, checked to hold what the format needs.

    Raises:
        TaskError: not Python; no class Model with a method forward; no function get_inputs or get_init_inputs.
    """
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"{name}: the source is not Python: {_why(error)}") from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    functions = ("get_inputs", "get_init_inputs")
    missing = [f"a function {wanted}()" for wanted in functions if not isinstance(defined.get(wanted), ast.FunctionDef)]
    if not isinstance(defined.get("Model"), ast.ClassDef):
        missing.insert(0, "a class Model")
    if missing:
        found = ", ".join(defined) or "nothing"
        raise TaskError(f"{name}: the source lacks {' and '.join(missing)}; it defines {found}")
    return tree


def _why(error: SyntaxError | ValueError) -> str:
    """Without the file, which is named already: a text that was parsed has none."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{error.msg} (line {error.lineno})"
    return str(error)


def assignments(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """(name, value) of every assignment at module level, in order; `H, W = 3, 4` counts as two."""
    found = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            value = node.value  # type: ignore[attr-defined]
            if isinstance(target, ast.Name) and value is not None:
                found.append((target.id, value))
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=False)
                found += [(part.id, given) for part, given in pairs if isinstance(part, ast.Name)]
    return found


def profiles_of(tree: ast.Module, name: str) -> dict[str, Sizes]:
    """The literal `PROFILES` of a source; {} where there is none.

    Raises:
        TaskError: not a literal, an unknown profile, or an override of a name that the source does not assign.
    """
    values = dict(assignments(tree))
    if "PROFILES" not in values:
        return {}
    try:
        profiles = ast.literal_eval(values["PROFILES"])
    except ValueError as error:
        raise TaskError(f"{name}: PROFILES must be a literal like {{'cpu': {{'N': 1000}}}}: {error}") from error
    if not isinstance(profiles, dict) or not all(isinstance(sizes, dict) for sizes in profiles.values()):
        raise TaskError(f"{name}: PROFILES must be a dict of dicts like {{'cpu': {{'N': 1000}}}}, got {profiles!r}")
    for profile, sizes in profiles.items():
        if profile not in PROFILES:
            raise TaskError(f"{name}: PROFILES has an unknown profile {profile!r}; known are {', '.join(PROFILES)}")
        unknown = [size for size in sizes if size not in values]
        if unknown:
            raise TaskError(f"{name}: profile {profile!r} sets {unknown[0]!r}, which the source does not assign")
    return profiles


def with_profile(source: str, profile: str, name: str) -> str:
    """The source with the profile's sizes in place of its own; unchanged where it has no such profile.

    The overridden assignments are replaced where they stand, so that sizes computed from them follow.
    """
    if profile not in PROFILES:
        raise TaskError(f"{name}: profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    sizes = profiles_of(parse(source, name), name).get(profile, {})
    return with_sizes(source, sizes, name) if sizes else source


def with_sizes(source: str, sizes: Sizes, name: str) -> str:
    """The source with other values for module-level constants, which are replaced where they are assigned, so that
    sizes computed from them follow."""
    tree = parse(source, name)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for key, value in reversed(assignments(tree)):
        if key in sizes:
            assert value.end_lineno is not None
            first, last = value.lineno - 1, value.end_lineno - 1
            edited = lines[first][: value.col_offset] + repr(sizes[key]).encode() + lines[last][value.end_col_offset :]
            lines[first : last + 1] = [edited]
    return b"".join(lines).decode()


@dataclass(frozen=True)
class Problem:
    """A task's source brought to life in this process.

    Building runs the source: use it where that is meant to happen (the judge's trusted side, tools, tests).
    """

    name: str
    namespace: dict[str, Any]
    init_args: tuple[Any, ...]
    init_kwargs: dict[str, Any]

    def model(self, seed: int, make: Callable[..., Any] | None = None) -> Any:
        """`Model(*init)` with parameters drawn from the seed; `make` builds another class alike."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return (make or self.namespace["Model"])(*self.init_args, **self.init_kwargs)

    def inputs(self, seed: int) -> list[Any]:
        """`get_inputs()` drawn from the seed, on the CPU; entries may be tensors of any dtype, numbers or flags."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self.namespace["get_inputs"]()
        if not isinstance(made, list | tuple):
            raise TaskError(f"{self.name}: get_inputs() must return a list, got {type(made).__name__}")
        return list(made)


def init_inputs(made: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `get_init_inputs()` returned as (args, kwargs): `[a, b]` are args, `[[a, b], {"k": c}]` are both."""
    if isinstance(made, dict):
        return (), made
    if not isinstance(made, list | tuple):
        raise TaskError(f"{name}: get_init_inputs() must return a list, got {type(made).__name__}")
    if len(made) == 2 and isinstance(made[0], list | tuple) and isinstance(made[1], dict):
        return tuple(made[0]), dict(made[1])
    return tuple(made), {}


def build(source: str, *, name: str = "task", profile: str = "") -> Problem:
    """Run a task's source at a profile's sizes ('' for its own); the CPU's random state stays as it was.

    Raises:
        TaskError: the format is not kept. What the source itself raises is passed on.
    """
    import torch

    text = with_profile(source, profile, name) if profile else source
    parse(text, name)
    # Registered under its content, so that tracebacks and `inspect` show the source's own lines.
    path = f"<{name} {digest(text, size=4)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    namespace: dict[str, Any] = {"__name__": "kernelmill_task"}
    with torch.random.fork_rng(devices=[]):
        exec(compile(text, path, "exec"), namespace)
        args, kwargs = init_inputs(namespace["get_init_inputs"](), name)
    return Problem(name, namespace, args, kwargs)
