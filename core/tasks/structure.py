"""The operator structure of any task source: what it computes, without names, constants, sizes and layout of the text.

`forward` is read as a graph: local variables, helper functions, submodules and local classes are followed to the
operators they stand for; loops over unknown counts are walked once and marked; both branches of an `if` count. Nothing
is executed and torch is not imported; what is not understood becomes an operator named after its syntax, not an error.
"""

import ast
from collections.abc import Sequence
from typing import Any

from core.tasks.format import parse
from core.tasks.graph import CONST, INPUT, LEAVES, PARAM, Node, canonical
from core.tasks.structure_names import ARITHMETIC, SHAPE_QUERIES, TRANSPARENT, WEIGHTED, operator_name
from core.tasks.structure_values import NUMBER, Function, Instance, Layer, Library, Number, Ref, refs_in
from core.tasks.structure_walk import Walk

MAX_DEPTH = 12
"""Calls followed into each other; deeper ones (recursion) stay opaque."""


def structure_of(source: str, name: str = "task") -> str:
    """Canonical text of the operators that `Model.forward` applies, as `core.tasks.graph.canonical` writes it.

    Raises:
        TaskError: the source does not keep the KernelBench format.
    """
    return _Reader(parse(source, name)).structure()


class _Reader(Walk):
    """Evaluates a source over nodes instead of tensors. Python lists and dicts of values stand for themselves."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes: list[Node] = []
        self.known: dict[Node, int] = {}
        self.depth = 0
        self.globals: dict[str, Any] = {}
        self.run(tree.body, self.globals, [])

    def structure(self) -> str:
        model = self.instantiate(self.globals["Model"], [], {})
        forward = self.method(model.definition, "forward")
        if forward is None:
            return canonical(self.nodes, [])
        signature = forward.args
        names = [*signature.posonlyargs, *signature.args][1:]
        count = len(names) - len(signature.defaults) + (signature.vararg is not None)
        inputs = [self.node(INPUT, fresh=True) for _ in range(count)]
        result = self.call(Function(forward, self.globals, model), inputs, {})
        return canonical(self.nodes, [ref.index for ref in refs_in(result)])

    # Nodes

    def node(self, operator: str, operands: Sequence[int] = (), *, fresh: bool = False) -> Ref:
        """Equal nodes are one, so a repeated expression is a shared value."""
        key = (operator, tuple(operands))
        if fresh or key not in self.known:
            self.nodes.append(key)
            self.known[key] = len(self.nodes) - 1
        return Ref(self.known[key])

    def apply(self, name: str, operands: Sequence[Any]) -> Any:
        """The operator of that name over the tensors among the operands."""
        operator = operator_name(name)
        if operator in SHAPE_QUERIES:
            return NUMBER
        if operator in TRANSPARENT:
            return operands[0] if operands else NUMBER
        indices = []
        for operand in operands:
            refs = refs_in(operand)
            if not refs and operator in ARITHMETIC:
                indices.append(self.node(CONST).index)
            indices.extend([ref.index for ref in refs])
        if operator in WEIGHTED:
            indices = [index for index in indices if self.nodes[index][0] != PARAM]
        return self.node(f"{operator}_" if operator in LEAVES else operator, indices)

    def apply_known(self, name: str, operands: Sequence[Any]) -> Any:
        """As `apply`, but numbers only make a number."""
        return self.apply(name, operands) if refs_in(list(operands)) else NUMBER

    def merge(self, values: list[Any]) -> Any:
        """One value for several ways to get it: itself where they agree, else an `if` over them."""
        first = values[0]
        if all(value is first or value == first for value in values):
            return first
        if all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
            return [self.merge(list(ways)) for ways in zip(*values, strict=True)]
        return self.apply("if", values) if refs_in(values) else first

    def loop(self, value: Any) -> Any:
        return self.apply("loop", [value]) if isinstance(value, Ref) else value

    # Classes and calls

    def method(self, definition: ast.ClassDef, name: str, *, inherited: bool = False) -> ast.FunctionDef | None:
        """The class's method of that name, or its bases' (only theirs when `inherited`)."""
        for statement in definition.body if not inherited else []:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
        for base in definition.bases:
            parent = self.globals.get(base.id) if isinstance(base, ast.Name) else None
            found = self.method(parent, name) if isinstance(parent, ast.ClassDef) and parent is not definition else None
            if found:
                return found
        return None

    def instantiate(self, definition: ast.ClassDef, args: list[Any], kwargs: dict[str, Any]) -> Instance:
        made = Instance(definition)
        self.run([item for item in definition.body if isinstance(item, ast.Assign)], made.attributes, [])
        constructor = self.method(definition, "__init__")
        if constructor:
            self.call(Function(constructor, self.globals, made), args, kwargs)
        return made

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        operands = [*args, *kwargs.values()]
        if isinstance(function, Layer):
            return self.call_layer(function, args, kwargs)
        if isinstance(function, Instance):
            for name in ("forward", "__call__"):
                definition = self.method(function.definition, name)
                if definition:
                    return self.call(Function(definition, self.globals, function), args, kwargs)
        if isinstance(function, ast.ClassDef):
            return self.instantiate(function, args, kwargs)
        if isinstance(function, Function):
            return self.call_function(function, args, kwargs)
        if isinstance(function, Library):
            return self.call_library(function.name, args, kwargs)
        return self.apply_known("call", [function, *operands])

    def call_layer(self, layer: Layer, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if layer.operator != "sequential":
            return self.apply(layer.operator, [*args, *kwargs.values()])
        for part in layer.parts:
            args = [self.call(part, args, {})]
        return args[0] if args else NUMBER

    def call_function(self, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        definition = function.definition
        if self.depth >= MAX_DEPTH:
            return self.apply_known(getattr(definition, "name", "lambda"), [*args, *kwargs.values()])
        signature = definition.args
        names = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
        scope = {**function.scope, **dict.fromkeys(names, NUMBER)}
        for name, default in zip(names[len(names) - len(signature.defaults) :], signature.defaults, strict=True):
            scope[name] = self.value(default, function.scope)
        for argument, given in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
            scope[argument.arg] = self.value(given, function.scope) if given else NUMBER
        if function.owner is not None:
            args = [function.owner, *args]
        scope.update(zip(names, args, strict=False))
        if signature.vararg:
            scope[signature.vararg.arg] = list(args[len(names) :])
        if signature.kwarg:
            scope[signature.kwarg.arg] = {key: value for key, value in kwargs.items() if key not in names}
        scope.update(kwargs)
        self.depth += 1
        returns: list[Any] = []
        if isinstance(definition, ast.Lambda):
            returns.append(self.value(definition.body, scope))
        else:
            self.run(definition.body, scope, returns)
        self.depth -= 1
        return self.merge(returns) if returns else NUMBER

    def call_library(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        last = name.rsplit(".", 1)[-1]
        operands = [*args, *kwargs.values()]
        if last == "Parameter":
            return self.node(PARAM, fresh=True)
        if last in ("Sequential", "ModuleList", "ModuleDict"):
            items = [list(item.values()) if isinstance(item, dict) else item for item in args]
            return Layer(
                last.lower(), [part for item in items for part in (item if isinstance(item, list) else [item])]
            )
        if last in ("list", "tuple", "reversed", "enumerate", "zip") and all(isinstance(arg, list) for arg in args):
            if last == "enumerate":
                return [[NUMBER, item] for item in args[0]]
            return [list(items) for items in zip(*args, strict=False)] if last == "zip" else args[0] if args else []
        if last[:1].isupper() and not refs_in(operands):
            return Layer(operator_name(last))
        return self.apply(last, operands) if name.startswith("torch.") else self.apply_known(last, operands)

    def attribute(self, base: Any, name: str) -> Any:
        """`base.name`, not called."""
        if isinstance(base, Library):
            return Library(f"{base.name}.{name}")
        if isinstance(base, Instance) and name in base.attributes:
            return base.attributes[name]
        if isinstance(base, Instance | ast.ClassDef):
            definition = base.definition if isinstance(base, Instance) else base
            # An autograd Function's apply is its forward.
            method = self.method(definition, "forward" if name == "apply" else name)
            if method is None:
                return NUMBER
            static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in method.decorator_list)
            owner = base if isinstance(base, Instance) else Instance(base)
            if name == "apply":
                return Function(method, self.globals, owner)
            return Function(method, self.globals, None if static else owner)
        if isinstance(base, Layer):
            return self.node(PARAM, fresh=True) if name in ("weight", "bias") else NUMBER
        if isinstance(base, Ref):
            return self.apply("transpose" if name == "T" else name, [base])
        return NUMBER

    def call_method(self, base: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`base.name(...)`."""
        if isinstance(base, Instance) and name in ("register_buffer", "register_parameter"):
            return self.node(PARAM, fresh=True)
        if isinstance(base, list) and name in ("append", "extend", "insert"):
            base.extend(args[-1] if name == "extend" and isinstance(args[-1], list) else args[-1:])
            return NUMBER
        if isinstance(base, dict) and name in ("values", "items"):
            return [[NUMBER, item] if name == "items" else item for item in base.values()]
        if isinstance(base, Ref | Number | list | dict):
            return self.apply_known(name, [base, *args, *kwargs.values()])
        if isinstance(base, Layer) and base.parts and name in ("values", "items"):
            return [[NUMBER, part] if name == "items" else part for part in base.parts]
        return self.call(self.attribute(base, name), args, kwargs)
