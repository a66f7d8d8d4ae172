"""Mistakes in benchmarks that only a run on a GPU would show."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "pyext/benches").rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_variable_hides_a_function(file: Path) -> None:
    tree = ast.parse(file.read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for function in functions.values():
        nodes = list(ast.walk(function))
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        hidden = stored & called & set(functions)
        assert not hidden, f"{file.name}: {function.name} assigns {sorted(hidden)}, and calls the functions so named"
