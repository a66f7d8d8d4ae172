"""pyext/benches/peers, EXL3: calibration block after block, padding, what is counted. exllamav3 itself needs a GPU."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from peers import catalogue, command  # noqa: E402
from peers.adapters import exl3  # noqa: E402


def model() -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


class Library:
    """In the place of exllamav3's quantizer: notes what it is given, and stores weights that are a quarter less."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Any], dict[str, Any], list[dict[str, Any]]]] = []

    def quantize_exl3_batch(self, weights: list[Any], known: list[Any], arguments: list[dict[str, Any]]) -> list[Any]:
        assert all(k is known[0] for k in known)
        self.calls.append((weights, known[0], arguments))
        return [(0.0, self.stored(w, a["K"])) for w, a in zip(weights, arguments, strict=True)]

    def quantize_exl3(self, weight: Any, known: Any, argument: dict[str, Any], wanted: bool) -> Any:
        assert not wanted
        self.calls.append(([weight], known, [argument]))
        return None, 0.0, self.stored(weight, argument["K"])

    @staticmethod
    def stored(weight: Any, bits: float) -> dict[str, Any]:
        rows, columns = weight.shape
        half, words = torch.float16, int(16 * bits)
        return {
            "suh": torch.ones(rows, dtype=half), "svh": torch.ones(columns, dtype=half),
            "trellis": torch.zeros(rows // 16, columns // 16, words, dtype=torch.int16), "weight": 0.75 * weight,
        }  # fmt: skip


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes what Library stores: the operator has the tensors but no kernel."""
    real = exl3.Stored.decoded

    def decoded(self: exl3.Stored) -> Any:
        def operator(out: Any, trellis: Any, suh: Any, svh: Any, bits: float, mcg: bool, mul1: bool, at: int) -> None:
            assert trellis.shape == (len(suh) // 16, len(svh) // 16, 16 * bits) and (mcg, mul1, at) == (False, True, 0)
            out.copy_(self.tensors["weight"])

        monkeypatch.setattr(torch.ops, "exl3", SimpleNamespace(reconstruct_had_slice=operator), raising=False)
        return real(self)

    monkeypatch.setattr(exl3.Stored, "decoded", decoded)


def test_layers_that_share_an_input_are_quantized_together(decoder: None) -> None:
    original, library = model(), Library()
    changed, ids = copy.deepcopy(original), torch.arange(40).view(2, 20)
    found = exl3.quantized(library, changed, 3.0, ids)
    assert [len(weights) for weights, _, _ in library.calls] == [3, 1, 2, 1] * 2
    assert list(found)[:4] == [f"0.self_attn.{name}_proj" for name in "qkvo"]
    for name, stored in found.items():
        weight = original.get_decoder().layers.get_submodule(name).weight
        # float16 is what the decoder gives.
        torch.testing.assert_close(stored.decoded(), 0.75 * weight, rtol=1e-3, atol=1e-6)
        assert torch.equal(changed.get_decoder().layers.get_submodule(name).weight, stored.decoded())
    for weights, known, arguments in library.calls:
        assert all(w.shape[0] == len(known["H"]) and w.shape[1] % 128 == 0 for w in weights)
        assert known["count"] == 40 and all(a["mul1"] and a["K"] == 3 and isinstance(a["K"], int) for a in arguments)
    seeds = [arguments[0]["seed"] for _, _, arguments in library.calls]
    assert seeds == [0] * 4 + [1] * 4


def test_a_block_is_calibrated_with_what_quantized_ones_return(decoder: None) -> None:
    original, library = model(), Library()
    changed, ids = copy.deepcopy(original), torch.arange(40).view(2, 20)
    exl3.quantized(library, changed, 2.5, ids)
    # q, k and v of the second block see the first one's output after its norm, padded with zeros.
    x = changed.model(ids, output_hidden_states=True, use_cache=False).hidden_states[1]
    x = changed.model.layers[1].input_layernorm(x).flatten(0, 1)
    sums = library.calls[4][1]["H"]
    torch.testing.assert_close(sums[:96, :96], x.T @ x)
    assert sums.shape == (128, 128) and not sums[96:].any() and not sums[:, 96:].any()
    assert library.calls[0][2][0]["K"] == 2.5


def test_scales_of_outputs_are_chosen_by_what_errors_there_do() -> None:
    torch.manual_seed(2)
    gate, up, down = (torch.randn(5, 7, requires_grad=True) for _ in range(3))
    of_gate, of_up = exl3.sensitivity(gate, up, down.detach())
    # By gradients, one output of the block at a time, it is the same.
    by_hand = [torch.zeros(7), torch.zeros(7)]
    y = (torch.nn.functional.silu(gate) * up) @ down.T
    for token in range(5):
        for output in range(5):
            parts = torch.autograd.grad(y[token, output], [gate, up], retain_graph=True)
            for total, part in zip(by_hand, parts, strict=True):
                total += part[token].square() / 5
    torch.testing.assert_close(of_gate, by_hand[0])
    torch.testing.assert_close(of_up, by_hand[1])


def test_gate_and_up_are_told_how_much_they_matter(decoder: None) -> None:
    library = Library()
    exl3.quantized(library, model(), 3.0, torch.arange(20)[None])
    told = [["out_sensitivity" in a for a in arguments] for _, _, arguments in library.calls]
    assert told == [[False] * 3, [False], [True] * 2, [False]] * 2


def test_padding_and_scales_are_counted() -> None:
    assert [exl3.padded(width) for width in (1, 128, 576, 1536)] == [128, 128, 640, 1536]
    weight = torch.zeros(640, 1536)
    stored = exl3.Stored(Library.stored(weight, 3.0), 3.0, (1536, 576))
    del stored.tensors["weight"]
    assert stored.stored_bytes == 640 * 1536 * 3 // 8 + 2 * (640 + 1536)
    assert stored.unpadded_bits == 576 * 1536 * 3 + 16 * (576 + 1536)


def test_without_a_gpu_its_rows_say_so(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    arguments = ["--device", "cpu", "--only", "exl3", "--model", "embedded", "--environments", str(tmp_path / "e")]
    command.main([*arguments, "--json", str(tmp_path / "x.json"), "--table", str(table)])
    assert "Rows that need a GPU are not here: EXL3 4.0 bits, EXL3 3.0 bits, EXL3 2.5 bits." in table.read_text("utf-8")
    assert not (tmp_path / "e").exists()
    assert {v.options["bits"] for v in catalogue.PEERS["exl3"].variants} == {4.0, 3.0, 2.5}
