"""Small models: building one of an architecture that works, running it, and all that it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .configs import small_configs
from .inputs import forward_inputs

MOST_PARAMETERS = 20_000_000
SEED = 11


@dataclass
class Built:
    """A model, and how far it works."""

    model: Any
    inputs: dict[str, Any] | None
    """Arguments of ``forward`` that it takes."""
    error: str
    """Its own error where it takes none of those that were tried."""


def build(auto: Any, architecture: str) -> Built:
    """The first model of the architecture's configurations that runs; if none does, the first one that can be built.

    :raises Exception: transformers' own, where none can be built.
    """
    error: Exception | None = None
    first: Built | None = None
    for dtype in (torch.bfloat16, torch.float32):
        for config in small_configs(architecture, auto.__name__):
            try:
                model = _model(auto, config, dtype)
            except Exception as failure:
                error = error or failure
                continue
            made = run(model)
            if made.inputs is not None:
                return made
            first = first or made
            # Some compute in float32 only.
            if dtype == torch.float32 or "dtype" in made.error or "scalar type" in made.error:
                break
    if first is not None:
        return first
    raise error or ValueError("no configuration")


def run(model: Any) -> Built:
    """Looks for arguments that a model takes."""
    error = ""
    for inputs in forward_inputs(model):
        try:
            forward(model, inputs)
        except Exception as failure:
            error = error or described(failure)
            continue
        return Built(model, inputs, "")
    return Built(model, None, error or "no arguments known")


def described(error: BaseException) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _model(auto: Any, config: Any, dtype: torch.dtype) -> Any:
    # An Auto class that has several classes for a configuration takes the first one of this.
    config.architectures = config.architectures or []
    # Some hold numbers of layers or widths that the rules do not know: their size is found out before they are made.
    with torch.device("meta"):
        count = sum(p.numel() for p in auto.from_config(config, dtype=dtype).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters are too many")
    torch.manual_seed(SEED)
    model = auto.from_config(config, dtype=dtype).eval()
    shake(model)
    return model


def shake(model: Any) -> None:
    """Adds noise to all that a model keeps, biases, norms and statistics too, so that losing any of it shows."""
    generator = torch.Generator().manual_seed(SEED)
    kept = set(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_((torch.randn(parameter.shape, generator=generator) * 0.02).to(parameter.dtype))
        for name, buffer in model.named_buffers():
            if name in kept and buffer.is_floating_point():
                # Variances stay positive.
                buffer.mul_((1 + torch.rand(buffer.shape, generator=generator) / 8).to(buffer.dtype))


def align(model: Any) -> None:
    """Moves values of a model that lie at an odd address, as those of a mapped file may: torch adds in another order
    there."""
    for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
        if tensor.device.type != "meta" and tensor.data_ptr() % 64:
            tensor.data = tensor.data.clone()


def forward(model: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensors that a model computes of some inputs."""
    given = arguments(model, inputs, model.config.dtype or torch.float32)
    # Some draw random numbers while they run, such as masks.
    torch.manual_seed(SEED)
    with torch.inference_mode():
        return [tensor.cpu() for tensor in tensors_in(model(**given))]


def arguments(model: Any, inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Copies of inputs where the model is, since some change what they are given; numbers in its dtype."""
    given = {k: v.to(model.device, copy=True) if torch.is_tensor(v) else v for k, v in inputs.items()}
    return {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in given.items()}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in order; caches are not looked into."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def state(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of a model by name, tied ones under each name, on the CPU."""
    out = dict(model.named_parameters(remove_duplicate=False))
    out.update(model.named_buffers(remove_duplicate=False))
    return {name: t.detach() if t.device.type == "meta" else t.detach().cpu() for name, t in out.items()}


def ties(model: Any) -> set[tuple[str, ...]]:
    """Groups of names of parameters that are one tensor."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {tuple(sorted(names)) for names in groups.values() if len(names) > 1}


def digest(tensors: list[torch.Tensor]) -> str:
    """A name of these values, for reports."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().float().numpy().tobytes())
    return found.hexdigest()[:12]
