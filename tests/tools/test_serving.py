"""pyext/benches/serving: folders, arguments of engines, judging of tokens, tables, and the archives of vLLM."""

from __future__ import annotations

import argparse
import doctest
import importlib.util
import json
import math
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import parallel_ranks
import pytest
import wcodec

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from serving import (  # noqa: E402
    command,
    engine,
    fatbin,
    launch,
    models,
    needs,
    pack,
    planned,
    ranks_table,
    reference,
    results,
    shared,
    streamed,
    table,
    wheels,
)

LLAMA = {"num_hidden_layers": 8, "num_key_value_heads": 8, "num_attention_heads": 32, "hidden_size": 4096}


def job(tmp_path: Path, **other: Any) -> engine.Job:
    usual = {"model": "small", "scheme": "int8", "mode": "graphs", "ranks": 1, "sequences": (1, 8)}
    return engine.Job(**{"folder": tmp_path, **usual, **other})


@pytest.mark.parametrize(
    "module",
    [command, engine, fatbin, models, needs, pack, ranks_table, reference, streamed, table, wheels],
    ids=lambda m: m.__name__,
)
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# Arguments.


def test_bf16_is_measured_with_whatever_is_asked_for() -> None:
    args = command.parser().parse_args(["--schemes", "int8,bf16,4.0-size", "--sequences", "32,1"])
    assert args.schemes == ["bf16", "int8", "4.0-size"] and args.sequences == (1, 32)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schemes", "int9"], "there is no scheme 'int9'"),
        (["--models", "llama-9b"], "there is no 'llama-9b' (there are tinyllama"),
        (["--parts", "all"], "there is no 'all' (there are vllm, transformers, check)"),
        (["--modes", "captured"], "there is no 'captured' (there are eager"),
        (["--sequences", "0"], "'0' is no list of whole numbers"),
        (["--memory-limit", "24 apples"], "'24 apples' is no size"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        command.parser().parse_args(arguments)
    assert error.value.code == 2 and said in capsys.readouterr().err


def test_missing_things_are_named_with_the_way_to_get_them() -> None:
    said = "\n".join(needs.lacking({"torch": "2.10.0", "transformers": "5.1", "wcodec": "0.1"}, "12.8", 1, 1))
    assert "torch 2.10.0, built for CUDA 12.8: 2.11 or later" in said and "serving pack OUT" in said
    full = {"torch": "2.11.0+cu130", "vllm": "0.33.1", "transformers": "5.17", "wcodec": "0.1"}
    assert needs.lacking(full, "13.0", 2, 2) == []
    assert "torch sees 2 GPUs, and 4 are needed" in needs.lacking(full, "13.0", 2, 4)[0]
    assert "torch 2.11.0+cu130, no build for CUDA" in needs.lacking(full, None, 0, 1)[0]
    assert "vLLM 0.34.0 is not one" in needs.lacking({**full, "vllm": "0.34.0"}, "13.0", 1, 1)[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_begun(tmp_path: Path) -> None:
    arguments = ["--folder", str(tmp_path / "x"), "--json", str(tmp_path / "y.json")]
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "pyext/benches/serving"), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2 and "serving: torch" in done.stderr
    assert not list(tmp_path.iterdir())


# Folders.


def test_folders_are_made_once_and_say_how_many_bits_they_take(tmp_path: Path) -> None:
    made = models.make(tmp_path, "small", 1, ["bf16", "int8"], "cpu")
    bits = {found["scheme"]: found["bits"] for found in made}
    assert bits["bf16"] == 16 and 4 < bits["int8"] < 9
    config = json.loads((tmp_path / "small-1/int8/config.json").read_text())
    assert config["num_hidden_layers"] == 1 and config["max_position_embeddings"] == models.POSITIONS
    [file] = (tmp_path / "small-1/bf16").glob("*.safetensors")
    before = file.stat().st_mtime_ns
    assert [f["bits"] for f in models.make(tmp_path, "small", 1, ["bf16", "int8"], "cpu")] == list(bits.values())
    assert file.stat().st_mtime_ns == before


def test_shapes_are_those_of_the_models_that_they_are_named_after() -> None:
    mixture = models.config_of("qwen3-moe", None)
    assert (mixture.hidden_size, mixture.num_experts, mixture.moe_intermediate_size) == (2048, 128, 768)
    assert (mixture.num_experts_per_tok, mixture.num_hidden_layers) == (8, 4)
    assert models.config_of("llama-8b", 32).num_hidden_layers == 32
    assert models.config_of("tinyllama", None).num_hidden_layers == 22


def test_experts_have_weights_of_their_own() -> None:
    import tinyllama_model

    layer = torch.nn.Module()
    layer.experts = torch.nn.Parameter(torch.zeros(3, 64, 64), requires_grad=False)
    layer.norm = torch.nn.Parameter(torch.ones(64), requires_grad=False)
    tinyllama_model.fill(layer, "cpu")
    assert torch.equal(layer.norm, torch.ones(64))
    assert all(0.01 < e.std() < 0.05 for e in layer.experts) and not torch.equal(layer.experts[0], layer.experts[1])


# Models that are in bf16 nowhere, and ranks that share them.


@pytest.fixture(scope="module")
def ranks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, of which some have the rows of others, in bf16 and int8."""
    root = tmp_path_factory.mktemp("streamed")
    models.make(root, "small-ranks", 6, ["bf16", "int8"], "cpu")
    return models.folder_of(root, "small-ranks", 6, "int8")


def test_models_of_several_gpus_are_compressed_without_a_bf16_file(ranks_folder: Path) -> None:
    plain = ranks_folder.with_name("bf16")
    assert not models.has_weights(plain) and models.has_weights(ranks_folder)
    assert models.make(ranks_folder.parents[1], "small-ranks", 6, ["bf16"], "cpu")[0]["bits"] == 16
    # Equal tensors would be stored once, and take less memory than a model does.
    with wcodec.open(ranks_folder) as container:
        names = [n for n in container if n.endswith("layers.0.mlp.up_proj.weight") or ".4.mlp.up_proj" in n]
        one, other = (container[name].torch() for name in sorted(names))
        assert torch.equal(one.roll(1, 0), other) and one.std() > 0.01
        assert len(container.stored) == len(container) == 6 * 9 + 3


def test_a_mixture_is_compressed_without_a_bf16_file(tmp_path: Path) -> None:
    models.make(tmp_path, "small-moe", 1, ["bf16", "4.0"], "cpu")
    folder = models.folder_of(tmp_path, "small-moe", 1, "4.0")
    model = wcodec.load_model(folder)
    assert "CompressedExperts" in repr(model) and model(torch.tensor([[5, 6]])).logits.isfinite().all()
    # vLLM divides what this transformers may leave whole.
    plans = {name: of(folder, "4.0", 2) for name, of in vars(planned).items() if name.startswith("of_")}
    assert plans["of_vllm"]["plan_bytes"] <= plans["of_transformers"]["plan_bytes"] < models.weight_bytes(folder)
    assert 0.8 < plans["of_vllm"]["plan_bytes"] / plans["of_vllm"]["config_bytes"] < 1.2
    bf16 = planned.of_vllm(folder.with_name("bf16"), "bf16", 2)["plan_bytes"]
    weights = sum(math.prod(shape) for shape in streamed.shapes_of(models.config_of("small-moe", 1)).values())
    # Two bytes of half of them, and norms and a router on both ranks.
    assert weights < bf16 < 1.02 * weights
    # Three ranks cannot share four heads.
    assert planned.of_vllm(folder, "4.0", 3) == {}
    assert ranks_table.beside_plan({"rank_bytes": [10**9]}) == "1.00 GB, without a plan"


@pytest.mark.skipif(
    importlib.util.find_spec("transformers.distributed.tensor_parallel") is None,
    reason="this transformers has no tensor parallelism that takes layers of others",
)
def test_ranks_are_measured_beside_their_plan(ranks_folder: Path) -> None:
    plain, dequantized = ranks_folder.with_name("bf16"), ranks_folder.with_name("dequantized")
    streamed.dequantize(ranks_folder, dequantized)
    usual = {"model": "small-ranks-6", "ranks": 2, "repeats": 1}
    jobs: list[dict[str, Any]] = [
        {**usual, "folder": str(ranks_folder), "scheme": "int8", "sequences": [2], "plain": str(dequantized)},
        {**usual, "folder": str(plain), "scheme": "bf16", "sequences": []},
    ]
    told, nothing = parallel_ranks.run(2, parallel_ranks.benchmarked, REPOSITORY / "pyext/benches", jobs)
    assert not nothing and [line["kind"] for line in told] == ["shared", "shared_speed", "shared_logits", "shared"]
    first, speed, logits, last = told
    assert first["same_again"] and len(set(first["digests"])) == 1 and not ranks_table.wrong(told)
    assert speed["sequences"] == 2 and speed["tokens_per_s"] > 0
    assert 0 < logits["error"] <= 1.01 * logits["own_error"] < 0.05
    assert last["rank_bytes"] == [last["plan_bytes"]] * 2 and first["plan_bytes"] < last["plan_bytes"] / 2


def test_a_map_computes_what_one_device_does(ranks_folder: Path) -> None:
    pytest.importorskip("accelerate")
    told: list[Any] = []
    job_of_map = {"folder": str(ranks_folder), "model": "small-ranks-6", "scheme": "int8"}
    shared.maps(job_of_map, lambda kind, **values: told.append({"kind": kind, **values}))
    assert told[0]["same_logits"] and told[0]["same_text"] and sum(told[0]["held"].values()) > 0
    assert "by a map (" in ranks_table.table(told) and not ranks_table.wrong(told)
    assert ranks_table.wrong([{**told[0], "same_text": False}])


def lines_of_ranks() -> list[results.Json]:
    key = {"model": "llama-70b", "ranks": 4}
    plain = {**key, "scheme": "bf16"}
    own = {**key, "scheme": "4.0"}
    bits = {"digests": ["a"] * 4, "same_again": True, "start_s": 30.4}
    return [
        {"kind": "shared", **plain, **bits, "rank_bytes": [35 * 10**9] * 4, "plan_bytes": 35 * 10**9},
        {"kind": "shared_speed", **plain, "sequences": 1, "tokens_per_s": 10.0},
        {"kind": "shared", **own, **bits, "rank_bytes": [8_800_000_000] * 4, "plan_bytes": 8_700_000_000},
        {"kind": "shared_speed", **own, "sequences": 1, "tokens_per_s": 14.0},
        {"kind": "shared", **own, **bits, "rank_bytes": [8_800_000_000] * 4, "plan_bytes": 8_700_000_000},
        {"kind": "shared_logits", **own, "error": 0.012, "own_error": 0.01},
    ]


def test_the_table_of_ranks_has_memory_beside_the_plan() -> None:
    rows = ranks_table.table(lines_of_ranks()).splitlines()
    assert rows[0].startswith(
        "| model | scheme | ranks | memory of each rank / plan | start, s | 1 at once, tokens/s |"
    )
    memory = "8.80, 8.80, 8.80, 8.80 of 8.70 GB (+1.1 to +1.1 %)"
    assert rows[3] == f"| llama-70b | 4.0 | 4 | {memory} | 30 | 14.0 (1.40) | yes / yes / yes | 1.20% / 1.00% |"
    assert "yes / yes / -" in rows[2] and len(rows) == 4


@pytest.mark.parametrize(
    ("line", "changed", "said"),
    [
        (0, {"rank_bytes": [37 * 10**9] * 4}, "llama-70b bf16, 4 ranks: memory is 37.00"),
        (2, {"same_again": False}, "llama-70b 4.0, 4 ranks: other bits the second time"),
        (4, {"digests": ["b"] * 4}, "llama-70b 4.0, 4 ranks: other bits in another process or rank"),
        (5, {"error": 0.02}, "llama-70b 4.0, 4 ranks: logits are 2.00% / 1.00% from those in float32"),
        (5, {"error": math.nan}, "llama-70b 4.0, 4 ranks: logits are nan% / 1.00% from those in float32"),
    ],
)
def test_what_is_not_as_planned_is_told(line: int, changed: dict[str, Any], said: str) -> None:
    some = lines_of_ranks()
    assert ranks_table.wrong(some) == []
    some[line].update(changed)
    assert [text for text in ranks_table.wrong(some) if text.startswith(said)]


def test_each_rank_is_a_process(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['MASTER_PORT'])"
    )
    assert launch.run([sys.executable, "-c", code, str(tmp_path)], 3) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


def test_no_rank_waits_for_one_that_failed() -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
    begin = time.monotonic()
    assert launch.run([sys.executable, "-c", code], 2) == 3 and time.monotonic() - begin < 300


# Engines.


def test_a_job_reaches_its_process_as_it_is(tmp_path: Path) -> None:
    given = job(tmp_path, sequences=(1, 8), limit=24_000_000_000, attention="FLASH_ATTN")
    assert engine.Job.from_json(json.loads(json.dumps(given.to_json()))) == given
    assert given.tokens.parent == tmp_path.parent and given.tokens != job(tmp_path, mode="eager").tokens


def test_each_mode_asks_vllm_for_what_it_is_called(tmp_path: Path) -> None:
    eager, graphs, compiled = (engine.options(job(tmp_path, mode=mode), LLAMA, 80 << 30) for mode in engine.MODES)
    assert eager["enforce_eager"] is True and "compilation_config" not in eager
    assert graphs["compilation_config"]["mode"] == 0 and "FULL" in graphs["compilation_config"]["cudagraph_mode"]
    assert "mode" not in compiled["compilation_config"]
    assert graphs["max_num_seqs"] == 8 and graphs["max_model_len"] == engine.LONG
    assert not graphs["enable_prefix_caching"]


def test_a_limited_card_leaves_the_size_of_the_cache_to_vllm(tmp_path: Path) -> None:
    found = engine.options(job(tmp_path, limit=24_000_000_000, ranks=2), LLAMA, 96_000_000_000)
    assert found["gpu_memory_utilization"] == 0.25 and "kv_cache_memory_bytes" not in found
    assert found["tensor_parallel_size"] == 2
    free = engine.options(job(tmp_path), LLAMA, 96_000_000_000)
    assert free["kv_cache_memory_bytes"] == engine.cache_bytes(LLAMA, (1, 8), 1)
    assert engine.cache_bytes(LLAMA, (1, 8), 2) * 2 == engine.cache_bytes(LLAMA, (1, 8), 1)


def test_engines_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "model.wcodec").write_bytes(b"12")
    usual = engine.options(job(tmp_path), LLAMA, 80 << 30)
    assert not usual.keys() & {"load_format", "enable_expert_parallel", "disable_custom_all_reduce"}
    (tmp_path / "model.wcodec").unlink()
    found = engine.options(job(tmp_path, by_expert=True, custom_all_reduce=False), LLAMA, 80 << 30)
    assert (found["load_format"], found["enable_expert_parallel"], found["disable_custom_all_reduce"]) == (
        "dummy", True, True,
    )  # fmt: skip
    # Multicast of NVLink can harm others on the host.
    assert engine.ENVIRONMENT["NCCL_NVLS_ENABLE"] == "0" and engine.ENVIRONMENT["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"


def test_bytes_of_a_rank_are_those_that_decoders_hold() -> None:
    class Holder:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    model = torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(4, 2, bias=False))
    store = Holder(device_bytes=1000)
    piece = Holder(layer=Holder(_store=store))
    object.__setattr__(model[0], "_wcodec", Holder(pieces=[piece, piece]))
    object.__setattr__(model[1], "_wcodec", Holder(_store=store))
    assert engine.weight_bytes(model) == 1000 + 2 * 4 * 2 * 4


def test_speeds_leave_the_prompt_out_and_take_the_median() -> None:
    asked: list[tuple[int, int]] = []
    steps = iter([0.01, 0.03, 0.02, 0.02, 0.02])

    def run(some: list[Any], tokens: int) -> tuple[float, list[list[int]]]:
        asked.append((len(some), tokens))
        step = next(steps) if tokens > 4 else 0.0
        return 0.5 + step * engine.NEW, [[0] * tokens for _ in some]

    found = engine.generation(run, 8, 100, 5)
    assert found["step_ms"] == pytest.approx(20) and found["tokens_per_s"] == pytest.approx(400)
    assert found["spread"] == pytest.approx([8 / 0.03, 8 / 0.01]) and found["repeats"] == 5
    assert set(asked) == {(8, 4), (8, 1), (8, engine.NEW + 1)}
    assert engine.prefill(lambda some, tokens: (0.5, []), 100, 1)["tokens_per_s"] == 2 * engine.PREFILL


def test_prompts_are_the_same_for_every_engine() -> None:
    one, other = engine.prompts(4, 100, 32, 1), engine.prompts(4, 100, 32, 1)
    assert one == other and one != engine.prompts(4, 100, 32, 2)
    assert all(3 <= i < 100 for p in one for i in p["prompt_token_ids"])


# Tokens.


def logits_of(ids: list[int]) -> Any:
    """The next token is likely to be the one after the last; the one after that has 0.5 less."""
    out = torch.zeros(len(ids), 16)
    for at, token in enumerate(ids):
        out[at, (token + 1) % 16], out[at, (token + 2) % 16] = 4.0, 3.5
    return out


def test_the_gap_is_how_far_a_token_is_from_the_largest_logit() -> None:
    fine = reference.gap_of(logits_of, {"prompts": [[1, 2]], "answers": [[3, 4, 5]]})
    assert (fine.largest, fine.same, fine.tokens, fine.top) == (0.0, 3, 3, 4.0)
    near = reference.gap_of(logits_of, {"prompts": [[1, 2], [1]], "answers": [[3, 5, 6], [2, 3, 4]]})
    assert (near.largest, near.same, near.tokens) == (0.5, 5, 6)
    wrong = reference.gap_of(logits_of, {"prompts": [[1, 2]], "answers": [[3, 9, 10]]})
    assert wrong.largest == 4.0 and wrong.deviation > 0.5


def test_an_engine_of_the_cpu_and_transformers_agree(tmp_path: Path) -> None:
    models.make(tmp_path, "small", 1, ["int8"], "cpu")
    folder = models.folder_of(tmp_path, "small", 1, "int8")
    logits = reference.load(folder, "int8", "cpu")
    answer = [5, 6]
    for _ in range(4):
        answer.append(int(logits(answer)[-1].argmax()))
    file = tmp_path / "tokens.json"
    key = job(tmp_path).key
    file.write_text(json.dumps({"key": key, "prompts": [[5, 6]], "answers": [answer[2:]]}))
    told: list[Any] = []
    reference.measure(folder, "int8", [file], "cpu", lambda kind, **values: told.append({"kind": kind, **values}))
    assert told[0]["kind"] == "gap" and told[0]["same"] == told[0]["tokens"] == 4 and told[0]["largest"] == 0


# Results.


def lines(gap: float = 0.2) -> list[results.Json]:
    out: list[results.Json] = []
    for scheme, bits, speed, fits in (("bf16", 16.0, 600.0, 20), ("int8", 6.5, 900.0, 50)):
        key = {"model": "llama-8b", "scheme": scheme, "mode": "compiled", "ranks": 1, "limit": 24_000_000_000}
        out += [
            {"kind": "folder", "model": "llama-8b", "scheme": scheme, "bits": bits},
            {"kind": "engine", **key, "used_bytes": 10**9, "cache_bytes": None, "long_sequences": fits},
            {"kind": "speed", **key, "sequences": 8, "tokens_per_s": speed},
            {"kind": "prefill", **key, "tokens_per_s": speed * 10},
            {"kind": "gap", **key, "largest": 0.1 if scheme == "bf16" else gap, "deviation": 1.0, "top": 5.0,
             "tokens": 9, "same": 8},
        ]  # fmt: skip
    return out


ABOUT = {"card": "a card", "driver": "580", "commit": "abc", "versions": {"vllm": "0.33.0"}, "date": "2026-01-01"}


def test_the_table_says_engine_mode_card_and_commit_and_compares_with_bf16() -> None:
    text = table.table(ABOUT, lines())
    rows = text.splitlines()
    assert rows[0] == "a card, driver 580; commit abc; vllm 0.33.0; 2026-01-01"
    assert rows[2].startswith("| model | scheme | bits | engine | ranks | card of | 8 sequences |")
    assert rows[4] == "| llama-8b | bf16 | 16.00 | vLLM, compiled | 1 | 24 GB | 600 | 6,000 | - | 20 | 0.100 / 1.00 |"
    start = "| llama-8b | int8 | 6.50 | vLLM, compiled | 1 | 24 GB | "
    assert rows[5] == start + "900 (1.50) | 9,000 (1.50) | - | 50 (2.50) | 0.200 / 1.00 |"
    assert not table.wrong(lines())


def test_wrong_tokens_are_told() -> None:
    assert "0.400 / 1.00, wrong |" in table.table(ABOUT, lines(0.4))
    assert table.wrong(lines(0.4)) == [
        "llama-8b int8 compiled, 1 ranks: a token is 0.4 from the largest logit, and 0.3 is accepted"
    ]


def test_an_engine_that_failed_is_named() -> None:
    failed = {"kind": "failed", "what": "llama-8b int8 compiled", "reason": "exit status 1"}
    assert "Not measured: llama-8b int8 compiled: exit status 1" in table.table(ABOUT, [*lines()[:5], failed])


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x" / "lines"
    results.add(path, "speed", tokens_per_s=1.0)
    with path.open("a") as file:
        file.write('{"kind": "sp')
    assert results.read(path) == [{"kind": "speed", "tokens_per_s": 1.0}]
    assert results.read(tmp_path / "none") == []


def test_a_step_that_dies_leaves_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    args = command.parser().parse_args(["--folder", str(tmp_path / "f"), "--json", str(tmp_path / "out.json")])
    run = command.Run(args, [])
    run.folder.mkdir()
    assert not run.step("models", "no such model", name="nobody", layers=None, schemes=["bf16"], device="cpu")
    assert run.step("models", "a small one", name="small", layers=1, schemes=["bf16"], device="cpu")
    found = json.loads((tmp_path / "out.json").read_text())
    assert [line["kind"] for line in found["results"]] == ["failed", "folder"]
    assert found["results"][0]["reason"].startswith("exit status 1") and found["schema"] == results.SCHEMA


# Archives.


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    head = fatbin.ENTRY.pack(kind, 1, 64, len(payload)).ljust(28, b"\0") + struct.pack("<I", architecture)
    return head.ljust(64, b"\0") + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return fatbin.HEADER.pack(fatbin.MAGIC, 1, 16, len(body)) + body


def elf(fatbins: list[tuple[str, bytes]]) -> bytes:
    """An ELF file that has nothing but fatbins, each with the symbols of its source."""
    code, symbols, names = b"", b"", b"\0"
    for source, data in fatbins:
        for text, info, value in ((source, 4, 0), ("fatbinData", 1, 0x1000 + len(code))):
            symbols += struct.pack("<IBBHQQ", len(names), info, 0, 0, value, 0)
            names += text.encode() + b"\0"
        code += data + bytes(-len(data) % 8 + 8)
    titles = b"\0.nv_fatbin\0.symtab\0.strtab\0"
    offsets = [64, 64 + len(code), 64 + len(code) + len(symbols)]
    parts = [(1, 1, 0x1000, offsets[0], len(code), 0), (12, 2, 0, offsets[1], len(symbols), 3),
             (20, 3, 0, offsets[2], len(names), 0), (0, 3, 0, offsets[2] + len(names), len(titles), 0)]  # fmt: skip
    table_at = offsets[2] + len(names) + len(titles)
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", table_at)
    head = head.ljust(58, b"\0") + struct.pack("<HHH", 64, 5, 4)
    rows = bytes(64)
    for name, kind, address, offset, size, link in parts:
        rows += struct.pack("<IIQQQQI", name, kind, 0, address, offset, size, link).ljust(64, b"\0")
    return head + code + symbols + names + titles + rows


ATTENTION = container(
    entry(fatbin.CODE, 80, b"a" * 64), entry(fatbin.CODE, 90, b"b" * 96), entry(fatbin.PTX, 90, b"c" * 8)
)
OTHER = container(entry(fatbin.CODE, 80, b"d" * 64), entry(fatbin.CODE, 90, b"e" * 8))


def test_one_architecture_stays() -> None:
    data = bytearray(elf([("attention.cu", ATTENTION), ("other.cu", OTHER)]))
    length = len(data)
    assert [f.source for f in fatbin.fatbins(data)] == ["attention.cu", "other.cu"]
    assert fatbin.slim(data, 90) == 64 + 96 + 64 + 8 and len(data) == length
    left = [[(e.architecture, e.data[64:]) for e in f.entries] for f in fatbin.fatbins(data)]
    assert left == [[(90, b"b" * 96)], [(90, b"e" * 8)]]
    assert b"a" * 8 not in data and b"c" * 8 not in data and b"d" * 8 not in data


def test_a_source_that_goes_keeps_a_valid_fatbin() -> None:
    data = bytearray(elf([("attention.cu", ATTENTION), ("other.cu", OTHER)]))
    assert fatbin.slim(data, 90, "other") == 2 * (64 + 8)
    assert [[e.data[64:] for e in f.entries] for f in fatbin.fatbins(data)] == [[b"e" * 8], [b"e" * 8]]


def test_an_earlier_architecture_of_the_generation_serves() -> None:
    data = bytearray(elf([("other.cu", OTHER)]))
    fatbin.slim(data, 86)
    assert [e.architecture for f in fatbin.fatbins(data) for e in f.entries] == [80]
    with pytest.raises(fatbin.NotUnderstood, match="no code for sm_120"):
        fatbin.slim(bytearray(elf([("other.cu", OTHER)])), 120)


def test_ptx_stays_where_it_is_asked_for_and_there_is_no_code() -> None:
    old = container(entry(fatbin.CODE, 80, b"a" * 64), entry(fatbin.PTX, 80, b"p" * 8))
    data = bytearray(elf([("repack.cu", old), ("other.cu", OTHER)]))
    fatbin.slim(data, 90, None, "repack|other")
    assert [[e.data[64:] for e in f.entries] for f in fatbin.fatbins(data)] == [[b"p" * 8], [b"e" * 8]]


def test_bytes_that_are_no_fatbins_are_refused() -> None:
    with pytest.raises(fatbin.NotUnderstood, match="no little-endian ELF"):
        fatbin.fatbins(b"MZ" + bytes(100))
    for broken in (ATTENTION[:-40], b"junkjunk" + ATTENTION, OTHER[:16] + b"\xff" * 24 + OTHER[40:]):
        with pytest.raises(fatbin.NotUnderstood):
            fatbin.fatbins(elf([("x.cu", broken)]))


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, data in files.items():
            out.writestr(name, data)
    return path


def test_vllm_is_unpacked_without_what_is_not_needed(tmp_path: Path) -> None:
    made = wheel(tmp_path / "vllm.whl", {"vllm/a.py": b"1", "vllm/_C.abi3.so": b"2", "vllm/x/static/b.js": b"3"})
    pack.unpack(made, tmp_path / "site", all_files=False)
    assert [str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*.*")] == ["vllm/a.py"]
    with pytest.raises(pack.CannotPack, match="outside of its folder"):
        pack.unpack(wheel(tmp_path / "bad.whl", {"../x.py": b"1"}), tmp_path / "bad")
    with pytest.raises(pack.CannotPack, match="has no vllm/_moe.so"):
        pack.extension(made, "vllm/_moe.so", tmp_path, 90, None)


def test_an_archive_has_the_same_bytes_whenever_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "in/vllm").mkdir(parents=True)
    (tmp_path / "in/vllm/a.py").write_text("x = 1\n")
    pack.archive(tmp_path / "in", tmp_path / "one.tar.xz")
    (tmp_path / "in/vllm/a.py").touch()
    pack.archive(tmp_path / "in", tmp_path / "two.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.xz") as found:
        assert found.getnames() == ["vllm/a.py"]


def test_packing_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main([str(tmp_path / "out"), "--wheel", str(tmp_path / "none.whl")]) == 1
    said = capsys.readouterr().err
    assert "none.whl is not there (make wheel)" in said or "strip is missing" in said
    with pytest.raises(argparse.ArgumentTypeError):
        command.size("much")


def test_versions_are_those_that_wheels_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(requirement: str, folder: Path, python: str) -> Path:
        asked.append(requirement)
        lines_ = "Requires-Dist: pydantic-core==2.50.5\n" if requirement.startswith("pydantic>") else ""
        return wheel(folder / f"{len(asked)}.whl", {"a.dist-info/METADATA": f"Name: a\n{lines_}".encode()})

    monkeypatch.setattr(wheels, "fetch", fetch)
    vllm = wheel(
        tmp_path / "v.whl",
        {"vllm.dist-info/METADATA": b"Requires-Dist: pydantic>=2.12.0\nRequires-Dist: torch==2.11.0\n"},
    )
    assert len(wheels.all_of(vllm, tmp_path, "3.12")) == len(wheels.PACKAGES)
    assert "pydantic>=2.12.0" in asked and "pydantic-core==2.50.5" in asked and "openai" in asked
    assert not any(name.startswith("torch") for name in asked)
    assert len(wheels.all_of(vllm, tmp_path, "3.12", ("aiohttp", "openai"))) == len(wheels.PACKAGES) + 1
    assert asked[-1] == "aiohttp"
