"""Whether the code of a class multiplies with a parameter, or only adds or scales by it: read in its source."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

# Functions and methods that multiply matrices, or pick rows of one.
_PRODUCTS = {
    *("linear", "matmul", "mm", "bmm", "mv", "dot", "inner", "addmm", "addmv", "baddbmm", "addbmm", "einsum"),
    *("tensordot", "embedding", "bilinear", "grouped_mm", "_grouped_mm", "chain_matmul", "multi_dot"),
}
# Functions whose result has the same values, in another order or form, or some of them.
_SAME = {
    *("view", "reshape", "transpose", "permute", "t", "to", "float", "half", "bfloat16", "double", "type", "type_as"),
    *("contiguous", "unsqueeze", "squeeze", "expand", "expand_as", "chunk", "split", "unbind", "flatten", "unflatten"),
    *("clone", "detach", "cat", "stack", "concat", "select", "index_select", "narrow", "repeat", "movedim", "swapaxes"),
    *("view_as", "reshape_as", "flip", "roll", "gather", "cuda", "cpu", "repeat_interleave", "moveaxis", "T", "mT"),
}


@functools.cache
def multiplied(kind: type[Any], key: str) -> bool | None:
    """Whether code of a class multiplies with ``self.key``; none where none of it reads that.

    >>> import torch
    >>> multiplied(torch.nn.Bilinear, "weight"), multiplied(torch.nn.Linear, "other")
    (True, None)
    """
    is_factor: bool | None = None
    for function in functions_of(kind, ()):
        tree = _tree(function)
        if tree is None or not tree.args.args:
            continue
        me = tree.args.args[0].arg
        uses = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == key and _is_name(n.value, me)]
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for use in uses:
            if isinstance(use.ctx, ast.Load):
                is_factor = _is_factor(use, tree, parents, set()) or bool(is_factor)
    return is_factor


# Functions that run before a model does.
_BEFORE = re.compile("init|reset|load|convert|resize|tie")
_WRITES = {"mul_", "div_", "add_", "sub_", "copy_"}


@functools.cache
def written(kind: type[Any]) -> frozenset[str]:
    """Ends of the names of layers into whose weights code of a class writes while it runs.

    RWKV divides weights when it is first called for inference: ``block.attention.output.weight.div_(...)``.
    """
    owners = set()
    for function in functions_of(kind, ()):
        tree = None if _BEFORE.search(function.__name__) else _tree(function)
        for node in ast.walk(tree) if tree is not None else ():
            target: ast.AST | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES:
                target = node.func.value
            elif isinstance(node, ast.AugAssign):
                target = node.target
            if target is not None and (owner := _owner_of_weight(target)):
                owners.add(owner)
    return frozenset(owners)


def _owner_of_weight(node: ast.AST) -> str:
    """The attributes that lead to a layer, of an expression that is its weight; nothing of others."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if path[-1:] == ["data"]:
        path.pop()
    return ".".join(path[:-1]) if path[-1:] == ["weight"] else ""


def functions_of(kind: type[Any], left_out: tuple[str, ...]) -> Iterator[types.FunctionType]:
    """Functions of a class, those of torch's own bases left out."""
    for owner in kind.__mro__:
        if owner.__module__.startswith("torch.") and owner is not kind:
            continue
        for name, value in vars(owner).items():
            value = inspect.unwrap(getattr(value, "__func__", value))
            if isinstance(value, types.FunctionType) and name not in left_out:
                yield value


def _tree(function: types.FunctionType) -> ast.FunctionDef | None:
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return definition if isinstance(definition, ast.FunctionDef) else None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_factor(node: ast.AST, tree: ast.AST, parents: dict[ast.AST, ast.AST], seen: set[str]) -> bool:
    """Whether a value is a factor of a product: itself, or what is made of it by order and form alone."""
    while (parent := parents.get(node)) is not None:
        if isinstance(parent, ast.Call):
            name = _called(parent.func)
            if name in _PRODUCTS:
                return True
            if name not in _SAME:
                return False
        elif isinstance(parent, ast.BinOp):
            return isinstance(parent.op, ast.MatMult)
        elif isinstance(parent, ast.Assign):
            names = {n.id for target in parent.targets for n in ast.walk(target) if isinstance(n, ast.Name)} - seen
            read = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in names]
            loads = [n for n in read if isinstance(n.ctx, ast.Load)]
            return any(_is_factor(load, tree, parents, seen | names) for load in loads)
        elif isinstance(parent, ast.Attribute):
            if not isinstance(parents.get(parent), ast.Call) and parent.attr not in _SAME | {"data"}:
                return False
        elif isinstance(parent, ast.Subscript):
            if parent.value is not node:
                return False
        elif not isinstance(parent, ast.IfExp | ast.Tuple | ast.List | ast.Starred | ast.keyword):
            return False
        node = parent
    return False


def _called(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
