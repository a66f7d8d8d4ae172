"""Checks of one architecture in one Auto class: whatever wcodec does with it, beside transformers' own results."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import wcodec

from . import models, operands
from .inputs import generate_inputs
from .report import SHARE

SCHEMES = ("int8", "lossless")
# Root mean square of the error of int8 with a scale for each 512 columns of a row, where one of them has all of the
# weight: sqrt(512) / 127 / sqrt(12) of the weights' own.
NEAR_WEIGHTS = 0.052
NEAR_OUTPUTS = 0.5
# On a GPU products of compressed weights add in another order than torch's.
NEAR_SUMS = 0.03
_MOST = 4

Loader = Callable[..., Any]


class Ways:
    """The ways in which a folder becomes a model. Tests put faulty ones in their place."""

    def __init__(self, auto: Any, device: str = "cpu") -> None:
        self.auto, self.device = auto, device

    def by_auto(self, folder: Path, **options: Any) -> Any:
        """transformers' own loading."""
        if self.device != "cpu":
            options["device_map"] = self.device
        return self.auto.from_pretrained(folder, **options).eval()

    def by_load_model(self, folder: Path, **options: Any) -> Any:
        """wcodec's."""
        return wcodec.load_model(folder, device=self.device, **options)


class Sweep:
    """The checks of one model; ``record`` is what they found."""

    def __init__(self, auto: Any, architecture: str, folder: Path, ways: Ways | None = None) -> None:
        self.auto, self.architecture, self.folder = auto, architecture, folder
        self.ways = ways or Ways(auto)
        self.record: dict[str, Any] = {"auto": auto.__name__, "architecture": architecture, "steps": {}}
        self.model: Any = None
        self.inputs: dict[str, Any] | None = None
        self.outputs: list[torch.Tensor] | None = None
        self.tokens: torch.Tensor | None = None
        self.dtype: torch.dtype = torch.bfloat16
        self.compressed: Any = None
        self.state: dict[str, torch.Tensor] = {}
        self.wanted: list[torch.Tensor] | None = None

    # transformers by itself

    def prepare(self) -> bool:
        """Builds a model, saves and loads it with transformers alone; whether that is whole."""
        try:
            built = models.build(self.auto, self.architecture)
        except Exception as error:
            self.record["transformers"] = f"cannot be built: {models.described(error)}"
            return False
        self.record["class"] = type(built.model).__name__
        self.record["parameters"] = sum(p.numel() for p in built.model.parameters())
        self.inputs, self.dtype = built.inputs, built.model.config.dtype or built.model.dtype
        try:
            why = self._settle(built.model)
        except Exception as error:
            why = f"is not saved and loaded: {models.described(error)}"
        self.record["transformers"] = why
        if why:
            return False
        self._run_original(built.error)
        return True

    @property
    def source(self) -> Path:
        """The ordinary checkpoint."""
        return self.folder / "source"

    def _settle(self, made: Any) -> str:
        """Saves and loads until loading changes nothing: some parameters are kept in another dtype then."""
        faults: list[str] = []
        for again in range(3):
            shutil.rmtree(self.source, ignore_errors=True)
            made.save_pretrained(self.source)
            self.model = _plain_experts(self.ways.by_auto(self.source, dtype=self.dtype))
            wide = [p for p in self.model.parameters() if p.dtype == torch.float32 != self.dtype]
            faults = differences(models.state(self.model), models.state(made), dtypes=again > 0 or bool(wide))
            if not faults:
                models.align(self.model)
                return ""
            made = self.model
            if wide and again == 0:
                # Values that the other dtype does not have.
                models.shake(made)
        return "is not the same after saving and loading: " + listed(faults)

    def _run_original(self, error: str) -> None:
        if self.inputs is None:
            self.record["forward"] = error
            return
        # Another one: some models make tables larger, or of another dtype, where they need them so.
        original = copy.deepcopy(self.model)
        try:
            self.outputs = models.forward(original, self.inputs)
            if not self._agree(models.forward(original, self.inputs), self.outputs):
                self.record["forward"] = "computes something else each time"
                self.outputs = None
                return
        except Exception as failure:
            self.record["forward"] = models.described(failure)
            return
        self.record["forward"] = ""
        if getattr(original, "can_generate", bool)():
            try:
                self.tokens = self._generate(original)
                self.record["generate"] = ""
            except Exception as failure:
                self.record["generate"] = models.described(failure)

    @property
    def _is_exact(self) -> bool:
        """Whether results are to be the same bits: where torch computes them of decoded weights."""
        return self.ways.device == "cpu"

    def _agree(self, got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
        return same(got, wanted) or not self._is_exact and distance(got, wanted) <= NEAR_SUMS

    def _generate(self, model: Any) -> torch.Tensor:
        given = models.arguments(model, generate_inputs(self.inputs or {}), self.dtype)
        torch.manual_seed(models.SEED)
        with torch.inference_mode():
            return next(models.tensors_in(model.generate(**given, max_new_tokens=3, do_sample=False))).cpu()

    # wcodec beside it

    def run(self) -> None:
        """All checks."""
        if not self.prepare():
            return
        half = self._half()
        for scheme in SCHEMES:
            compressed = copy.deepcopy(self.model)
            if not self._step(f"{scheme}: compress_", lambda c=compressed, s=scheme: self._compress(c, s)):
                continue
            if "nothing" in self.record:
                return
            self.compressed = compressed
            state, outputs = self.state, self.wanted
            saved = self.folder / scheme
            if self._step(f"{scheme}: save", lambda c=compressed, f=saved: c.save_pretrained(f)):
                self._load(f"{scheme}: saved", saved, state, outputs)
                if scheme == "int8" and half is not None:
                    self._halves(f"{scheme}: saved", saved, half)
            encoded = self.folder / f"{scheme}-encoded"
            if self._step(f"{scheme}: encode", lambda f=encoded, s=scheme: self._encode(f, s)):
                self._load(f"{scheme}: encoded", encoded, state, outputs)
            self._ordinary(scheme, state, outputs)
        if half is not None:
            self._halves("ordinary", self.source, half, scheme="lossless")

    def _step(self, name: str, check: Callable[[], Iterable[str] | None]) -> bool:
        """Runs a check; whether it could be run to its end."""
        try:
            found = check()
        except Exception as error:
            self.record["steps"][name] = f"{models.described(error)} [{_place_of(error)}]"
            return False
        self.record["steps"][name] = listed([*(found or ())])
        return True

    def _compress(self, model: Any, scheme: str) -> list[str]:
        try:
            report = wcodec.compress_(model, scheme=scheme, progress=False)
        except wcodec.InputError as error:
            if any(use == operands.PRODUCT for use in self._uses().values()):
                raise
            # A network of convolutions has no matrices.
            self.record["nothing"] = models.described(error)
            return []
        faults = self._told(model, report) if scheme == SCHEMES[0] else []
        # Before it runs.
        self.state, wanted = models.state(plain(model)), models.state(self.model)
        faults += differences(self.state, wanted, near=None if scheme == "lossless" else NEAR_WEIGHTS)
        if (a := models.ties(plain(model))) != (b := models.ties(self.model)):
            faults.append(f"tied are {sorted(a ^ b)[:2]} in only one of both")
        return faults + self._outputs_near(model, scheme)

    def _outputs_near(self, model: Any, scheme: str) -> list[str]:
        if self.outputs is None:
            return []
        # Before it generates: some keep something of the last text.
        outputs = self.wanted = models.forward(model, self.inputs or {})
        off = distance(outputs, self.outputs)
        self.record[f"{scheme} off by"] = round(off, 5)
        faults = []
        if scheme == "lossless" and not self._agree(outputs, self.outputs):
            faults.append(f"outputs are off by {off:.3g}")
        # Random weights make some models so sensitive that they answer otherwise with any rounding of them.
        if not off <= NEAR_OUTPUTS and not self._agree(outputs, models.forward(plain(model), self.inputs or {})):
            faults.append(f"outputs are far off, by {off:.3g}")
        if self.tokens is not None:
            tokens = self._generate(model)
            if scheme == "lossless" and self._is_exact and not torch.equal(tokens, self.tokens):
                faults.append("generates other tokens")
        return faults

    def _uses(self) -> dict[str, str]:
        if "uses" not in self.__dict__:
            found = {name: operands.OTHER for name, p in self.model.named_parameters() if p.dim() >= 2 and p.numel()}
            if self.outputs is not None:
                found = operands.uses(copy.deepcopy(self.model), self.inputs or {})
            self.__dict__["uses"] = found
        return self.__dict__["uses"]

    def _told(self, model: Any, report: Any) -> list[str]:
        """Which share of the matrices is compressed, and which of the others the report does not name."""
        sizes = {name: p.nbytes for name, p in self.model.named_parameters()}
        left = set(dict(model.named_parameters()))
        why = {s.name: s.why for s in report.skipped}
        uses = self._uses()
        reasons: dict[str, int] = {}
        untold: dict[str, list[str]] = {}
        for name in sorted(left & set(uses)):
            # A module is named with those inside it that it reads.
            parts = name.split(".")
            reason = next((r for n in range(len(parts), 0, -1) if (r := why.get(".".join(parts[:n])))), None)
            if reason is None:
                untold.setdefault(uses[name], []).append(name)
            else:
                reasons[reason] = reasons.get(reason, 0) + sizes[name]
        matrices = [n for n, use in uses.items() if use in (operands.PRODUCT, operands.TABLE) or self.outputs is None]
        total = sum(sizes[n] for n in matrices)
        self.record["matrices"] = total
        self.record["share"] = round(sum(sizes[n] for n in matrices if n not in left) / total, 4) if total else 1.0
        self.record["left"] = reasons
        self.record["untold"] = untold
        if self.outputs is None:
            # A model that does not run does not say which of them are matrices.
            return []
        wrong = [n for use in (operands.PRODUCT, operands.TABLE) for n in untold.get(use, [])]
        share = sum(sizes[n] for n in wrong) / total if total else 0.0
        return [f"{share:.1%} not compressed, without a word: {listed(wrong)}"] if share > 1 - SHARE else []

    def _encode(self, folder: Path, scheme: str) -> None:
        wcodec.compress(self.source, f"{folder}/", scheme=scheme, progress=False)

    def _load(
        self, name: str, folder: Path, state: dict[str, torch.Tensor], outputs: list[torch.Tensor] | None
    ) -> None:
        """Loads a compressed folder by both ways: all that is in it, and the outputs."""
        # transformers writes the dtype of a model's first parameter, which may be one that is always in float32.
        said = json.loads((folder / "config.json").read_text()).get("dtype")
        dtype = {} if said == str(self.dtype).removeprefix("torch.") else {"dtype": self.dtype}
        ways: dict[str, Callable[[], Any]] = {
            "AutoModel": lambda: self.ways.by_auto(folder, dtype=self.dtype),
            "load_model": lambda: self.ways.by_load_model(folder, **dtype),
        }
        for way, load in ways.items():
            self._step(f"{name}, {way}", lambda load=load: self._same(load(), state, outputs))

    def _same(self, model: Any, state: dict[str, torch.Tensor], outputs: list[torch.Tensor] | None) -> list[str]:
        models.align(model)
        faults = differences(models.state(plain(model)), state)
        if (a := models.ties(plain(model))) != (b := models.ties(self.model)):
            faults.append(f"tied are {sorted(a ^ b)[:2]} in only one of both")
        if outputs is not None:
            try:
                got = models.forward(model, self.inputs or {})
                if not self._agree(got, outputs) and not self._agree(got, self._as_quantized(model)):
                    faults.append("computes something else")
                if self.tokens is not None:
                    self._generate(model)
            except Exception as error:
                faults.append(f"{models.described(error)} [{_place_of(error)}]")
        return faults

    def _as_quantized(self, model: Any) -> list[torch.Tensor]:
        """The compressed model's outputs in the order in which transformers computes where it loaded a quantized model:
        some of its classes take another one then."""
        if self.compressed is None or not hasattr(model.config, "_is_quantized"):
            return []
        config = self.compressed.config
        if hasattr(config, "_is_quantized"):
            return []
        config._is_quantized = True
        try:
            return models.forward(self.compressed, self.inputs or {})
        finally:
            del config._is_quantized

    def _ordinary(self, scheme: str, state: dict[str, torch.Tensor], outputs: list[torch.Tensor] | None) -> None:
        """Compresses the ordinary checkpoint while it is loaded."""
        ways = {
            "load_model": lambda: self.ways.by_load_model(self.source, scheme=scheme, dtype=self.dtype),
            "WCodecConfig": lambda: self.ways.by_auto(
                self.source, dtype=self.dtype, quantization_config=wcodec.WCodecConfig(scheme=scheme)
            ),
        }
        for way, load in ways.items():
            self._step(f"{scheme}: ordinary, {way}", lambda load=load: self._same(load(), state, outputs))

    def _half(self) -> dict[str, torch.dtype] | None:
        """The dtypes that transformers gives everything in float16."""
        try:
            model = self.ways.by_auto(self.source, dtype=torch.float16)
        except Exception:
            return None
        return {name: tensor.dtype for name, tensor in models.state(model).items()}

    def _halves(self, name: str, folder: Path, wanted: dict[str, torch.dtype], scheme: str | None = None) -> None:
        given = {} if scheme is None else {"scheme": scheme}
        config = {} if scheme is None else {"quantization_config": wcodec.WCodecConfig(scheme=scheme)}
        ways = {
            "load_model": lambda: self.ways.by_load_model(folder, dtype=torch.float16, **given),
            "AutoModel" if scheme is None else "WCodecConfig": lambda: self.ways.by_auto(
                folder, dtype=torch.float16, **config
            ),
        }
        for way, load in ways.items():
            self._step(f"{name}, float16, {way}", lambda load=load: other_dtypes(models.state(plain(load())), wanted))


def check(auto: Any, architecture: str, ways: Ways | None = None) -> dict[str, Any]:
    """The record of all checks of one architecture; ``ways`` has the device, too."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wcodec-sweep-") as folder:
        sweep = Sweep(auto, architecture, Path(folder), ways)
        try:
            sweep.run()
        finally:
            sweep.record["seconds"] = round(time.perf_counter() - begin, 1)
    return sweep.record


def plain(model: Any) -> Any:
    """A copy with ordinary layers that hold the decoded weights."""
    if not any(isinstance(m, wcodec.nn.CompressedLayer) for m in model.modules()):
        return model
    made = copy.deepcopy(model)
    wcodec.decompress_(made)
    return made


def _plain_experts(model: Any) -> Any:
    """Compressed experts compute one after the other, and so does the model that they are compared with."""
    choose = getattr(model, "set_experts_implementation", None)
    if choose is not None:
        try:
            choose("eager")
        except Exception:
            # Some models say that they have no choice.
            return model
    return model


def differences(
    got: dict[str, torch.Tensor],
    wanted: dict[str, torch.Tensor],
    *,
    dtypes: bool = True,
    near: float | None = None,
) -> list[str]:
    """In which tensors two models differ. With ``near``, matrices may be off by that."""
    faults = [f"{name}: gone" for name in wanted if name not in got]
    faults += [f"{name}: added" for name in got if name not in wanted]
    for name, expected in wanted.items():
        if (tensor := got.get(name)) is None:
            continue
        if tensor.device.type == "meta":
            faults.append(f"{name}: without values")
        elif tensor.shape != expected.shape:
            faults.append(f"{name}: {tuple(tensor.shape)} in place of {tuple(expected.shape)}")
        elif dtypes and tensor.dtype != expected.dtype:
            faults.append(f"{name}: {tensor.dtype} in place of {expected.dtype}".replace("torch.", ""))
        elif not dtypes and same([tensor], [expected.to(tensor.dtype)]) or same([tensor], [expected]):
            continue
        else:
            off = distance([tensor], [expected])
            if near is None or expected.dim() < 2 or not off <= near:
                faults.append(f"{name}: off by {off:.3g}")
    return faults


def other_dtypes(got: dict[str, torch.Tensor], wanted: dict[str, torch.dtype]) -> list[str]:
    """Names of tensors with another dtype, or that are not there."""
    faults = [f"{name}: gone" for name in wanted if name not in got]
    for name, tensor in got.items():
        if name in wanted and tensor.dtype != wanted[name]:
            faults.append(f"{name}: {tensor.dtype} in place of {wanted[name]}".replace("torch.", ""))
    return faults


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether tensors are the same, bit for bit, but for which NaN they hold."""
    if len(a) != len(b):
        return False
    return all(
        x.shape == y.shape and x.dtype == y.dtype and bool(((x == y) | ((x != x) & (y != y))).all())
        for x, y in zip(a, b, strict=True)
    )


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Root mean square of the differences over that of ``b``, for the tensor where it is largest."""
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return float("inf")
    most = 0.0
    for x, y in zip(a, b, strict=True):
        if not y.is_floating_point() or not y.numel() or same([x], [y]):
            continue
        # Values that neither has as finite numbers say nothing of how near the rest is.
        both = x.isfinite() | y.isfinite()
        x, y = x[both].double(), y[both].double()
        size = float(y.square().mean().sqrt())
        off = float((x - y).square().mean().sqrt())
        most = max(most, off / size if size else float("inf")) if off == off else float("inf")
    return most


def listed(faults: Iterable[str]) -> str:
    """Some of them, and how many more there are."""
    faults = list(faults)
    more = len(faults) - _MOST
    return "; ".join(faults[:_MOST]) + (f"; and {more} more" if more > 0 else "")


def _place_of(error: BaseException) -> str:
    """The last line of wcodec that an error went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/wcodec/" in f.filename]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "not in wcodec"
