"""Watching a model's products while it runs: their inputs, and the gradients of their outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..nn.experts import STACKS, eager_forward
from .units import Product

Seen = Callable[[Product, torch.Tensor, torch.Tensor], "torch.Tensor | None"]
"""Called with a product, its input and its output; what it returns takes the output's place."""


class Enough(Exception):  # noqa: N818 - it is no error: a pass needs no layers after these.
    """Ends a forward pass whose later layers nobody looks at."""


@contextmanager
def watching(model: Any, products: Sequence[Product], seen: Seen) -> Iterator[None]:
    """While this lasts, ``seen`` is called at each product. Experts are computed one by one."""
    modules = dict(model.named_modules())
    handles: list[Any] = []
    experts: dict[str, list[Product]] = {}
    undo: list[Callable[[], object]] = []
    calls = _Calls(seen)
    for product in products:
        if product.expert is None:
            hook = functools.partial(_after, product, seen)
            handles.append(modules[product.module].register_forward_hook(hook))
        else:
            experts.setdefault(product.module, []).append(product)
    try:
        for name, ones in experts.items():
            undo.append(_one_by_one(modules[name], ones, calls))
        # Every function of torch is looked at by it, which takes as long as a small model does.
        with calls if experts else nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()
        for back in undo:
            back()


def _after(product: Product, seen: Seen, module: Any, args: tuple[Any, ...], output: Any) -> Any:
    return seen(product, args[0], output) if args else None


class _Stack:
    """Stands where a module of experts has a parameter: each matrix taken of it is known by the product it is for."""

    def __init__(self, parameter: torch.Tensor, products: dict[int, Product], calls: _Calls) -> None:
        self._parameter, self._products, self._calls = parameter, products, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)

    def __len__(self) -> int:
        return len(self._parameter)

    def __getitem__(self, index: Any) -> torch.Tensor:
        matrix = self._parameter[index]
        if matrix.dim() == 2:
            self._calls.expect(matrix, self._products.get(int(index)))
        return matrix


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Sees products with matrices of stacks, which are calls of functions and not of modules."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen
        self._last: list[tuple[torch.Tensor, Product]] = []

    def expect(self, matrix: torch.Tensor, product: Product | None) -> None:
        """A product with this matrix comes."""
        if product is not None:
            # Not more than one expert's matrices at once: others were used already.
            self._last = [*self._last[-(len(STACKS) - 1) :], (matrix, product)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.linear and self._last:
            weight = args[1] if len(args) > 1 else (kwargs or {}).get("weight")
            product = next((p for matrix, p in self._last if matrix is weight), None)
            if product is not None and args:
                changed = self._seen(product, args[0], output)
                return output if changed is None else changed
        return output


def _one_by_one(module: Any, products: list[Product], calls: _Calls) -> Callable[[], object]:
    """Makes a module compute expert by expert, with stacks that are watched; what undoes that."""
    parameters = dict(module._parameters)
    before = module.__dict__.get("forward")
    eager: Any = eager_forward(module)

    def undo() -> None:
        for stack in STACKS:
            module.__dict__.pop(stack, None)
        module._parameters.clear()
        module._parameters.update(parameters)
        module.__dict__.pop("forward", None)
        if before is not None:
            module.__dict__["forward"] = before

    for stack in STACKS:
        by_expert = {p.expert: p for p in products if p.stack == stack and p.expert is not None}
        del module._parameters[stack]
        module.__dict__[stack] = _Stack(parameters[stack], by_expert, calls)
    module.__dict__["forward"] = functools.partial(eager, module)
    return undo


@contextmanager
def quiet(model: Any) -> Iterator[None]:
    """A model in evaluation mode, of which no parameter wants a gradient."""
    training = [module for module in model.modules() if module.training]
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in wanting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for parameter in wanting:
            parameter.requires_grad_(True)


def with_gradient(output: torch.Tensor) -> torch.Tensor:
    """The output as the beginning of what gradients are taken of. It is no leaf: a model may change it in place."""
    return output.detach().requires_grad_(True) * 1
