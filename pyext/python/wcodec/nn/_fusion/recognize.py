"""Which description of :mod:`wcodec.nn.specs` the code of a module's ``forward`` is.

Names of classes say little: transformers has 70 decoder layers that do what Llama's does, and some named so that do
not. So it is the code that counts, as Python parses it; what differs in any step is not taken. Names of local
variables, and of the one argument, are no matter.
"""

from __future__ import annotations

import ast
import functools
from typing import Any, NamedTuple

from .._layers.pattern import _arguments, _body, _earlier_name, _function, _own_call, read_by
from . import specs
from .spec import AttentionSpec, BlockSpec, MlpSpec, NormSpec


class Call(NamedTuple):
    """A decoder layer's call of a module: keyword, and the layer's own argument of that value; and the name of the
    dictionary that it hands on."""

    keywords: tuple[tuple[str, str], ...]
    rest: str | None


class BlockForm(NamedTuple):
    """A decoder layer's description, how it calls what attends, by the names of these modules, and names that its
    arguments had in earlier versions, and may still be called by."""

    spec: BlockSpec
    calls: dict[str, Call]
    earlier: tuple[str, ...]


class _Names(ast.NodeTransformer):
    """Gives the first argument, and local variables in the order in which they are assigned, names of their own."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _canonical(body: list[ast.stmt], argument: str) -> str:
    """The text that two bodies have in common if they differ in names only. Changes the body."""
    names = {argument: "$x"}
    for statement in body:
        for node in _in_order(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
                names[node.id] = f"${len(names)}"
    body = [_Names(names).visit(statement) for statement in body]
    # A last result that is named before it is returned.
    if len(body) > 1 and isinstance(body[-1], ast.Return) and isinstance(body[-2], ast.Assign):
        value, (target, *others) = body[-1].value, body[-2].targets
        if not others and isinstance(target, ast.Name) and isinstance(value, ast.Name) and target.id == value.id:
            body = [*body[:-2], ast.Return(body[-2].value)]
    return ast.dump(ast.Module(body, []))


def _in_order(node: ast.AST) -> list[ast.AST]:
    nodes = [node]
    for child in ast.iter_child_nodes(node):
        nodes += _in_order(child)
    return nodes


@functools.cache
def _stated(text: str, argument: str) -> str:
    return _canonical(ast.parse(text).body, argument)


def _code_of(forward: Any) -> str | None:
    """The canonical code of a function of one argument beside ``self``."""
    function = _function(forward)
    if function is None or len(_arguments(function)) != 1 or function.args.vararg or function.args.kwarg:
        return None
    return _canonical(_body(function), _arguments(function)[0])


def block_form(kind: Any) -> BlockForm | None:
    """The description of a class of decoder layers, if there is one."""
    return _block_form(kind.forward)


@functools.lru_cache(maxsize=1024)
def _block_form(forward: Any) -> BlockForm | None:
    function = _function(forward)
    if function is None or _arguments(function)[:1] != ["hidden_states"]:
        return None
    body = _body(function)
    arguments, rest = set(_arguments(function)), function.args.kwarg
    attending = {spec.attention.module for spec in specs.blocks()}
    attending |= {name for spec in specs.blocks() if spec.choice for name in spec.choice.others.values()}
    calls: dict[str, Call] = {}
    for node in (node for statement in body for node in ast.walk(statement)):
        name = _own_call(node)
        if name not in attending or not isinstance(node, ast.Call):
            continue
        call = _call(node)
        if name in calls or call is None:
            return None
        if not all(value in arguments for _, value in call.keywords):
            return None
        if call.rest is not None and (rest is None or call.rest != rest.arg):
            return None
        calls[name] = call
        node.keywords = [k for k in node.keywords if k.arg == "hidden_states"]
    earlier = tuple(name for name in map(_earlier_name, function.decorator_list) if name is not None)
    code = _canonical(body, "hidden_states")
    for spec in specs.blocks():
        if code == _stated(spec.code, "hidden_states"):
            return BlockForm(spec, calls, earlier)
    return None


def _call(node: ast.Call) -> Call | None:
    """The arguments of a call besides ``hidden_states``; nothing where these are more than names."""
    keywords: list[tuple[str, str]] = []
    rest = None
    for keyword in node.keywords:
        if not isinstance(keyword.value, ast.Name):
            return None
        if keyword.arg is None:
            rest = keyword.value.id
        elif keyword.arg != "hidden_states":
            keywords.append((keyword.arg, keyword.value.id))
    return Call(tuple(keywords), rest)


def norm_form(kind: Any) -> NormSpec | None:
    """The description of a class of norms, if there is one."""
    code = _code_once(kind.forward)
    for spec in specs.norms():
        if code is not None and code == _stated(spec.code, "x"):
            methods = {name: getattr(kind, name, None) for name in spec.methods}
            if all(_code_once(methods[name]) == _stated(text, "x") for name, text in spec.methods.items()):
                return spec
    return None


def mlp_form(kind: Any) -> MlpSpec | None:
    """The description of a class of MLPs, if there is one."""
    code = _code_once(kind.forward)
    return next((spec for spec in specs.mlps() if code is not None and code == _stated(spec.code, "x")), None)


@functools.lru_cache(maxsize=4096)
def _code_once(forward: Any) -> str | None:
    return _code_of(forward)


def attention_form(kind: Any) -> AttentionSpec | None:
    """The description of a class of attention, if there is one: its layers read ``hidden_states``, of which nothing
    else is looked at but shape, dtype and device, and what its last layer makes is returned in front of something
    else."""
    return next((spec for spec in specs.attentions() if _attends(kind.forward, spec)), None)


@functools.lru_cache(maxsize=4096)
def _attends(forward: Any, spec: AttentionSpec) -> bool:
    function = _function(forward)
    argument = "hidden_states"
    if function is None or set(read_by(forward).get(argument, ())) != set(spec.first):
        return False
    body = _body(function)
    nodes = [node for statement in body for node in ast.walk(statement)]
    # Places where the input is an argument of these layers, or only its form is asked for.
    harmless = set()
    for node in nodes:
        if _own_call(node) in spec.first and isinstance(node, ast.Call):
            harmless |= {id(a) for a in node.args}
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device", "size"):
            harmless.add(id(node.value))
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == argument]
    if any(id(n) not in harmless for n in uses):
        return False
    outputs = [n for n in nodes if _own_call(n) == spec.last]
    if len(body) < 2 or len(outputs) != 1 or len([n for n in nodes if isinstance(n, ast.Return)]) != 1:
        return False
    # output = self.o_proj(...), and right behind it: return output, ...
    final, last = body[-2], body[-1]
    if not isinstance(final, ast.Assign) or final.value is not outputs[0] or len(final.targets) != 1:
        return False
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple) or not last.value.elts:
        return False
    target, first = final.targets[0], last.value.elts[0]
    return isinstance(target, ast.Name) and isinstance(first, ast.Name) and target.id == first.id
