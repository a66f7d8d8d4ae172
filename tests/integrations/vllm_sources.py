"""The sources of the vLLM that is installed: names that the plug-in imports, and the code that `blocks` takes apart.

``make test-vllm`` runs it. vLLM is read and not imported, so that any version will do, also one whose extensions do not
load here: ``PYTHONPATH=FOLDER python -m pytest tests/integrations/vllm_sources.py``.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import wcodec
from wcodec._integrations.vllm import blocks

PLUGIN = Path(wcodec.__file__).parent / "_integrations/vllm"
_found = importlib.util.find_spec("vllm")
assert _found is not None and _found.submodule_search_locations, "vLLM is not installed"
VLLM = Path(_found.submodule_search_locations[0])


@functools.cache
def module(name: str) -> ast.Module:
    """The source of a module ``vllm.…``."""
    place = VLLM.joinpath(*name.split(".")[1:])
    file = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def has(name: str, wanted: str) -> bool:
    """Whether a module has something of that name, or is a package with a module of it."""
    for node in ast.walk(module(name)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == wanted:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == wanted:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == wanted:
            return True
        # Packages that import when they are asked have names in tables.
        if isinstance(node, ast.Constant) and node.value == wanted:
            return True
    place = VLLM.joinpath(*name.split(".")[1:])
    return (place / f"{wanted}.py").exists() or (place / wanted).is_dir()


def imported() -> Iterator[tuple[str, str]]:
    for file in sorted(PLUGIN.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "vllm":
                yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize(("name", "wanted"), sorted(set(imported())), ids=".".join)
def test_names_that_the_plug_in_imports(name: str, wanted: str) -> None:
    assert has(name, wanted)


def code(name: str) -> ast.FunctionDef:
    """The ``forward`` of a class of vLLM's models: ``llama.LlamaMLP``."""
    file, kind = name.split(".")
    [found] = [
        node for node in module(f"vllm.model_executor.models.{file}").body
        if isinstance(node, ast.ClassDef) and node.name == kind
    ]  # fmt: skip
    [forward] = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    return forward


def called(forward: ast.FunctionDef) -> Counter[str]:
    """The number of times that each part of the module is called."""
    calls = [node.func for node in ast.walk(forward) if isinstance(node, ast.Call)]
    return Counter(
        call.attr for call in calls
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "self"
    )  # fmt: skip


def arguments(forward: ast.FunctionDef) -> list[str]:
    assert not forward.args.posonlyargs and not forward.args.kwonlyargs
    return [argument.arg for argument in forward.args.args]


@pytest.mark.parametrize("name", sorted(blocks.LAYERS))
def test_decoder_layers_do_nothing_else(name: str) -> None:
    form, forward = blocks.LAYERS[name], code(name)
    assert arguments(forward)[:4] == ["self", "positions", "hidden_states", "residual"]
    assert len(forward.args.defaults) == len(arguments(forward)) - 4
    norms = {form.attention, form.behind_attention, form.mlp, form.behind_mlp} - {None}
    calls = called(forward)
    assert set(calls) - {form.absent} == norms | {"self_attn", "mlp"}
    assert calls["self_attn"] == calls["mlp"] == 1
    # Attention gets the layer's other arguments, or there is nothing to hand on.
    [attention] = [
        node for node in ast.walk(forward)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "self_attn"
    ]  # fmt: skip
    keywords = [keyword.arg for keyword in attention.keywords]
    assert not attention.args and [k for k in keywords if k] == ["positions", "hidden_states"]
    assert (None in keywords) is form.passes_on is (forward.args.kwarg is not None)


@pytest.mark.parametrize("name", sorted(blocks.ATTENTIONS))
def test_attention_begins_and_ends_with_its_layers(name: str) -> None:
    forward = code(name)
    assert arguments(forward)[:3] == ["self", "positions", "hidden_states"]
    calls = called(forward)
    assert calls["qkv_proj"] == calls["o_proj"] == 1
    first, *_, before_last, last = [node for node in forward.body if not isinstance(node, ast.Expr)]
    assert ast.unparse(first) in ("qkv, _ = self.qkv_proj(hidden_states)", "(qkv, _) = self.qkv_proj(hidden_states)")
    assert "self.o_proj(attn_output)" in ast.unparse(before_last) and ast.unparse(last) == "return output"
    # The input is in nothing else.
    uses = [node for node in ast.walk(forward) if isinstance(node, ast.Name) and node.id == "hidden_states"]
    assert len(uses) == 1


@pytest.mark.parametrize("name", sorted(blocks.MLPS))
def test_mlps_are_two_layers_and_an_activation(name: str) -> None:
    forward = code(name)
    assert arguments(forward) == ["self", "x"] and not forward.args.kwarg
    calls = called(forward)
    # Those of shared experts have a gate, and are left alone where it is there.
    if calls.pop("expert_gate", 0):
        assert "if self.expert_gate is not None:" in ast.unparse(forward)
    # It is the activation where the last layer quantizes nothing.
    if "maybe_fused_act_quant(self.act_fn, x, self.down_proj)" in ast.unparse(forward):
        calls["act_fn"] += 1
    assert calls == {"gate_up_proj": 1, "act_fn": 1, "down_proj": 1}


@pytest.mark.parametrize("name", sorted(blocks.MODELS))
def test_models_hand_pairs_from_layer_to_layer(name: str) -> None:
    """Nothing but engines that guess ahead looks at what goes between them."""
    forward = code(name)
    text = ast.unparse(forward)
    if "super().forward(" in text:
        return
    [loop] = [node for node in ast.walk(forward) if isinstance(node, ast.For)]
    [call] = [n for n in ast.walk(loop) if isinstance(n, ast.Call) and ast.unparse(n.func) == "layer"]
    assert [ast.unparse(argument) for argument in call.args] == ["positions", "hidden_states", "residual"]
    others = [ast.unparse(node) for node in loop.body if call not in ast.walk(node)]
    assert all("aux_hidden_state" in other or "_maybe_add_hidden_state" in other for other in others), others


@pytest.mark.parametrize("name", sorted(blocks.NORMS))
def test_norms_have_the_attributes_that_launches_take(name: str) -> None:
    text = "\n".join(file.read_text() for file in (VLLM / "model_executor/layers").glob("layernorm*.py"))
    [kind] = [n for n in ast.parse(text.replace("from __future__", "# ")).body if getattr(n, "name", "") == name]
    assert f"self.{blocks.NORMS[name].epsilon} = " in ast.unparse(kind)
