"""Collecting statistics: passes of tokens through the model, as many as memory makes necessary."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from .._core import options as _options
from .._core.errors import InputError
from .._core.keywords import keywords, renamed
from .._core.options import COLUMNS, MIXED_TEXT, OWN_TEXT, calibration, is_statistics_file
from .._gpu import devices
from .._gpu import torch as _torch
from .._measure import loading
from .._models import running
from .._models.choose import need_weights, nothing_to_compress
from .._models.find import find
from ..nn.experts import STACKS
from . import amount, factor, hooks, moments
from . import text as _text
from .by_default import LOGGER
from .embeddings import EmbeddingCosts
from .moments import Packed
from .plan import Input, plan
from .records import SiteRecord, UnitRecord
from .statistics import RARE_TOKENS, Statistics
from .tokens import TokenCosts
from .units import ModelProducts, Product, Unit, products_of

_log = logging.getLogger(LOGGER)
DEFAULT_MEMORY = "16GB"
# Logits of a batch in float32, of which there are a few copies while gradients are computed.
_LOGITS_BYTES = 1 << 28
# A GPU that has memory for them takes this part of what is free, up to the most that makes it faster.
_LOGITS_SHARE, _MOST_LOGITS_BYTES = 64, 1 << 30
_MOST_TOKENS = 1 << 12
# Tokens that say enough of how large the inputs of an expert are.
FEW_TOKENS = 64
# Tokens that show which layers share an input.
_FIRST = 8
# Keys of a config that do not change the model's results.
_NOT_HASHED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "quantization_config")


@keywords()
def collect_statistics(
    model: Any,
    tokenizer: Any = None,
    data: str | os.PathLike[str] | Sequence[int] | Iterable[Any] | torch.Tensor = MIXED_TEXT,
    *,
    windows: int | None = None,
    length: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    full: bool = True,
    gradients: bool = True,
    memory: int | str = DEFAULT_MEMORY,
    trust_remote_code: bool = False,
    progress: bool | running.StepCallback | None = False,
) -> Statistics:
    """Measures on a causal language model what its quantization needs to know: how large each input of a matrix is, how
    much each matrix matters (Fisher information), and second moments of inputs.

    The model runs over some text: texts of many kinds that come with wcodec, and for a quarter of the tokens what it
    writes by itself; or a file, or token ids. Text like that which the model is for is best. Which matrices matter is
    known after one pass with gradients of the activations; parameters get none. Second moments of inputs are summed up
    in a further pass, in which tokens count by those gradients, or in several where they are larger than ``memory``.
    How large inputs are, for factors of columns, is always measured. With ``gradients=False`` and ``full=False``
    nothing else is: that takes seconds.

    Example (needs transformers and a model)::

        statistics = wcodec.collect_statistics(model)
        print(statistics, statistics.report)
        statistics.save("statistics.safetensors")

    :param model: a ``...ForCausalLM`` of transformers, with all weights in memory and none of them compressed; or the
        path of one's folder, or the name of a repository.
    :param tokenizer: for text, where the model's own is not to be found.
    :param data: ``"mixed"``; ``"self"``, for what the model writes alone, which is also taken where its tokenizer is
        not to be found; the path of a text; or token ids: of one text, or of many, in which case each is cut into
        windows of its own, until there are enough.
    :param windows: pieces of text. If they and ``tokens`` are left out, there are 32,768 tokens, and on a CPU fewer,
        down to 2,048, of models of more than 17 million weights: what two cores do in a minute or two. For sizes of
        inputs alone there are 4,096 tokens, and on a CPU fewer of models of more than 137 million weights.
    :param length: tokens of each. If left out, the model writes pieces of 64, since many short ones say more than a few
        long ones; and of a text there are pieces of 512, or what the model can take, and less where there are fewer
        than 8,192 tokens.
    :param tokens: instead of ``windows``, tokens of all pieces together, about.
    :param seed: for what is drawn: text, and the predictions whose gradients are taken.
    :param device: the device on which the model runs and the statistics are summed up; the model's own if left out.
        Otherwise the model is moved there, and back.
    :param trust_remote_code: whether code that comes with a model of a path may be run.
    :param full: ``False`` leaves second moments out: for steps only, which takes one pass and hardly any memory.
    :param gradients: ``False`` leaves out how much each matrix matters: matrices then share bits as they do without a
        calibration.
    :param memory: a bound for the sums of second moments, and again for the part of them that is kept, in bytes or as
        text. Inputs are looked at in several passes where that is not enough, and in narrower blocks if all of them are
        too large.
    :param progress: ``True`` for a bar, or a function that is called with (tokens done, tokens in all).
    :raises InputError: if the model has no matrix to measure, data are too short or of another vocabulary, or
        predictions are not finite.
    """
    if loading.is_place(model):
        model = loading.original_of(model, device or "cpu", "auto", trust_remote_code)
    running.check_model(model)
    runs_on = running.device_of(model) if device is None else devices.place(device)
    few = not full and not gradients
    shipped = _text.shipped(model, tokenizer, trust_remote_code) if _is(data, MIXED_TEXT) else None
    written = _is(data, OWN_TEXT) or (_is(data, MIXED_TEXT) and shipped is None)
    read = drawn = amount.Pieces(0, 0)
    if shipped is not None:
        read, drawn = amount.mixed_pieces(model, windows, length, tokens, runs_on, few=few)
    elif written:
        drawn = amount.pieces(model, windows, length, tokens, runs_on, few=few, written=not few)
    else:
        read = amount.pieces(model, windows, length, tokens, runs_on, few=few)
    budget = _options.size("memory", memory, 1) or 0
    candidates, skipped = find(model, [], [], True)
    need_weights(candidates)
    model_layout = products_of(model)
    if not model_layout.products:
        raise nothing_to_compress(type(model).__name__, model, skipped)
    with (
        # Whatever mode the caller is in: gradients are taken here.
        torch.inference_mode(False),
        _placed(model, device) as place,
        hooks.quiet(model),
        running.plain_attention(),
        running.steps(progress or False, "calibrating", "token") as tell,
    ):
        text: list[torch.Tensor] = []
        if shipped is not None:
            text = _text.shares_of_shipped(shipped, read.count, read.length, model)
            if drawn.count:
                # The model writes what the texts are too short for.
                missing = read.tokens - sum(map(len, text))
                drawn = amount.Pieces(drawn.count + missing // drawn.length, drawn.length)
        elif not written:
            text = _text.windows_of(data, model, tokenizer, read.count, read.length)
        _tell_text(sum(map(len, text)), drawn.tokens, data)
        work = _Collector(model, model_layout, place, full, gradients, _limited(budget, place), tell)
        work.total = drawn.count * (drawn.length - 1)
        if written and few:
            text = work.write(drawn.count, drawn.length, seed)
        else:
            work.total += sum(map(len, text)) + drawn.tokens
            if drawn.count:
                with torch.no_grad():
                    text += _text.sampled(model, drawn.count, drawn.length, seed, place, work.advance)
            work.run(text, seed)
    return work.statistics(text, OWN_TEXT if written else _source(data))


# The name of the command.
calibrate = renamed("calibrate", collect_statistics)


def _is(data: Any, name: str) -> bool:
    """Whether data are what a name stands for; arrays are not to be compared with one."""
    return isinstance(data, str) and data == name


def _tell_text(read: int, written: int, data: Any) -> None:
    """Logs what the model reads, which need not be what was asked for."""
    kind = " of many kinds of text" if _is(data, MIXED_TEXT) else ""
    parts = [f"{read:,} tokens{kind}"] if read else []
    parts += [f"{written:,} tokens that it writes"] if written else []
    why = ", as no tokenizer of it was found" if _is(data, MIXED_TEXT) and not read else ""
    _log.info("the model reads %s%s", " and ".join(parts), why)


def _source(data: Any) -> str:
    if _is(data, MIXED_TEXT):
        return MIXED_TEXT
    return "text" if isinstance(data, (str, os.PathLike)) else "token ids"


def _limited(memory: int, place: torch.device) -> int:
    """The memory that sums may take: on a GPU not more than half of what is free, as the model needs some to run."""
    if place.type != "cuda":
        return memory
    torch.cuda.empty_cache()
    return max(1, min(memory, torch.cuda.mem_get_info(place)[0] // 2))


@contextmanager
def _placed(model: Any, device: torch.device | str | None) -> Iterator[torch.device]:
    """The model on a device for a while."""
    before = running.device_of(model)
    place = before if device is None else devices.place(device)
    if place == before:
        yield place
        return
    try:
        # This is inside the ``try``: if the device's memory runs out, part of the model is on it already and has to go
        # back.
        model.to(place)
        yield place
    finally:
        model.to(before)


class _Collector:
    """The work in one model."""

    def __init__(
        self,
        model: Any,
        model_layout: ModelProducts,
        place: torch.device,
        full: bool,
        gradients: bool,
        memory: int,
        tell: Callable[[int, int], object],
    ) -> None:
        self._model, self._layout, self._place, self._full, self._memory = model, model_layout, place, full, memory
        self._with_gradients = gradients
        self._tell, self._done, self.total = tell, 0, 1
        self._modules = dict(model.named_modules())
        # The product whose sums each product's input is in: itself, or the first one with the same input.
        self._site = {product.name: product.name for product in model_layout.products}
        # Modules in the order in which they run, each with its place.
        self._order: dict[str, int] = {}
        self._once = True
        self._sums: dict[str, moments.Sums] = {}
        self._wanted: dict[str, Input] = {}
        # Tokens of each input whose moments are summed up, and what they count together.
        self._counted: dict[str, tuple[int, float]] = {}
        self._tokens = dict.fromkeys(self._site, 0)
        # Sums for each matrix of (gradient of an output x size of the input)^2, ``float64 [outputs]``.
        self._row_costs: dict[str, torch.Tensor] = {}
        self._row_squares: dict[str, torch.Tensor] = {}
        self._token_costs = TokenCosts()
        inputs = getattr(model, "get_input_embeddings", lambda: None)() if gradients else None
        self._embeddings = EmbeddingCosts(
            {name: self._modules[name] for name in model_layout.embeddings}, [] if inputs is None else [inputs]
        )
        # Sums of squares of each input, of the first pass, with the sum of what tokens count, and that of one.
        self._squares: dict[str, tuple[torch.Tensor, float]] = {}
        self._weight = 1.0
        self._first = self._gradients = False
        self._stop: str | None = None
        self._sites: dict[str, SiteRecord] = {}
        self._kept: dict[str, list[Packed]] = {}

    def advance(self, tokens: int) -> None:
        """Tells how far the work is."""
        self._done += tokens
        self._tell(self._done, self.total)

    def write(self, windows: int, length: int, seed: int) -> list[torch.Tensor]:
        """Has the model write text, and measures inputs meanwhile; the text.

        First tokens, to which many models give a state that is thousands of times larger, count as they do in windows
        of the usual length. Without them, the few channels of that state would look like all others.
        """

        def watching(first: bool) -> AbstractContextManager[None]:
            self._weight = min(1.0, length / _text.LENGTH) if first else 1.0
            return self._watching()

        with torch.no_grad():
            self._discover(_text.beginning(self._model))
            self._first = True
            return _text.sampled(self._model, windows, length, seed, self._place, self.advance, watching)

    def _watching(self) -> AbstractContextManager[None]:
        return hooks.watching(self._model, self._layout.products, self._seen)

    def run(self, text: list[torch.Tensor], seed: int) -> None:
        """All passes."""
        self._discover(text[0])
        inputs = {p.name: p.units[0].cols for p in self._layout.products if self._site[p.name] == p.name}
        passes = plan([(name, inputs[name]) for name in self._in_order(inputs)], self._memory)[1] if self._full else []
        if self._with_gradients or not passes:
            # Tokens count by their gradients, which have to be known before.
            passes = [[], *passes]
        self.total += (len(passes) - 1) * sum(map(len, text))
        generator = torch.Generator(self._place).manual_seed(seed)
        vocabulary = getattr(getattr(self._model, "config", None), "vocab_size", None)
        # One division for all passes: costs of tokens are kept by the calls of layers, which are one for each batch.
        batches = list(_batches(text, vocabulary, _logits_bytes(self._place)))
        for number, wanted in enumerate(passes):
            self._wanted = {one.name: one for one in wanted}
            self._sums, self._counted = {}, dict.fromkeys(self._wanted, (0, 0.0))
            self._first = number == 0
            self._gradients = self._first and self._with_gradients
            self._token_costs.begin()
            self._stop = None if self._first or number + 1 == len(passes) else self._after(wanted)
            with self._watching(), self._ending():
                for batch in batches:
                    self._pass(batch.to(self._place), generator)
                    self.advance(batch.numel())
            if self._gradients:
                self._check_gradients()
            self._keep()

    def _discover(self, ids: torch.Tensor) -> None:
        """Which products share an input, and in which order modules run."""
        # Inputs are kept until the end: memory that is used again would look like the same input.
        known: dict[Any, tuple[str, torch.Tensor]] = {}

        def seen(product: Product, x: torch.Tensor, output: torch.Tensor) -> None:
            if product.module in self._order:
                self._once = self._once and product.expert is not None
            else:
                self._order[product.module] = len(self._order)
            if product.expert is None:
                key = (_torch.identity(x), x._version)
                self._site[product.name] = known.setdefault(key, (product.name, x))[0]

        with torch.no_grad(), hooks.watching(self._model, self._layout.products, seen):
            running.logits_of(self._model, ids[None, :_FIRST].to(self._place), use_cache=False)

    def _in_order(self, inputs: Iterable[str]) -> list[str]:
        """Names of inputs in the order in which the model computes them."""
        module = {product.name: product.module for product in self._layout.products}
        return sorted(inputs, key=lambda name: self._order.get(module[name], len(self._order)))

    def _after(self, wanted: list[Input]) -> str | None:
        """The module before which a pass can end that wants these inputs."""
        names = {one.name for one in wanted}
        places = [self._order[p.module] for p in self._layout.products if p.name in names and p.module in self._order]
        if not self._once or not places:
            return None
        return next((module for module, place in self._order.items() if place == max(places) + 1), None)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        def stop(*_: Any) -> None:
            raise hooks.Enough

        handle = self._modules[self._stop].register_forward_pre_hook(stop) if self._stop else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()

    def _pass(self, ids: torch.Tensor, generator: torch.Generator) -> None:
        if not self._gradients:
            try:
                with torch.no_grad():
                    running.logits_of(self._model, ids, use_cache=False)
            except hooks.Enough:
                pass
            return
        with self._embeddings.watching(ids), torch.enable_grad():
            logits = running.logits_of(self._model, ids, use_cache=False).flatten(0, -2).to(torch.float32)
            with torch.no_grad():
                chances = torch.softmax(logits, -1)
                if not bool(torch.isfinite(chances).all()):
                    raise InputError(
                        "the model predicts what is not finite, so that nothing can be learned from it "
                        "(use bfloat16 or float32)",
                        code="I607",
                    )
                # The Fisher information asks for what the model itself expects, not for what the text has.
                drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
                del chances
            torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()

    def _seen(self, product: Product, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
        """Called at each product of the model."""
        site = self._site[product.name]
        summing = site == product.name and site in self._wanted
        if not summing and not self._first:
            return None
        flat = x.detach().reshape(-1, x.shape[-1]).to(torch.float32)
        if summing:
            one = self._wanted[site]
            if site not in self._sums:
                self._sums[site] = moments.Sums(one.cols, one.width, flat.device)
            # First tokens, to which many models give a state that is thousands of times larger, count like all others:
            # what is wrong with them is wrong for all tokens that attend to them.
            weights = None if product.expert is not None else self._token_costs.weights(site, len(flat))
            self._sums[site].add(flat, weights)
            tokens, counted = self._counted[site]
            whole = float(len(flat)) if weights is None else float(weights.sum(dtype=torch.float64))
            self._counted[site] = tokens + len(flat), counted + whole
        if not self._first:
            return None
        self._tokens[product.name] += len(flat)
        squares = flat.square() if self._gradients or site == product.name else flat
        if site == product.name:
            before, counted = self._squares.get(site, (0.0, 0.0))
            self._squares[site] = before + self._weight * squares.sum(0), counted + self._weight * len(flat)
        if not self._gradients:
            return None
        sizes = squares.sum(-1)
        costs = None
        if product.expert is None:
            costs = self._token_costs.of(site, len(flat), flat.device, is_new=site == product.name)
        changed = None
        if not output.requires_grad:
            changed = output = hooks.with_gradient(output)
        output.register_hook(lambda gradient: self._gradient(product, gradient, sizes, costs))
        return changed

    def _gradient(
        self, product: Product, gradient: torch.Tensor, sizes: torch.Tensor, token_costs: torch.Tensor | None
    ) -> None:
        squares = gradient.detach().reshape(-1, gradient.shape[-1]).to(torch.float32).square()
        if token_costs is not None:
            token_costs += squares @ self._squares_of_rows(product)
        costs = (sizes @ squares).to(torch.float64)
        at = 0
        for unit in product.units:
            part = costs[at : at + unit.rows]
            at += unit.rows
            before = self._row_costs.get(unit.name)
            self._row_costs[unit.name] = part if before is None else before.to(part.device) + part

    def _check_gradients(self) -> None:
        for product in self._layout.products:
            for unit in product.units:
                costs = self._row_costs.get(unit.name)
                if costs is not None:
                    _check_gradient(product.name, unit, bool(torch.isfinite(costs).all()))
        for name, unit in self._layout.embeddings.items():
            _check_gradient(name, unit, math.isfinite(self._embeddings[name]))

    def _squares_of_rows(self, product: Product) -> torch.Tensor:
        """Mean squares of the weights of each output."""
        squares = self._row_squares.get(product.name)
        if squares is None:
            module = self._modules[product.module]
            weight = module.weight if product.expert is None else getattr(module, product.stack)[product.expert]
            dim = 0 if product.units[0].transposed else 1
            squares = (
                torch.linalg.vector_norm(weight.detach(), dim=dim, dtype=torch.float32).square() / weight.shape[dim]
            )
            self._row_squares[product.name] = squares
        return squares

    def _keep(self) -> None:
        """Packs the sums of a pass."""
        experts = {p.name for p in self._layout.products if p.expert is not None}
        for name, one in self._wanted.items():
            tokens, counted = self._counted[name]
            sums = self._sums.pop(name, None)
            if sums is None or tokens == 0 or (name in experts and tokens < RARE_TOKENS):
                continue
            blocks = sums.means(counted)
            for _, block in blocks:
                _check_finite(name, block.diagonal())
            self._sites[name] = SiteRecord(one.cols, one.width, tokens, factor.predictability(blocks, tokens))
            self._kept[name] = [moments.pack(block) for _, block in blocks]

    def _keep_sizes(self) -> None:
        """Keeps the sizes of inputs whose second moments are not kept.

        The first matrices of all experts of a layer have the same inputs: those of experts that hardly a token was
        routed to get the sizes that all tokens of the layer show.
        """
        few: dict[str, list[str]] = {}
        for product in self._layout.products:
            if product.expert is not None and product.stack == STACKS[0] and self._tokens[product.name] < FEW_TOKENS:
                few.setdefault(_stack_of(product), []).append(product.name)
        pooled: dict[str, tuple[torch.Tensor, float, int]] = {}
        for product in self._layout.products:
            stack = _stack_of(product)
            if stack in few and product.name in self._squares:
                squares, counted = self._squares[product.name]
                total, weight, tokens = pooled.get(stack, (torch.zeros_like(squares), 0.0, 0))
                pooled[stack] = total + squares, weight + counted, tokens + self._tokens[product.name]
        for stack, (total, weight, tokens) in pooled.items():
            self._keep_size(stack, total, weight, tokens)
            for name in few[stack]:
                self._site[name] = stack
                self._squares.pop(name, None)
        for name, (squares, counted) in self._squares.items():
            if name not in self._sites:
                self._keep_size(name, squares, counted, self._tokens[name])

    def _keep_size(self, name: str, squares: torch.Tensor, counted: float, tokens: int) -> None:
        diagonal = squares / max(counted, 1e-30)
        _check_finite(name, diagonal)
        self._sites[name] = SiteRecord(len(diagonal), 0, tokens, 1.0)
        self._kept[name] = [moments.sizes(diagonal)]

    def statistics(self, text: list[torch.Tensor], source: str) -> Statistics:
        """The statistics that were collected."""
        self._keep_sizes()
        units: dict[str, UnitRecord] = {}
        rows: dict[str, torch.Tensor] = {}
        head = getattr(self._model, "get_output_embeddings", lambda: None)()
        for product in self._layout.products:
            site: str | None = self._site[product.name]
            site = site if site in self._sites else None
            at = 0
            for unit in product.units:
                part = slice(at, at + unit.rows)
                at += unit.rows
                before = units.get(unit.name)
                tokens = self._tokens[product.name] + (0 if before is None else before.tokens)
                costs, sensitivity = self._row_costs.get(unit.name), 0.0
                if costs is not None:
                    sensitivity = float(costs @ self._squares_of_rows(product)[part].to(costs))
                    # A text says little of tokens that it lacks, which the rows of a head are.
                    if self._modules[product.module] is not head:
                        rows[unit.name] = (costs / max(tokens, 1)).to("cpu", torch.float32)
                units[unit.name] = UnitRecord(
                    *(unit.rows, unit.cols, unit.transposed, unit.kind, product.expert is not None),
                    site if before is None else before.site,
                    tokens,
                    sensitivity,
                )
        for name, unit in self._layout.embeddings.items() if self._with_gradients else ():
            # Alone, or with the layer that it is tied to.
            record = units.get(unit.name)
            if record is None:
                tokens = self._embeddings.tokens[name]
                record = UnitRecord(unit.rows, unit.cols, unit.transposed, unit.kind, False, None, tokens, 0.0)
            units[unit.name] = replace(record, embedding=record.embedding + self._embeddings[name])
        return Statistics(
            units,
            self._sites,
            self._kept,
            # Embeddings are no units where no gradients were taken.
            {name: parts for name, parts in self._layout.names.items() if all(part in units for part in parts)},
            rows,
            source=source,
            tokens=sum(map(len, text)),
            text_hash=_text.hash_of(text),
            model_hash=_model_hash(self._model, [u for p in self._layout.products for u in p.units]),
        )


def _stack_of(product: Product) -> str:
    """The parameter that has the matrix, if it is an expert's."""
    return product.name.rpartition(".")[0]


def _check_gradient(name: str, unit: Unit, is_finite: bool) -> None:
    if not is_finite:
        raise InputError(
            f"the gradients of '{name}' are not finite, so that nothing can be learned from them "
            "(use bfloat16 or float32)",
            tensor=unit.name,
            code="I607",
        )


def _check_finite(name: str, squares: torch.Tensor) -> None:
    if not bool(torch.isfinite(squares).all()):
        raise InputError(
            f"the input of '{name}' is not finite, so that nothing can be learned from it (use bfloat16 or float32)",
            tensor=name,
            code="I607",
        )


def _logits_bytes(place: torch.device) -> int:
    """Bytes that the logits of a batch may take."""
    if place.type != "cuda":
        return _LOGITS_BYTES
    free = torch.cuda.mem_get_info(place)[0]
    return max(_LOGITS_BYTES, min(_MOST_LOGITS_BYTES, free // _LOGITS_SHARE))


def _batches(text: list[torch.Tensor], vocabulary: Any, logits_bytes: int) -> Iterator[torch.Tensor]:
    """Windows of one length side by side, as many as their logits allow."""
    at = 0
    while at < len(text):
        length = len(text[at])
        words = vocabulary if isinstance(vocabulary, int) and vocabulary > 0 else 1
        most = max(1, min(_MOST_TOKENS // length, logits_bytes // (4 * words * length)))
        end = at + 1
        while end < len(text) and end - at < most and len(text[end]) == length:
            end += 1
        yield torch.stack(text[at:end])
        at = end


def _model_hash(model: Any, units: Iterable[Unit]) -> str:
    config: Any = getattr(model, "config", None)
    record = config.to_dict() if hasattr(config, "to_dict") else {}
    hashed = {key: value for key, value in record.items() if key not in _NOT_HASHED}
    shapes = {unit.name: [unit.rows, unit.cols] for unit in units}
    text = json.dumps([type(model).__name__, hashed, shapes], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def statistics_of(model: Callable[[], Any], calibrate: Any, tokenizer: Any = None, **options: Any) -> Statistics:
    """Statistics that are given, saved in a file, or to be collected: on text of many kinds (``"mixed"``), on what the
    model writes (``"self"``), on a text or on token ids; or of how large inputs are alone (``"columns"``).

    :param model: a function that gives the model, which is called only where statistics are to be collected.
    :param options: further ones of :func:`wcodec.collect_statistics`.
    """
    calibrate = calibration(calibrate)
    if isinstance(calibrate, Statistics):
        return calibrate
    if is_statistics_file(calibrate):
        return Statistics.load(calibrate)
    if is_columns(calibrate):
        return collect_statistics(model(), tokenizer, gradients=False, full=False, **options)
    return collect_statistics(model(), tokenizer, calibrate, **options)


def is_columns(calibrate: Any) -> bool:
    """Whether nothing but factors of columns is asked for."""
    return isinstance(calibrate, str) and calibrate == COLUMNS


def is_given(calibrate: Any) -> bool:
    """Whether statistics are there already, in memory or in a file."""
    return isinstance(calibrate, Statistics) or is_statistics_file(calibrate)
