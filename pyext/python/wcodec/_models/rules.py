"""Names and conversions of a checkpoint's tensors, by the rules that transformers loads it with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

Read = Callable[[str], torch.Tensor]


class Rules:
    """The rules of one model: which tensor of a checkpoint goes where in it.

    :param model: a model of transformers; its tensors may be without data.
    :param known: its parameters and buffers, by their names.
    """

    def __init__(self, model: Any, known: Mapping[str, Any]) -> None:
        self._known = dict(known)
        self._prefix = getattr(model, "base_model_prefix", "") or None
        self._core: Any = None
        self._renamings: list[Any] = []
        self._converters: list[Any] = []
        try:
            from transformers import core_model_loading as core
            from transformers.conversion_mapping import get_model_conversion_mapping
        except ImportError:
            # Versions before 5 have modules that are named like their checkpoints.
            return
        if not hasattr(model, "config"):
            return
        self._core = core
        rules = get_model_conversion_mapping(model)
        self._renamings = [rule for rule in rules if isinstance(rule, core.WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, core.WeightConverter)]

    def in_order(self, keys: Iterable[str]) -> list[str]:
        """Names of tensors in the order in which transformers goes through them, which some rules depend on."""
        natural = getattr(self._core, "dot_natural_key", None)
        return sorted(keys, key=natural) if natural is not None else sorted(keys)

    def place_of(self, key: str) -> tuple[str, Any]:
        """The name in the model that a tensor gets, whether there is such a one or not, and the converter and the
        pattern of it that take the tensor, if any do."""
        name, pattern = self._renamed(key, self._renamings, self._converters)
        if name not in self._known and key in self._known:
            # Named as in the model already.
            name, pattern = self._renamed(key, [], [])
        if name not in self._known and self._known_plainly(key):
            name, pattern = self._known_plainly(key), None
        if pattern is None:
            return name, None
        converter = next(c for c in self._converters if pattern in c.source_patterns)
        return name, (converter, pattern)

    def _renamed(self, key: str, renamings: list[Any], converters: list[Any]) -> tuple[str, Any]:
        if self._core is None:
            return self._known_plainly(key) or key, None
        renamed: tuple[str, Any] = self._core.rename_source_key(key, renamings, converters, self._prefix, self._known)
        return renamed

    def _known_plainly(self, key: str) -> str:
        """A name that the model has, with or without the prefix of its base; nothing if it has none."""
        if key in self._known:
            return key
        if self._prefix is None:
            return ""
        short = key.removeprefix(f"{self._prefix}.")
        return next((n for n in (short, f"{self._prefix}.{key}") if n in self._known), "")


class Conversion:
    """Tensors of a checkpoint of which transformers makes parameters of a model: parts of one, several put together,
    or both.

    :param converter: the rule of transformers.
    :param name: the name that it gives its tensors, which is that of the first parameter it makes.
    """

    def __init__(self, converter: Any, name: str, model: Any) -> None:
        self._converter, self._name = converter, name
        self._model = _Shapes(model)
        self._sources: list[tuple[str, str]] = []
        self._made: dict[str, torch.Tensor] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The tensors of the checkpoint."""
        return tuple(key for key, _ in self._sources)

    @property
    def operations(self) -> list[str]:
        """Classes of the operations, in order."""
        return [type(operation).__name__ for operation in self._converter.operations]

    @property
    def dims(self) -> list[Any]:
        """Dimensions that the operations work along."""
        return [getattr(operation, "dim", None) for operation in self._converter.operations]

    @property
    def patterns(self) -> list[str]:
        """Patterns of the tensors' names, in order."""
        return list(self._converter.source_patterns)

    def add(self, key: str, pattern: str) -> None:
        """Another tensor."""
        self._sources.append((key, pattern))

    def sources(self) -> list[tuple[str, str]]:
        """The tensors, each with the pattern that its name fits."""
        return list(self._sources)

    def shapes(self, shape_of: Callable[[str], tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The parameters that are made, and their shapes, without reading anything.

        :raises Exception: any exception, if transformers cannot make them of tensors of these shapes.
        """
        made = self._run(lambda key: torch.empty(shape_of(key), device="meta"))
        return {name: tuple(value.shape) for name, value in made.items()}

    def value(self, name: str, read: Read) -> torch.Tensor:
        """A parameter that is made. All of them are kept until each was asked for once."""
        if self._made is None or name not in self._made:
            self._made = self._run(read)
        value = self._made.pop(name)
        if not self._made:
            self._made = None
        return value

    def _run(self, read: Read) -> dict[str, torch.Tensor]:
        converter = copy.deepcopy(self._converter)
        for key, pattern in self._sources:
            converter.add_tensor(self._name, key, pattern, partial(read, key))
        made = converter.convert(self._name, model=self._model, config=self._model.config)
        # The first versions of transformers 5 return errors, too.
        made = made[0] if isinstance(made, tuple) else made
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


class _Shapes:
    """Stands for a model in conversions, with the shapes that its parameters had before layers were replaced."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self._model = model
        self._parameters = {
            name: torch.empty(p.shape, dtype=p.dtype, device="meta")
            for name, p in model.named_parameters(remove_duplicate=False)
        }

    def get_parameter(self, name: str) -> torch.Tensor:
        """A tensor of the parameter's shape."""
        return self._parameters[name]

    get_parameter_or_buffer = get_parameter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)
