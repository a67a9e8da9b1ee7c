"""Walks Python syntax for `core.tasks.structure`: statements change a scope, expressions have values.

This half knows the language; what operators and calls do with values is the subclass's matter.
"""

import ast
from abc import ABC, abstractmethod
from typing import Any

from core import parsing
from core.tasks.structure_values import NUMBER, Function, Instance, Layer, Library, Ref, refs_in

MAX_UNROLLED = 32
"""Steps of a loop over a known list that are followed one by one; longer ones are walked once."""

Scope = dict[str, Any]


class Walk(ABC):
    globals: Scope

    @abstractmethod
    def apply_known(self, name: str, operands: list[Any]) -> Any:
        """The operator of that name over the operands; a number where they are all numbers."""

    @abstractmethod
    def merge(self, values: list[Any]) -> Any:
        """One value for several ways to get it."""

    @abstractmethod
    def call(self, function: Any, args: list[Any], kwargs: Scope) -> Any: ...

    @abstractmethod
    def call_method(self, base: Any, name: str, args: list[Any], kwargs: Scope) -> Any: ...

    @abstractmethod
    def attribute(self, base: Any, name: str) -> Any: ...

    @abstractmethod
    def method(self, definition: ast.ClassDef, name: str, *, inherited: bool = False) -> ast.FunctionDef | None: ...

    # Statements

    def run(self, statements: list[ast.stmt], scope: Scope, returns: list[Any]) -> bool:
        """Run a block; what it returns is appended to `returns`. True when it ends by returning or raising."""
        return any([self.statement(statement, scope, returns) for statement in statements[: _reached(statements)]])

    def statement(self, node: ast.stmt, scope: Scope, returns: list[Any]) -> bool:
        if isinstance(node, ast.Return):
            returns.append(self.value(node.value, scope) if node.value else NUMBER)
            return True
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope)
            for target in node.targets:
                self.bind(target, value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value:
            self.bind(node.target, self.value(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            changed = self.value(ast.BinOp(_loaded(node.target), node.op, node.value), scope)
            self.bind(node.target, changed, scope)
        elif isinstance(node, ast.Expr):
            self.value(node.value, scope)
        elif isinstance(node, ast.If):
            return self.branches([node.body, node.orelse], scope, returns)
        elif isinstance(node, ast.For):
            self.walk_for(node, scope, returns)
        elif isinstance(node, ast.While):
            self.walk_once(node.body, scope, returns)
        elif isinstance(node, ast.With):
            for item in node.items:
                self.value(item.context_expr, scope)
            return self.run(node.body, scope, returns)
        elif isinstance(node, ast.Try):
            return self.branches(
                [[*node.body, *node.orelse, *node.finalbody], *[h.body for h in node.handlers]], scope, returns
            )
        elif isinstance(node, ast.FunctionDef):
            scope[node.name] = Function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self.globals[node.name] = scope[node.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                scope[alias.asname or alias.name.split(".")[0]] = Library(
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            scope.update({alias.asname or alias.name: Library(f"{node.module}.{alias.name}") for alias in node.names})
        return isinstance(node, ast.Raise)

    def branches(self, blocks: list[list[ast.stmt]], scope: Scope, returns: list[Any]) -> bool:
        """Run every block on a copy of the scope and join what those that go on have made of it."""
        after = []
        for block in blocks:
            copy = dict(scope)
            if not self.run(block, copy, returns):
                after.append(copy)
        for name in dict.fromkeys(name for copy in after for name in copy):
            scope[name] = self.merge([copy[name] for copy in after if name in copy])
        return not after

    def walk_for(self, node: ast.For, scope: Scope, returns: list[Any]) -> None:
        items = self.items(self.value(node.iter, scope))
        if isinstance(items, list) and len(items) <= MAX_UNROLLED:
            for item in items:
                self.bind(node.target, item, scope)
                self.run(node.body, scope, returns)
        else:
            self.bind(node.target, self.item(items), scope)
            self.walk_once(node.body, scope, returns)

    def walk_once(self, body: list[ast.stmt], scope: Scope, returns: list[Any]) -> None:
        """One step stands for all; tensors that it changes are marked as results of a loop."""
        before = dict(scope)
        self.run(body, scope, returns)
        for name, value in scope.items():
            if isinstance(value, Ref) and before.get(name) != value:
                scope[name] = self.apply_known("loop", [value])

    def items(self, value: Any) -> Any:
        if isinstance(value, Layer) and value.parts:
            return value.parts
        return list(value) if isinstance(value, list | dict) else value

    def item(self, items: Any) -> Any:
        return items[0] if isinstance(items, list) else self.apply_known("item", [items])

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for place, part in enumerate(target.elts):
                if isinstance(value, list):
                    self.bind(part, value[place] if place < len(value) else NUMBER, scope)
                else:
                    self.bind(part, self.apply_known(f"part{place}", [value]), scope)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value, scope)
            if isinstance(base, Instance):
                base.attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            base = self.value(target.value, scope)
            if isinstance(base, Ref):
                self.bind(
                    target.value, self.apply_known("store", [base, value, self.value(target.slice, scope)]), scope
                )
            elif isinstance(base, dict):
                base[ast.unparse(target.slice)] = value

    # Expressions

    def value(self, node: ast.expr, scope: Scope) -> Any:
        reader = getattr(self, f"value_{type(node).__name__.lower()}", None)
        if reader:
            return reader(node, scope)
        parts = [self.value(child, scope) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return self.apply_known(type(node).__name__, parts)

    def value_constant(self, node: ast.Constant, scope: Scope) -> Any:
        return NUMBER

    def value_name(self, node: ast.Name, scope: Scope) -> Any:
        return scope[node.id] if node.id in scope else self.globals.get(node.id, Library(node.id))

    def value_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.value(node.value, scope), node.attr)

    def value_lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope)

    def value_binop(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        return self.apply_known(type(node.op).__name__, [left, right])

    def value_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        operand = self.value(node.operand, scope)
        return operand if isinstance(node.op, ast.UAdd) else self.apply_known(type(node.op).__name__, [operand])

    def value_boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        return self.apply_known(type(node.op).__name__, [self.value(part, scope) for part in node.values])

    def value_compare(self, node: ast.Compare, scope: Scope) -> Any:
        operands = [self.value(part, scope) for part in (node.left, *node.comparators)]
        return self.apply_known(type(node.ops[0]).__name__, operands)

    def value_ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.merge([self.value(node.body, scope), self.value(node.orelse, scope)])

    def value_tuple(self, node: ast.Tuple | ast.List | ast.Set, scope: Scope) -> Any:
        values: list[Any] = []
        for part in node.elts:
            value = self.value(part.value if isinstance(part, ast.Starred) else part, scope)
            values.extend(value if isinstance(part, ast.Starred) and isinstance(value, list) else [value])
        return values

    value_list = value_set = value_tuple

    def value_dict(self, node: ast.Dict, scope: Scope) -> Any:
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.unparse(key) if key else "**": self.value(part, scope) for key, part in pairs}

    def value_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        scope[node.target.id] = self.value(node.value, scope)
        return scope[node.target.id]

    def value_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base, place = self.value(node.value, scope), node.slice
        if isinstance(base, Layer) and base.parts:
            base = base.parts
        if isinstance(base, dict):
            return base.get(ast.unparse(place), NUMBER)
        if isinstance(base, list):
            number = _whole(place)
            if number is not None and -len(base) <= number < len(base):
                return base[number]
            return base if isinstance(place, ast.Slice) else (base or [NUMBER])[0]
        return self.apply_known("index", [base, self.value(place, scope)])

    def value_slice(self, node: ast.Slice, scope: Scope) -> Any:
        parts = [self.value(part, scope) for part in (node.lower, node.upper, node.step) if part]
        return [part for part in parts if refs_in(part)] or NUMBER

    def value_listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> Any:
        inner = dict(scope)
        first = node.generators[0]
        items = self.items(self.value(first.iter, inner))
        if isinstance(items, list) and len(items) <= MAX_UNROLLED and len(node.generators) == 1:
            values = []
            for item in items:
                self.bind(first.target, item, inner)
                values.append(self.value(node.elt, inner))
            return values
        for generator in node.generators:
            self.bind(generator.target, self.item(self.items(self.value(generator.iter, inner))), inner)
        return [self.value(node.elt, inner)]

    value_generatorexp = value_setcomp = value_listcomp

    def value_call(self, node: ast.Call, scope: Scope) -> Any:
        args = self.value_tuple(ast.List(node.args), scope)
        kwargs: Scope = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            kwargs.update({keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {})
        function = node.func
        if not isinstance(function, ast.Attribute):
            return self.call(self.value(function, scope), args, kwargs)
        owner = scope.get("self")
        if _is_super(function.value) and isinstance(owner, Instance):
            method = self.method(owner.definition, function.attr, inherited=True)
            return self.call(Function(method, self.globals, owner), args, kwargs) if method else NUMBER
        base = self.value(function.value, scope)
        made = self.call_method(base, function.attr, args, kwargs)
        if isinstance(base, Instance) and function.attr in ("register_buffer", "register_parameter") and node.args:
            base.attributes[str(getattr(node.args[0], "value", ""))] = made
        return made


def _reached(statements: list[ast.stmt]) -> int:
    """How many statements of a block can be reached."""
    for number, statement in enumerate(statements, start=1):
        if isinstance(statement, ast.Return | ast.Raise):
            return number
    return len(statements)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _whole(node: ast.expr) -> int | None:
    """A literal index."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _whole(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _loaded(target: ast.expr) -> ast.expr:
    statement = parsing.parse(ast.unparse(target)).body[0]
    assert isinstance(statement, ast.Expr)
    return statement.value
