"""Keywords: no public function takes one that it does not know, and each says what was meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._core import keywords

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import wcodec.nn  # noqa: E402

# Made by the package, never by its users; and what a typed dictionary or an exception takes.
NOT_CALLED = re.compile(r".*(Report|Error|Entry|Info|Summary|Row|Layer|Batch|Stats|Bytes|Options)$")
MADE = {"Check", "ComparedTensor", "Comparison", "Container", "Generation", "LayerSensitivity", "Recipe", "RowLookup",
        "ErrorCode", "Rule", "Segment",
        "Statistics", "TensorEntry", "VerifiedTensor", "WCodecModel"}  # fmt: skip
# These hand on keywords to the model's ``generate``.
HANDING_ON = {"bench", "generate"}
SLIP = "no_such_keyword"


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything that users call, by the name that they call it by."""
    for name in sorted({*wcodec.__all__, "eval"} - MADE):
        value = getattr(wcodec, name)
        if inspect.isfunction(value) or inspect.isclass(value) and not NOT_CALLED.fullmatch(name):
            yield name, value
    yield "WCodecModel.from_pretrained", wcodec.WCodecModel.from_pretrained
    for kind in ("CompressedLinear.from_linear", "CompressedConv1D.from_conv1d", "CompressedEmbedding.from_embedding"):
        owner, _, method = kind.partition(".")
        yield kind, getattr(getattr(wcodec.nn, owner), method)
    yield "fuse_", wcodec.nn.fuse_


CALLED = dict(public())


def test_the_list_is_of_all_that_take_options() -> None:
    for module in (wcodec, wcodec.nn):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) and any(
                p.kind is p.VAR_KEYWORD for p in inspect.signature(value).parameters.values()
            ):
                assert name in CALLED
    assert len(CALLED) > 35 and {"load_model", "compress_", "encode", "eval", "Encoder", "WCodecConfig"} <= set(CALLED)


@pytest.mark.parametrize("name", sorted(set(CALLED) - HANDING_ON))
def test_a_keyword_that_there_is_not_is_refused(name: str) -> None:
    said = rf"^{re.escape(name)} has no keyword {SLIP} \(it takes "
    if not [p for p in inspect.signature(CALLED[name]).parameters if p not in ("self", "cls")]:
        said = rf"^{re.escape(name)} has no keyword {SLIP}"
    with pytest.raises(wcodec.InputError, match=said) as seen:
        CALLED[name](**{SLIP: 1})
    assert "encode_options" not in str(seen.value)


def test_what_is_handed_on_is_refused_too(model: Path) -> None:
    loaded = wcodec.load_model(model)
    calls = {
        "generate": lambda **options: wcodec.generate(loaded, [1, 2, 3], max_new_tokens=2, **options),
        "bench": lambda **options: wcodec.bench(loaded, batch=1, prompt_tokens=2, new_tokens=2, repeats=1, **options),
    }
    for name, call in calls.items():
        with pytest.raises(wcodec.InputError, match=rf"^{name} has no keyword {SLIP} \(help\(model.generate\)"):
            call(**{SLIP: 1})
        with pytest.raises(wcodec.InputError, match=rf"^{name} has no keyword temprature \(did you mean temperature\?"):
            call(temprature=0.5)
    # Keywords of transformers' config, of the model's forward and of generate itself are handed on.
    found = wcodec.generate(loaded, [1, 2, 3], max_new_tokens=2, do_sample=True, temperature=0.5, logits_to_keep=1)
    assert len(found.tokens) <= 2
    # A model whose generate nobody knows says itself what it takes.
    loaded.generate_with = None

    class Own(type(loaded)):  # type: ignore[misc]
        def generate(self, inputs: Any, **options: Any) -> Any:
            assert options.pop("of_its_own") == 7
            options.pop("pad_token_id", None)
            return torch.cat([inputs, inputs[:, :1]], 1)

    loaded.__class__ = Own
    assert len(wcodec.generate(loaded, [1, 2, 3], of_its_own=7).tokens) == 1


@pytest.mark.parametrize(
    ("function", "keyword", "said"),
    [
        ("load_model", "casche", "did you mean cache?"),
        ("load_model", "torch_dtype", "pass dtype=..."),
        ("load_model", "device_map", "pass device='cuda'; AutoModelForCausalLM.from_pretrained(..., device_map=...)"),
        ("WCodecModel.from_pretrained", "casche", "did you mean cache?"),
        ("compress_", "bit", "did you mean bits?"),
        ("compress_", "device_map", "the model stays on its device"),
        ("compress_", "load_in_4bit", "pass bits=4"),
        ("compress_", "statistics", "did you mean calibrate?"),
        ("compress_", "group_size", "pass scale='block'"),
        ("compress", "force", "did you mean overwrite?"),
        ("encode", "ignore", "did you mean exclude?"),
        ("open", "trust", "did you mean trusted?"),
        ("evaluate", "data", "did you mean text?"),
        ("collect_statistics", "dataset", "did you mean data?"),
        ("plan", "calibration", "did you mean calibrate?"),
        ("Encoder", "lvel", "did you mean level?"),
        ("load_model", "max_memory", "pass vram_budget="),
    ],
)
def test_what_was_meant_is_said(function: str, keyword: str, said: str) -> None:
    with pytest.raises(
        wcodec.InputError, match=rf"^{re.escape(function)} has no keyword {keyword} \({re.escape(said)}"
    ):
        CALLED[function](**{keyword: 1})


def test_no_hint_is_silly() -> None:
    known = sorted(keywords._KNOWN[wcodec.load_model])
    for word in ("force", "speed", "quality", "windows", "loader", "seed", "temperature", "fooo", "x", ""):
        assert keywords.near(word, known) is None, word
    for word, meant in (("Bits", "bits"), ("residence", "residency"), ("vram_buget", "vram_budget"), ("tiles", "tile")):
        assert keywords.near(word, known) == meant
    # A hint of another tool's word helps only where the function has what it hints at.
    with pytest.raises(wcodec.InputError, match="verify has no keyword torch_dtype"):
        wcodec.verify("x", torch_dtype=1)  # type: ignore[call-arg]


def test_several_are_named_together() -> None:
    with pytest.raises(wcodec.InputError, match=r"has no keyword casche, fooo \(did you mean cache\?; it takes .*bits"):
        wcodec.load_model("x", casche=1, fooo=2)  # type: ignore[call-arg]


def test_signatures_are_kept() -> None:
    for name in ("compress_", "load_model", "compress", "compress_to_bytes", "save_file", "WCodecConfig"):
        value = getattr(wcodec, name)
        parameters = inspect.signature(value).parameters
        assert {"scheme", "bits", "calibrate", "trellis", "rules", "coder"} <= set(parameters), name
        for option in ("bits", "calibrate", "trellis", "rules"):
            assert parameters[option].default is None and parameters[option].annotation is not inspect.Parameter.empty
        documented = inspect.getdoc(value)
        assert documented and not documented.startswith("checked")
    options = set(keywords._KNOWN[wcodec.compress])
    assert {"layout", "level", "tile", "table_bits", "block", "skip", "transpose", "threads"} <= options


def test_names_of_the_commands_are_names_of_functions(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    from wcodec._cli.parser import build_parser
    from wcodec._cli.parsing import commands

    # Python opens a file and looks at it; what a test of the whole way does, it has no function for.
    for command in set(commands(build_parser())) - {"inspect", "roundtrip"}:
        if command in ("encode", "decode", "verify", "compare", "generate", "eval", "bench", "frontier", "calibrate",
                       "plan", "ranks", "doctor"):  # fmt: skip
            assert getattr(wcodec, command).__name__ == command
    path = tmp_path / "w.wcodec"
    assert wcodec.encode(weights, path, bits=4, progress=False).path == str(path)
    wcodec.decode(path, tmp_path / "w.safetensors", progress=False)
    assert (tmp_path / "w.safetensors").exists()
    for name, other in (("encode", "compress"), ("decode", "decompress"), ("eval", "evaluate"),
                        ("calibrate", "collect_statistics"), ("ranks", "plan_ranks")):  # fmt: skip
        first, second = getattr(wcodec, name), getattr(wcodec, other)
        assert inspect.signature(first) == inspect.signature(second)
        assert first.__doc__.startswith(f"Another name of ``{other}``")
    assert "eval" in dir(wcodec) and "eval" not in wcodec.__all__


def test_bits_are_no_scheme() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64))
    for given, bits in ((4, "4"), (3.5, "3.5"), ("4bit", "4"), ("4-bit", "4"), ("3.5 bits", "3.5")):
        with pytest.raises(wcodec.InputError, match=rf"is a number of bits, and no scheme \(pass bits={bits}\)"):
            wcodec.compress_(layers, given)
    with pytest.raises(wcodec.InputError, match="pass bits=4"):
        wcodec.WCodecConfig(scheme="4bit")
    with pytest.raises(wcodec.InputError, match="unknown scheme 'nf4'"):
        wcodec.compress_(layers, "nf4")


def test_a_model_is_asked_for(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    for given, said in (
        ("folder", r"compress_ takes a torch.nn.Module, not 'folder' \(wcodec.load_model"),
        (tmp_path, "wcodec.load_model"),
        (weights, r"not a dict \(wcodec.compress stores"),
        (7, "not a int"),
    ):
        with pytest.raises(wcodec.InputError, match=said):
            wcodec.compress_(given)  # type: ignore[arg-type]
    with pytest.raises(wcodec.InputError, match="decompress_ takes a torch.nn.Module"):
        wcodec.decompress_("folder")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compressed model, at 4 bits."""
    target = tmp_path_factory.mktemp("keywords") / "four"
    wcodec.encode(model, f"{target}/", bits=4, trellis=False, progress=False)
    return target


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 3}, {"scheme": "lossless"}, {"coder": "zstd"}, {"calibrate": "self"}, {"trellis": True},
        {"rules": {"*": "int8"}}, {"include": "*.mlp.*"}, {"exclude": ["lm_head"]}, {"embeddings": False},
        {"layout": "byte"}, {"scale": "block", "block": 32}, {"feedback": False},
    ],
    ids=lambda options: "-".join(options),
)  # fmt: skip
def test_what_is_compressed_already_is_not_compressed_anew(folder: Path, options: dict[str, Any]) -> None:
    name = next(iter(options))
    for place in (folder, folder / "model.wcodec"):
        with pytest.raises(wcodec.InputError, match=rf"it is compressed already, so that {name}=.* has no meaning"):
            wcodec.load_model(place, **options)
    with pytest.raises(wcodec.InputError, match="compressed already"):
        wcodec.ranks(folder, (1,), tile=64, **{k: v for k, v in options.items() if k not in ("calibrate", "rules")})
    config = wcodec.WCodecConfig(**options) if options != {"calibrate": "self"} else wcodec.WCodecConfig(bits=3)
    with pytest.raises(wcodec.InputError, match="WCodecConfig: the model is compressed already, so that .*= has no"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)


def test_asking_for_what_it_has_is_fine(folder: Path) -> None:
    coder = next(entry.coder for entry in wcodec.open(folder).stored if entry.scheme == "rate")
    loaded = wcodec.load_model(folder, scheme="rate", bits=4, coder=coder, include=(), exclude=[])
    assert type(loaded.lm_head).__name__ == "CompressedLinear"


def test_a_budget_implies_auto(folder: Path) -> None:
    for options in ({"vram_budget": "1GB"}, {"ram_budget": "1GB"}):
        assert wcodec.load_model(folder, **options).lm_head._store.settings["residency"] == "auto"
        layers = torch.nn.Sequential(torch.nn.Linear(64, 64))
        wcodec.compress_(layers, progress=False, **options)
        assert layers[0]._store.settings["residency"] == "auto"
        config = wcodec.WCodecConfig(**options)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
        assert loaded.lm_head._store.settings["residency"] == "auto"
        again = wcodec.WCodecConfig.from_dict(config.to_dict())
        assert again.residency == "auto"
    with pytest.raises(wcodec.InputError, match="vram_budget goes with residency 'auto', not with 'host'"):
        wcodec.load_model(folder, residency="host", vram_budget="1GB")


def test_a_config_says_where_the_weights_of_a_folder_are(folder: Path) -> None:
    config = wcodec.WCodecConfig(residency="host", cache="1MB")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    assert loaded.lm_head._store.settings["residency"] == "host"
    assert loaded.lm_head._store.settings["cache"] == 10**6


def test_scales_do_not_go_with_a_budget(model: Path, tmp_path: Path) -> None:
    for options in ({"scale": "block"}, {"block": 32}, {"bits_per_tensor": True}, {"frame": 999}):
        with pytest.raises(wcodec.InputError, match=f"{next(iter(options))}=.* does not go with a budget"):
            wcodec.compress(model, tmp_path / "m.wcodec", budget="4 bits", progress=False, **options)


def test_what_measures_takes_places_too(model: Path, folder: Path) -> None:
    text = "The function returns a list of all names that were found in the module. " * 4
    report = wcodec.evaluate(folder, text, str(model))
    assert report.kl_mean and report.kl_mean > 0
    loaded, plain = wcodec.load_model(folder), transformers.AutoModelForCausalLM.from_pretrained(model)
    same = wcodec.evaluate(loaded, text, plain)
    assert same.perplexity == report.perplexity and same.kl_mean == report.kl_mean
    # A baseline that is compressed is compared as it is.
    assert wcodec.eval(folder, text, baseline=folder / "model.wcodec").kl_mean == 0
    assert (
        wcodec.generate(folder, "The function", max_new_tokens=3).tokens
        == wcodec.generate(loaded, "The function", max_new_tokens=3).tokens
    )
    bench = wcodec.bench(str(folder), model, batch=1, prompt_tokens=4, new_tokens=2, repeats=1)
    assert {row.model for row in bench.rows} == {"model", "baseline"}
    statistics = wcodec.calibrate(model, data=model / "heldout.txt", windows=1, length=16, full=False)
    assert statistics.tokens == 16
    # The config says bfloat16.
    assert wcodec.evaluate(folder, text, dtype="float32").perplexity != report.perplexity
    with pytest.raises(wcodec.InputError, match="dtype='float32' is for a model that is loaded from a path"):
        wcodec.evaluate(loaded, text, dtype="float32")
    with pytest.raises(wcodec.InputError, match="device='meta' is|cannot decode to"):
        wcodec.evaluate(loaded, text, device="meta")
    assert wcodec.evaluate(loaded, text, device="cpu", dtype=torch.bfloat16).perplexity == report.perplexity


def test_a_budget_implies_auto_in_vllm_and_in_the_command() -> None:
    from types import SimpleNamespace

    from wcodec._cli.checks import running
    from wcodec._cli.parser import build_parser
    from wcodec._integrations.vllm.arguments import engine_settings

    def said(**settings: Any) -> Any:
        return engine_settings(SimpleNamespace(additional_config={"wcodec": settings})).get("residency")

    assert said(vram_budget="1GB") == "auto" and said() is None and said(residency="host") == "host"
    place = str(Path(__file__).parents[1] / "data/doc-llama-3m")
    for options, residency in ((["--ram-budget", "1GB"], "auto"), ([], None)):
        arguments = build_parser().parse_args(["bench", place, *options])
        running(arguments)
        assert arguments.residency == residency
