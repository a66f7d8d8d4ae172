"""``wcodec generate``, ``wcodec eval`` and ``wcodec bench``: what they print, their JSON, what they refuse."""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import sys
from pathlib import Path

import earlier_folders
import pytest
import wcodec
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PROMPT = "The function returns"


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder with a .wcodec file in the place of its weights."""
    folder = tmp_path_factory.mktemp("models") / "compressed"
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(model / name, folder)
    wcodec.compress(model, folder / "model.wcodec")
    return folder


@pytest.fixture(scope="module")
def decoded(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model with dequantized weights."""
    target = tmp_path_factory.mktemp("models") / "decoded"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.wcodec"))
    wcodec.decompress(folder / "model.wcodec", target / "model.safetensors")
    return target


def test_generate(folder: Path, decoded: Path, run: Cli) -> None:
    status, out, err = run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "20")
    assert status == 0 and out.startswith(PROMPT) and "20 tokens" in err and "tokens/s (the first after " in err
    reference = transformers.AutoModelForCausalLM.from_pretrained(decoded, dtype=torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(decoded)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    tokens = reference.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=20,
                                do_sample=False, pad_token_id=0)[0, inputs["input_ids"].shape[1] :]  # fmt: skip
    assert out == PROMPT + tokenizer.decode(tokens, skip_special_tokens=True) + "\n"
    # Beside the original, and as JSON.
    arguments = ("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "20", "--baseline", decoded, "-q")
    status, out, err = run(*arguments)
    assert status == 0 and "--- same: 20 tokens\n" in out and not err
    assert out.count(PROMPT) == 2 and str(folder) in out and str(decoded) in out
    status, out, _ = run(*arguments, "--json")
    record = document(out, "generate")
    assert status == 0 and record["tokens"] == tokens.tolist() == record["baseline_generation"]["tokens"]
    assert 0 < record["first_token_seconds"] < record["seconds"] and record["fused"] is False
    assert record["decode_tokens_per_second"] > 0
    assert record["same_tokens"] == 20 and record["prompt"] == PROMPT and record["device"] == "cpu"


class _Letters:
    """A tokenizer whose characters take several tokens, and whose first word has no space before it, as in Llama's."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return bytes(i for i in ids if i).decode("utf-8", "replace").removeprefix(" ")


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("stop", [None, 4, 14])
def test_text_appears_as_it_is_written(live: bool, stop: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    from wcodec._cli.stream import Stream

    text = " größe 層 \x1b[31m and\nmore of it"
    ids, whole = [*text.encode(), 0], text.removeprefix(" ")
    stream = Stream(_Letters(), "Head: ", live=live)
    stream.put(torch.tensor([[1, 2, 3]]))
    seen = capsys.readouterr().out
    for i in ids[:stop]:
        stream.put(torch.tensor([i]))
        seen += capsys.readouterr().out
    shown = "Head: " + _Letters().decode(ids[:stop]).rstrip("\ufffd").replace("\x1b", "\\x1b")
    # As it comes, or not before the end.
    assert shown.startswith(seen) and len(seen) > 6 if live else seen == ""
    stream.finish(whole if stop is None else None)
    assert seen + capsys.readouterr().out == f"{shown}\n" and stream.tokens == len(ids[:stop])


def test_an_interruption_keeps_the_text(folder: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from wcodec._cli.stream import Stream

    put = Stream.put

    def interrupted(stream: Stream, value: object) -> None:
        put(stream, value)
        if stream.tokens == 5:
            raise KeyboardInterrupt

    whole = run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "5", "-q")[1]
    monkeypatch.setattr(Stream, "put", interrupted)
    status, out, err = run("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "50")
    assert (status, out) == (130, whole) and "5 tokens until it was interrupted" in err


def test_an_empty_prompt_begins_anew(folder: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", folder, "--prompt", "", "--max-new-tokens", "3")
    record = document(run(*arguments, "--json")[1], "generate")
    assert record["prompt_tokens"] == 1 and len(record["tokens"]) == 3
    _, _, err = run(*arguments)
    assert "tokens/s); memory: weights" in err and "MiB" in err
    monkeypatch.setattr("wcodec._measure.kv_cache._beginning", lambda *_: [])
    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", lambda *_, **__: {"input_ids": []})
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and "no token that a text begins with" in err


def test_generate_with_layers_that_stay_decoded(folder: Path, run: Cli) -> None:
    common = ("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "8", "-q")
    assert run(*common, "--cache", "1MB") == run(*common)


def test_generate_from_standard_input(folder: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    status, out, err = run("generate", folder, "--prompt", "-", "--max-new-tokens", "3", "-q", "--dtype", "float32")
    assert status == 0 and out.startswith(PROMPT) and not err


def test_generate_with_a_cache_of_float32(folder: Path, run: Cli) -> None:
    """It changes nothing in a model of float32."""
    common = ("generate", folder, "--prompt", PROMPT, "--max-new-tokens", "12", "--dtype", "float32", "--json")
    plain = document(run(*common)[1], "generate")
    cached = document(run(*common, "--kv-cache-dtype", "float32")[1], "generate")
    assert plain["tokens"] == cached["tokens"]
    assert (plain["kv_cache_dtype"], cached["kv_cache_dtype"]) == (None, "float32")


def test_a_file_alone_needs_a_tokenizer(folder: Path, tmp_path: Path, run: Cli) -> None:
    shutil.copy(folder / "model.wcodec", tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    arguments = ("generate", tmp_path / "model.wcodec", "--prompt", PROMPT, "--max-new-tokens", "4", "-q")
    status, _, err = run(*arguments)
    assert status == 2 and "--tokenizer" in err and err.count("\n") == 1
    assert run(*arguments, "--tokenizer", folder) == run("generate", folder, *arguments[2:])


def test_eval(folder: Path, decoded: Path, model: Path, tmp_path: Path, run: Cli) -> None:
    text = tmp_path / "text.txt"
    text.write_text((model / "heldout.txt").read_text()[:2_000])
    status, out, _ = run("eval", folder, "--text", text)
    assert status == 0 and out.startswith("perplexity") and "KL" not in out
    status, out, _ = run("eval", folder, "--text", text, "--baseline", model, "--json", "--dtype", "float32")
    report = document(out, "eval")
    assert status == 0 and 1 < report["perplexity"] < 30 and 0 < report["kl_mean"] < 0.01
    assert report["top1_agreement"] > 0.9 and report["tokens"] > 300 and report["text"] == str(text)
    assert math.isclose(report["perplexity"], report["baseline_perplexity"], rel_tol=0.02)
    status, out, _ = run("eval", folder, "--text", text, "--baseline", decoded, "--json", "--window", "64",
                         "--stride", "32", "--max-tokens", "200")  # fmt: skip
    report = document(out, "eval")
    # In bfloat16, as the decoded file: the same weights.
    assert report["kl_max"] == 0 and report["top1_agreement"] == 1
    assert (report["window"], report["stride"], report["tokens"]) == (64, 32, 199)


def test_bench(folder: Path, decoded: Path, run: Cli) -> None:
    options = ("--batch", "1,2", "--prompt-tokens", "4", "--new-tokens", "3", "--repeats", "1")
    status, out, _ = run("bench", folder, "--baseline", decoded, *options, "--profile")
    assert status == 0 and "decode tokens/s" in out and "compressed layers" in out and "whole token ms" in out
    assert "CompressedLinear" in out
    status, out, _ = run("bench", folder, *options, "--json", "-q", "--profile", "--cache", "1MB")
    report = document(out, "bench")
    (split,) = report["splits"]
    assert split["copy"] == 0 and 0 < split["decode"] < split["wall"] and 0 < split["product"] < split["wall"]
    assert [row["batch"] for row in report["rows"]] == [1, 2] and report["rows"][0]["decode"]["median"] > 0
    parts = {part["name"]: part["bytes"] for part in report["memory"]["parts"]}
    with wcodec.open(folder / "model.wcodec") as container:
        stored = {entry.name: entry.stored_bytes for entry in container.stored if len(entry.shape) == 2}
    assert parts["compressed embeddings"] == stored.pop("model.embed_tokens.weight")
    assert parts["compressed layers"] == sum(stored.values())
    assert parts["weights as they are"] == 9 * 192 * 2
    assert 0 < parts["decoded-layer cache"] <= 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "{none}", "--prompt", "x"), "none"),
        (("eval", "{folder}", "--text", "{none}"), "no such file"),
        (("eval", "{folder}", "--text", "{folder}/model.wcodec"), "not UTF-8"),
        (("eval", "{folder}", "--text", "{empty}"), "the text has no tokens"),
        (("eval", "{folder}", "--text", "{folder}/config.json", "--window", "4096"), "1024 positions"),
        (("bench", "{folder}", "--new-tokens", "1"), "at least 2"),
        (("bench", "{folder}", "--baseline", "{none}"), "none"),
        (("generate", "{folder}", "--prompt", "x", "--device", "tpu"), "tpu"),
        (("generate", "{folder}", "--prompt", "x", "--vram-budget", "3GB"), "has no effect on the CPU"),
        (("generate", "{folder}", "--prompt", "x", "--fused"), "--fused has no effect on the CPU"),
        (("bench", "{folder}", "--no-fused"), "--no-fused has no effect on the CPU"),
    ],
)
def test_errors(folder: Path, tmp_path: Path, run: Cli, arguments: tuple[str, ...], message: str) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    status, out, err = run(*(a.format(folder=folder, none=tmp_path / "none", empty=empty) for a in arguments))
    assert status == 2 and not out and message in err
    assert err.startswith("wcodec: error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("generate", "m"), ("eval", "m"), ("bench", "m", "--batch", "0"), ("bench", "m", "--batch", "1,x"),
     ("generate", "m", "--prompt", "x", "--kv-cache-dtype", "int8"), ("bench", "m", "--cache", "3G"),
     ("eval", "m", "--text", "t", "--vram-budget", "-1")],
)  # fmt: skip
def test_usage(run: Cli, arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_help(run: Cli) -> None:
    for command in ("generate", "eval", "bench"):
        status, out, _ = run(command, "--help", "--all")
        assert (
            status == 0
            and "MODEL" in out
            and "--residency" in out
            and "--vram-budget" in out
            and "--cache" in out
            and f"wcodec {command}" in out
        )
    assert all(command in run("--help")[1] for command in ("generate", "eval", "bench"))


def test_without_a_gpu(folder: Path, run: Cli) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status, _, err = run("generate", folder, "--prompt", "x", "--device", "cuda")
    assert status == 2 and err.count("\n") == 1


def test_without_transformers(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['transformers'] = None; from wcodec.cli import main; "
        f"sys.exit(main(['generate', {str(folder)!r}, '--prompt', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pip install" in done.stderr and done.stderr.count("\n") == 1


def test_inspect_tells_what_is_beside(tmp_path: Path, run: Cli) -> None:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    wcodec.compress_(model, progress=False)
    model.save_pretrained(tmp_path / "m")
    rest = "7 tensors as they were, 3.25 KiB; matrices among them: model.layers.*.mlp.gate.weight (2.00 KiB)"
    for place in (tmp_path / "m", tmp_path / "m/model.wcodec"):
        assert rest in " ".join(run("inspect", place)[1].split())
    # A folder of an earlier version.
    earlier_folders.split(tmp_path / "m")
    for place in (tmp_path / "m", tmp_path / "m/model.wcodec"):
        assert f"beside it, in model.safetensors: {rest}" in " ".join(run("inspect", place)[1].split())
    (tmp_path / "m/model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors beside it, which is missing or cannot be read" in run("inspect", tmp_path / "m")[1]
    # A container of all there is has nothing beside it.
    wcodec.compress({"a": torch.ones(4, 4)}, tmp_path / "a.wcodec", progress=False)
    assert "beside" not in run("inspect", tmp_path / "a.wcodec")[1]
