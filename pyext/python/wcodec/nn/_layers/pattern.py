"""Facts about a module's ``forward``, read from its code: which layers it gives one tensor to, and whether it is a
mixture's experts. The code counts, as Python parses it; what differs in any step is not taken.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import textwrap
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

_PACKAGE = f"{os.sep}transformers{os.sep}"
_EXPERTS = """
final = torch.zeros_like(hidden_states)
with torch.no_grad():
    mask = one_hot(top_k_index, num_classes=self.num_experts)
    mask = mask.permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
for expert_idx in hit:
    expert_idx = expert_idx[0]
    if expert_idx == self.num_experts:
        continue
    top_k_pos, token_idx = torch.where(mask[expert_idx])
    current_state = hidden_states[token_idx]
    gate, up = linear(current_state, self.gate_up_proj[expert_idx]).chunk(2, dim=-1)
    current = self.act_fn(gate) * up
    current = linear(current, self.down_proj[expert_idx])
    current = current * top_k_weights[token_idx, top_k_pos, None]
    final.index_add_(0, token_idx, current.to(final.dtype))
return final
"""
# A variant of that code, with a method of the module in the middle.
_EXPERTS_OF_THEIR_OWN = """
final = torch.zeros_like(hidden_states)
with torch.no_grad():
    mask = one_hot(top_k_index, num_classes=self.num_experts).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
for expert_idx in hit:
    expert_idx = expert_idx[0]
    if expert_idx == self.num_experts:
        continue
    top_k_pos, token_idx = torch.where(mask[expert_idx])
    current = self._apply_gate(linear(hidden_states[token_idx], self.gate_up_proj[expert_idx]))
    current = linear(current, self.down_proj[expert_idx]) * top_k_weights[token_idx, top_k_pos, None]
    final.index_add_(0, token_idx, current.to(final.dtype))
return final
"""


class Siblings(NamedTuple):
    """Layers that a ``forward`` gives one of its arguments to, each once and in any case."""

    argument: str
    names: tuple[str, ...]


class ExpertForm(NamedTuple):
    """The way a module of experts joins gates and values: by its activation of gates, or by a method of its own."""

    is_custom: bool

    def join(self, experts: Any, gates_and_values: Any) -> Any:
        """The input of the second matrices, from the products with the first ones."""
        if self.is_custom:
            return experts._apply_gate(gates_and_values)
        gate, value = gates_and_values.chunk(2, dim=-1)
        return experts.act_fn(gate) * value


def _function(forward: Any) -> ast.FunctionDef | None:
    """The code of a ``forward``; none of one that is wrapped by others, who may do anything."""
    function = forward
    while hasattr(function, "__wrapped__"):
        # Only transformers' own wrappers are known: those for checkpoints of gradients.
        if _PACKAGE not in function.__code__.co_filename:
            return None
        function = function.__wrapped__
    try:
        source = textwrap.dedent(inspect.getsource(function))
        parsed = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, AttributeError, IndexError):
        return None
    if not isinstance(parsed, ast.FunctionDef):
        return None
    return None if None in map(_earlier_name, parsed.decorator_list) else parsed


def _earlier_name(decorator: ast.expr) -> str | None:
    """The name that an argument had in earlier versions of transformers, which 5.24 gives most of its ``forward`` by a
    decorator: all that it does is to rename that. None of any other decorator."""
    if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Name) or not decorator.args:
        return None
    name = decorator.args[0]
    if decorator.func.id != "deprecate_kwarg" or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    return name.value


def _arguments(function: ast.FunctionDef) -> list[str]:
    """Names of the arguments, without ``self``; not those that gather others."""
    given = function.args
    return [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)][1:]


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """Its statements, without the text in front."""
    first = function.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return function.body[1:] if text else function.body


def _same(body: list[ast.stmt], text: str) -> bool:
    return ast.dump(ast.Module(body, [])) == ast.dump(ast.Module(ast.parse(text).body, []))


def _own_call(node: ast.AST) -> str | None:
    """The name of the attribute, where a node is ``self.name(...)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner = node.func.value
    return node.func.attr if isinstance(owner, ast.Name) and owner.id == "self" else None


def _changed_by(call: ast.Call) -> set[str]:
    """Names of variables that a call may change in place, judged by its name and its keyword arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_in_place = any(keyword.arg in ("inplace", "out") for keyword in call.keywords)
    if not is_in_place and not name.endswith("_"):
        return set()
    return {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}


def _in_any_case(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes that run whenever the body does, as they are there: none behind a condition, in a loop, under a context
    manager or in a function of its own."""
    stack: list[ast.AST] = [*body]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            stack.append(node.test)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            stack.append(node.iter)
        elif isinstance(node, ast.BoolOp):
            stack.append(node.values[0])
        elif not isinstance(
            node,
            (
                ast.Try,
                ast.With,
                ast.AsyncWith,
                ast.FunctionDef,
                ast.AsyncFunctionDef,
                ast.Lambda,
                ast.ListComp,
                ast.SetComp,
                ast.DictComp,
            )
            + (ast.GeneratorExp, ast.ClassDef, ast.Match),
        ):
            stack.extend(ast.iter_child_nodes(node))


def siblings(kind: Any) -> tuple[Siblings, ...]:
    """All of a class's ``forward``, each of two layers at least.

    >>> import torch
    >>> siblings(torch.nn.Linear)
    ()
    """
    return _siblings(kind.forward)


@functools.lru_cache(maxsize=1024)
def _siblings(forward: Any) -> tuple[Siblings, ...]:
    return tuple(Siblings(argument, names) for argument, names in read_by(forward).items() if len(names) > 1)


@functools.lru_cache(maxsize=1024)
def read_by(forward: Any) -> dict[str, tuple[str, ...]]:
    """Layers that a ``forward`` gives an argument to, each once and in any case, by that argument."""
    function = _function(forward)
    if function is None:
        return {}
    body = _body(function)
    nodes = [node for statement in body for node in ast.walk(statement)]
    # An argument that takes another value, or that is changed in place, is not one tensor to all of them.
    changed = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed |= {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if isinstance(node, ast.Call):
            changed |= _changed_by(node)
        # Another name for it, under which it may be changed.
        if isinstance(node, (ast.Assign, ast.NamedExpr)) and isinstance(node.value, ast.Name):
            changed.add(node.value.id)
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        name = _own_call(node)
        if name is not None and isinstance(node, ast.Call):
            calls.setdefault(name, []).append(node)
    always = {id(node) for node in _in_any_case(body)}
    names_by_argument: dict[str, list[str]] = {}
    for name, calls_of_name in calls.items():
        call = calls_of_name[0]
        if len(calls_of_name) > 1 or id(call) not in always or len(call.args) != 1 or call.keywords:
            continue
        given = call.args[0]
        if isinstance(given, ast.Name) and given.id in _arguments(function) and given.id not in changed:
            names_by_argument.setdefault(given.id, []).append(name)
    return {argument: tuple(names) for argument, names in names_by_argument.items()}


def expert_form(kind: Any) -> ExpertForm | None:
    """The way a class of experts joins gates and values, if it does what Mixtral's does, expert by expert: gates and
    values, the second matrix, weights of routing, and a sum for each token."""
    return _expert_form(kind.forward)


@functools.lru_cache(maxsize=1024)
def _expert_form(forward: Any) -> ExpertForm | None:
    function = _function(forward)
    if function is None or _arguments(function) != ["hidden_states", "top_k_index", "top_k_weights"]:
        return None
    body = [_Renamed().visit(statement) for statement in _body(function)]
    forms = [is_custom for is_custom, text in ((False, _EXPERTS), (True, _EXPERTS_OF_THEIR_OWN)) if _same(body, text)]
    return ExpertForm(forms[0]) if forms else None


class _Renamed(ast.NodeTransformer):
    """Names that the code of experts has for one thing, which are many, become one; so does a class more for experts
    that others have, which transformers counts since 5.23."""

    _NAMES: ClassVar[dict[str, str]] = {
        "final_hidden_states": "final",
        "expert_mask": "mask",
        "expert_hit": "hit",
        "current_hidden_states": "current",
    }
    _FUNCTIONS = ("one_hot", "linear")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._NAMES.get(node.id, node.id), node.ctx)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return node.left if ast.unparse(node) == "self.num_experts + 1" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``F.linear``, ``nn.functional.linear`` and ``torch.nn.functional.linear`` are one."""
        owner = ast.unparse(node.value)
        if node.attr in self._FUNCTIONS and owner in ("F", "nn.functional", "torch.nn.functional"):
            return ast.Name(node.attr, node.ctx)
        self.generic_visit(node)
        return node
