"""Damage against bits: references by hand, what is counted, and what scheme rate must keep of a real model."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from wcodec._plan import reference  # noqa: E402
from wcodec._plan.matrices import Matrices, decoded, pieces_of, replaced  # noqa: E402
from wcodec._plan.score import Judge  # noqa: E402

# A mean over 12 windows is off by 2 or 3 %: enough of them for the bounds below, and few enough for a test.
WINDOWS = 12


@pytest.fixture(scope="module")
def report(model: Path) -> wcodec.FrontierReport:
    """The model of the repository with coder rans."""
    return wcodec.frontier(model, model / "heldout.txt", bits=(4, 3.5), coder="rans", windows=WINDOWS)


# References


def test_nf4_by_hand() -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, :4] = 2.0, 1.0, -2.0, 0.1
    weight[1, :2] = -0.5, 0.2
    found = reference.nf4(weight)
    # The scales 2 and 0.5 are 1.25 and 0.75 either way, which the levels 1 and -0.9929 of the largest have.
    scales = 1.25 + 0.75 * np.array([1.0, -0.99296875])
    assert found[0, :4] == pytest.approx(scales[0] * np.array([1.0, 0.44070983, -1.0, 0.0795803]), rel=1e-6)
    assert found[1, :2] == pytest.approx(scales[1] * np.array([-1.0, 0.44070983]), rel=1e-5)
    assert not found[0, 4:].any() and not found[1, 2:].any()
    assert reference.NF4_BITS == pytest.approx(4.127, abs=5e-4)


def test_nf4_of_zeros_and_of_short_blocks() -> None:
    assert not reference.nf4(np.zeros((3, 50), np.float32)).any()
    weight = np.random.default_rng(1).standard_normal((5, 77)).astype(np.float32)
    found = reference.nf4(weight)
    assert found.shape == weight.shape and found.dtype == np.float32
    # The last block has its own largest weight, which comes back as exactly as its scale.
    tail = weight.reshape(-1)[-(385 % 64) :]
    assert found.reshape(-1)[-(385 % 64) :][np.abs(tail).argmax()] == pytest.approx(
        tail[np.abs(tail).argmax()], rel=0.02
    )


def test_levels_of_double_quantization() -> None:
    levels = reference._dynamic_levels()
    assert len(levels) == 256 and len(set(levels.tolist())) == 256 and (np.diff(levels) > 0).all()
    assert levels[-1] == 1 and levels[-2] == pytest.approx(0.99296875) and levels[0] == pytest.approx(-0.99296875)
    positive = levels[levels > 0]
    # The decade from 0.1 to 1 has 64 levels, the one below 32.
    assert [int(((positive > low) & (positive < 10 * low)).sum()) for low in (0.1, 0.01, 0.001)] == [64, 32, 16]


def test_int4_by_hand() -> None:
    weight = np.zeros((1, 128), np.float32)
    weight[0, :3] = 14.0, -1.0, 6.4
    weight[0, 64:67] = 0.5, 1.5, 7.5
    found = reference.int4(weight)
    assert found[0, :4].tolist() == [14.0, -1.0, 6.0, 0.0]
    # All above zero: a step of 0.5, and zero stays zero.
    assert found[0, 64:68].tolist() == [0.5, 1.5, 7.5, 0.0]
    assert reference.INT4_BITS == 4.25 and not reference.int4(np.zeros((2, 64), np.float32)).any()


# A model whose weights are others for a while


def test_weights_come_back(model: Path) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    before = {name: p.detach().clone() for name, p in original.named_parameters()}
    matrices = Matrices(original)
    assert len(matrices.pieces) == 29 and "model.embed_tokens.weight" not in matrices.tensors()
    container = wcodec.open(wcodec.compress_to_bytes(matrices.tensors(), bits=3)[0])
    with replaced(original, matrices.pieces, decoded(original, container)):
        for piece in matrices.pieces:
            expected = container[piece.name].numpy("float32")
            assert np.array_equal(original.get_parameter(piece.parameter).detach().numpy(), expected)
    with pytest.raises(ZeroDivisionError), matrices.mapped(reference.nf4):
        assert not torch.equal(original.lm_head.weight, before["lm_head.weight"])
        raise ZeroDivisionError
    assert all(torch.equal(p, before[name]) for name, p in original.named_parameters())


def tiny(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=64)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.MixtralConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_models_in_memory_and_from_folders(kind: str, tmp_path: Path) -> None:
    original = tiny(kind)
    original.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 97, 400).tolist()
    reports = [wcodec.frontier(m, ids, bits=4, coder="rans", windows=2) for m in (original, tmp_path)]
    for report in reports:
        assert (report.window, report.windows) == (64, 2)
        # A tied head counts once; the router, which is no linear layer, does not.
        heads = 97 * 64
        layers = 2 * 12 * 64 * 64 if kind == "gpt2" else 2 * (3 * 3 * 64 * 96 + 3 * 64 * 64)
        assert report.weights == heads + layers
        assert 0 < report.row("weights alone", 4).kl < report.row("NF4, blocks of 64").kl * 2
    names = [Matrices(original).tensors(), wcodec.open(wcodec.compress_to_bytes(tmp_path, bits=4)[0])]
    if kind == "gpt2":
        assert Matrices(original).transpose and reports[0].tensors == reports[1].tensors == 9
        assert reports[0].row("NF4, blocks of 64").kl == pytest.approx(reports[1].row("NF4, blocks of 64").kl, rel=1e-3)
    else:
        # transformers joins gate and up of all experts to one parameter, of which a file has six matrices.
        assert any(name.endswith("gate_up_proj.2") for name in names[0])
        assert reports[1].tensors == reports[0].tensors + 2 * 3
        pieces = {p.name: p for p in pieces_of(original, names[1])}
        with replaced(original, pieces.values(), decoded(original, names[1])):
            stack = original.get_parameter(next(p.parameter for p in pieces.values() if p.rows is not None))
            for name, piece in pieces.items():
                if piece.parameter.endswith("layers.0.mlp.experts.gate_up_proj") and piece.expert == 2:
                    low, high = piece.rows or (0, 0)
                    assert np.array_equal(stack[2, low:high].detach().numpy(), names[1][name].numpy("float32"))


def test_a_score_by_hand() -> None:
    original = tiny("gpt2")
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 97, 300))
    judge = Judge(original, ids, 2)
    assert judge.baseline.kl == pytest.approx(0, abs=1e-6) and judge.baseline.top1_agreement == 1
    windows = torch.stack([ids[150:214], ids[236:300]])
    with torch.no_grad():
        before = torch.log_softmax(original(windows).logits, -1).double()
        original.lm_head.weight.data.mul_(1.5)
        after = torch.log_softmax(original(windows).logits, -1).double()
    found = judge.score()
    assert found.kl == pytest.approx(float((before.exp() * (before - after)).sum(-1).mean()), rel=1e-4)
    loss = -after[:, :-1].gather(-1, windows[:, 1:, None]).mean()
    assert found.perplexity == pytest.approx(float(loss.exp()), rel=1e-5)
    assert found.top1_agreement == pytest.approx(float((before.argmax(-1) == after.argmax(-1)).double().mean()))
    assert judge.score([1]).kl == pytest.approx(found.window_kl[1]) and found.tokens == 128


# The whole


def test_what_scheme_rate_must_keep(report: wcodec.FrontierReport) -> None:
    assert report.weights == 2_359_296 and report.tensors == 29 and report.windows == WINDOWS
    bounds = {(4.0, False): 0.75, (4.0, True): 0.61, (3.5, False): 1.58, (3.5, True): 1.28}
    for (bits, trellis), bound in bounds.items():
        row = report.row("weights alone", bits, trellis=trellis, coder="rans")
        assert row.bits_stored == pytest.approx(bits, rel=0.005)
        assert row.kl_relative is not None and row.kl_relative <= bound, (bits, trellis)
        assert row.kl_relative == row.kl / report.rows[0].kl
    assert report.row("int8").kl < 0.01 * report.rows[0].kl


def test_bits_are_those_of_the_file(model: Path, report: wcodec.FrontierReport) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tensors = Matrices(original).tensors()
    steps = {name: 0.5**0.5 for name in tensors if ".k_proj." in name or ".v_proj." in name}
    heads = original.config.num_key_value_heads / original.config.num_attention_heads
    options = {"bits": 4, "coder": "rans", "trellis": True, "steps": {name: heads**0.5 for name in steps}}
    data, _ = wcodec.compress_to_bytes(tensors, **options)
    (index,) = struct.unpack_from("<Q", data, 24)
    row = report.row("weights alone", 4, trellis=True)
    assert row.bits_stored == 8 * (len(data) - 64 - index) / report.weights
    assert row.bits_index == 8 * index / report.weights


def test_report_prints(report: wcodec.FrontierReport, plt: Any) -> None:
    table = report.table()
    assert table.splitlines()[0].split()[:2] == ["recipe", "coder"] and "weights alone, trellis" in table
    assert len(table.splitlines()) == len(report.rows) + 1 == len(report.csv().splitlines())
    assert "weights alone at 4.00 bits" in repr(report) and "<table>" in report._repr_html_()
    record = json.loads(json.dumps(report.to_dict()))
    assert record["rows"][0]["recipe"] == "NF4, blocks of 64" and record["text_hash"] == report.text_hash
    with pytest.raises(KeyError):
        report.row("weights alone", 2)
    ax = report.plot.kl()
    assert ax.get_yscale() == "log"
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines["weights alone"].get_xdata()) == sorted(
        row.bits_stored for row in report.rows if row.label == "weights alone"
    )
    assert lines["NF4, blocks of 64: 4.13 bits"].get_ydata()[0] == report.rows[0].kl
    with pytest.raises(wcodec.InputError, match="nothing was measured"):
        report.plot.kl(coder="huffman")


def test_command(model: Path, run: Cli, tmp_path: Path, plt: Any) -> None:
    steps = tmp_path / "p.png"
    options = ["--text", model / "heldout.txt", "--windows", 1, "--bits", "3", "--coder", "huffman"]
    status, out, _ = run("frontier", model, *options, "--plot", steps, "--json")
    found = document(out, "frontier")
    assert status == 0 and steps.read_bytes()[:4] == b"\x89PNG"
    assert [row["coder"] for row in found["rows"]] == [None, None, "huffman", "huffman", "huffman"]
    status, out, _ = run("frontier", model, *options, "--csv")
    assert status == 0 and out.splitlines()[0].startswith("recipe,kind,trellis,coder,bits_asked,bits_stored")
    status, _, err = run("frontier", model, *options, "--bits", "9")
    assert status == 2 and "from 1 to 8" in err
    status, _, err = run("frontier", tmp_path, *options)
    assert status == 2 and "config.json" in err


def test_coders_without_tiles_have_no_trellis(model: Path) -> None:
    found = wcodec.frontier(model, model / "heldout.txt", bits=4, coder="zstd", windows=1)
    assert [(row.kind, row.trellis) for row in found.rows[2:]] == [("int8", False), ("rate", False)]


def test_steps_of_a_calibration(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    class Known:
        def factors(self) -> dict[str, float]:
            return {"lm_head.weight": 2.0, "no.such.tensor": 1.0}

    report = wcodec.frontier(original, model / "heldout.txt", bits=3, coder="rans", windows=1, calibrate=Known())
    rows = [row for row in report.rows if row.kind == "rate"]
    assert [row.label for row in rows] == ["weights alone", "Fisher steps", "weights alone, trellis",
                                           "Fisher steps, trellis"]  # fmt: skip
    assert rows[0].kl != rows[1].kl and rows[1].bits_stored == pytest.approx(3, rel=0.005)


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    text = model / "heldout.txt"
    for refused, message in (
        (lambda: wcodec.frontier({"w": np.ones((8, 8))}, text), "no language model"),
        (lambda: wcodec.frontier(tmp_path, text), "no config.json"),
        (lambda: wcodec.frontier(model, [1, 2, 3]), "second half of the text"),
        (lambda: wcodec.frontier(model, text, bits="four"), "bits must be"),
        (lambda: wcodec.frontier(torch.nn.Identity(), [1, 2, 3]), "no linear layers|nothing to compress"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            refused()
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    with pytest.raises(wcodec.InputError, match="no causal language model"):
        wcodec.frontier(tmp_path, text)
