"""The libraries that take part, their variants, and the packages that each needs. The one place to change a version."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import Any

# The name of the model in the repository, where a setting names models or shapes.
EMBEDDED = "embedded"


class UnknownPeer(ValueError):
    """A name that is in no list."""


def package(requirement: str) -> str:
    """The name in a requirement.

    >>> package("hqq==0.2.8"), package("cupy-cuda13x>=13"), package("humming-kernels[cu13]==0.1.19")
    ('hqq', 'cupy-cuda13x', 'humming-kernels')
    """
    return re.split(r"[=<>!~ \[]", requirement, maxsplit=1)[0]


@dataclass(frozen=True)
class Variant:
    """A way to store the linear layers of a model: a row of the table."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    needs_gpu: bool = False
    no_quality: str | None = None
    """Why quality is not measured: it is another row's."""
    no_speed: str | None = None
    """Why there are no speeds."""
    slow: bool = False
    """Each token takes so long that only the first batch is measured."""
    given: str = ""
    """Knowledge beside the weights: nothing, the mean squares of inputs by column (``columns``), or second moments
    of a text (``text``)."""
    curve: str = ""
    """Rows of one curve in the chart of quality on a real model. Those without one are not measured there."""


@dataclass(frozen=True)
class Peer:
    """A library, in an environment of its own."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    requirements: tuple[str, ...] = ()
    """Packages that pip installs beside torch, transformers and wcodec, which all peers share."""
    gpu_requirements: tuple[str, ...] = ()
    """Packages that it needs in addition on a GPU; ``{cuda}`` is the major version of torch's CUDA."""
    no_build_isolation: bool = False
    """Its build looks at the torch that is there."""
    no_dependencies: bool = False
    """Nothing that it asks for is needed here."""
    ours: bool = False
    note: str = ""

    @property
    def packages(self) -> tuple[str, ...]:
        """Names of what is pinned, for the versions in the report."""
        return tuple(map(package, (*self.requirements, *self.gpu_requirements)))

    def needs(self, cuda: str | None) -> list[str]:
        """The requirements for pip, on a GPU of that version of CUDA or, without one, on a CPU."""
        gpu = () if cuda is None else self.gpu_requirements
        return [r.format(cuda=(cuda or "").partition(".")[0]) for r in (*self.requirements, *gpu)]


# Encoded for size, as all was when docs/peers.md was measured. Coder huffman on the device, which products straight
# from compressed weights are faster with; rans elsewhere.
_FUSED = {"optimize": "size", "coder": "huffman", "fuse": True}
_HOST = {"optimize": "size", "residency": "host"}
_SAME = "the same weights as on the device"

WCODEC = (
    Variant("int8", "wcodec int8", _FUSED, curve="wcodec int8"),
    Variant("4.0", "wcodec 4.0 bits", {"bits": 4.0, **_FUSED}),
    Variant("3.5", "wcodec 3.5 bits", {"bits": 3.5, **_FUSED}),
    Variant("3.0", "wcodec 3.0 bits", {"bits": 3.0, **_FUSED}),
    Variant("4.0-plain", "wcodec 4.0 bits, no trellis", {"bits": 4.0, "trellis": False, "table_bits": 11, **_FUSED}),
    Variant("lossless", "wcodec lossless", {"scheme": "lossless", "coder": "huffman"}),
    Variant("int8-host", "wcodec int8, host", _HOST, True, _SAME),
    Variant("4.0-host", "wcodec 4.0 bits, host", {"bits": 4.0, **_HOST}, True, _SAME),
    Variant("3.5-host", "wcodec 3.5 bits, host", {"bits": 3.5, **_HOST}, True, _SAME),
    Variant("3.0-host", "wcodec 3.0 bits, host", {"bits": 3.0, **_HOST}, True, _SAME),
    Variant("lossless-host", "wcodec lossless, host", {"scheme": "lossless", **_HOST}, True, _SAME),
    Variant(
        "4.0-calibrated",
        "wcodec 4.0 bits, calibrated",
        {"optimize": "size", "bits": 4.0, "calibrate": "self"},
        no_speed="it runs as any other of 4.0 bits",
    ),
)

_QUALITY = "it is there for its quality"
_STORED = "stores and gives back, and multiplies nothing on a CPU"
_LOSSLESS = "it loses nothing"


def _known(name: str, label: str, curve: str, options: dict[str, Any], given: str = "") -> Variant:
    """A row for the quality per bit."""
    name = f"{name}-{given}" if given else name
    return Variant(name, label, {**options, "given": given}, no_speed=_QUALITY, given=given, curve=curve)


def _rates() -> tuple[Variant, ...]:
    """wcodec by what it knows, as by default and with everything that makes it smaller."""
    out = []
    for bits in (4.5, 4.0, 3.5, 3.0, 2.5):
        for given in ("", "columns", "text"):
            plain, small = f"wcodec {bits} bits", f"wcodec {bits} bits, trellis"
            out.append(_known(f"rate-{bits}", plain, "wcodec", {"bits": bits}, given))
            options = {"bits": bits, "trellis": True, "coder": "rans"}
            out.append(_known(f"trellis-{bits}", small, "wcodec, trellis and rans", options, given))
    return tuple(out)


def _ggml(types: tuple[str, ...], label: str, curve: str, needing: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """Types of a library of ggml, with and without an importance matrix, which some need."""
    return tuple(
        _known(name, label.format(name), curve, {"type": name}, given)
        for name in types
        for given in ("", "columns")
        if given or name not in needing
    )


GGUF_TYPES = (
    "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S",
    "IQ2_XS", "IQ2_XXS",
)  # fmt: skip

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("bf16", "bfloat16 as it is", (Variant("bf16", "bf16"),)),
        Peer("wcodec", "wcodec", (*WCODEC, *_rates()), ours=True),
        Peer(
            "bitsandbytes",
            "bitsandbytes",
            (
                Variant("int8", "bitsandbytes int8", {"bits": 8, "threshold": 6.0}, curve="bitsandbytes int8"),
                Variant("int8-0", "bitsandbytes int8, threshold 0", {"bits": 8, "threshold": 0.0}),
                Variant("nf4", "bitsandbytes NF4", {"bits": 4}, curve="NF4"),
            ),
            ("bitsandbytes==0.50.2",),
            note="NF4 in blocks of 64, scales quantized again (the library's default); int8 with the threshold of "
            "transformers' default, and with 0, where no column of activations is treated apart",
        ),
        Peer(
            "torchao",
            "torchao",
            (
                Variant("int8", "torchao int8", {"bits": 8}, curve="torchao"),
                Variant("int4-64", "torchao int4, groups of 64", {"bits": 4, "group": 64}, curve="torchao"),
                Variant("int4-128", "torchao int4, groups of 128", {"bits": 4, "group": 128}),
            ),
            ("torchao==0.18.0",),
            note="weight-only; int4 for torch's own kernels (tile_packed_to_4d on a GPU, the opaque tensor of its "
            "prototypes on a CPU)",
        ),
        Peer(
            "hqq",
            "HQQ",
            (
                Variant("int4-64", "HQQ int4, groups of 64", {"group": 64}, curve="HQQ"),
                _known("int3-64", "HQQ int3, groups of 64", "HQQ", {"bits": 3, "group": 64}),
                _known("int2-64", "HQQ int2, groups of 64", "HQQ", {"bits": 2, "group": 64}),
                Variant("int4-64-tinygemm", "HQQ int4, torch's kernel", {"group": 64, "backend": "torchao_int4"}, True),
                Variant("int4-64-gemlite", "HQQ int4, gemlite", {"group": 64, "backend": "gemlite"}, True, _SAME),
            ),
            ("hqq==0.2.8.post1", "termcolor==3.3.0", "einops==0.8.2"),
            ("gemlite==0.6.0.post2",),
        ),
        Peer(
            "accelerate",
            "accelerate",
            (Variant("offload", "accelerate cpu_offload", {}, True, "bf16's own weights", slow=True),),
            ("accelerate>=1.0",),
        ),
        Peer(
            "quanto",
            "Quanto",
            (
                _known("int4", "Quanto int4", "Quanto", {"bits": 4}),
                _known("int2", "Quanto int2", "Quanto", {"bits": 2}),
            ),
            ("optimum-quanto==0.2.7", "ninja==1.13.0"),
        ),
        Peer(
            "sinq",
            "SINQ",
            (
                _known("int4-64", "SINQ int4, groups of 64", "SINQ", {"bits": 4, "group": 64}),
                _known("int3-64", "SINQ int3, groups of 64", "SINQ", {"bits": 3, "group": 64}),
            ),
            ("sinq==0.2.0", "termcolor==3.3.0"),
            no_dependencies=True,
            note="scales of rows and columns, from weights alone; scales and zeros are quantized again (its default)",
        ),
        Peer(
            "gptq",
            "GPTQModel",
            (
                Variant("int4-64", "GPTQ int4, groups of 64", {"bits": 4, "group": 64}, given="text", curve="GPTQ"),
                _known("int3-64", "GPTQ int3, groups of 64", "GPTQ", {"bits": 3, "group": 64}, "text"),
            ),
            ("gptqmodel==7.7.0",),
            no_build_isolation=True,
            note="calibrated on the text of documentation that importance matrices are of",
        ),
        Peer(
            "exl3",
            "EXL3",
            tuple(
                replace(_known(f"{bits}", f"EXL3 {bits} bits", "EXL3", {"bits": bits}, "text"), needs_gpu=True)
                for bits in (4.0, 3.0, 2.5)
            ),
            ("exllamav3==1.6.5", "ninja==1.13.0"),
            no_dependencies=True,
            note="by exllamav3's own quantizer, which nvcc compiles; it pads sides to multiples of 128, which counts",
        ),
        Peer(
            "gguf",
            "GGUF",
            _ggml(GGUF_TYPES, "GGUF {}", "GGUF", ("IQ2_XXS", "IQ2_XS")),
            ("gguf==0.19.0", "xllamacpp==2026.10.11549"),
            note="by llama.cpp's own functions, in the library that xllamacpp has",
        ),
        Peer(
            "ik",
            "ik_llama.cpp",
            _ggml(("IQ4_KT", "IQ3_KT", "IQ2_KT"), "ik_llama.cpp {}", "ik_llama.cpp KT"),
            ("ik-llama-cpp-python==0.1.5",),
            no_dependencies=True,
            note="types with a trellis",
        ),
        Peer(
            "dfloat11",
            "DFloat11",
            (Variant("bf16", "DFloat11", {}, no_quality=_LOSSLESS),),
            ("dfloat11==0.5.0", "dahuffman==0.4.2", "setuptools==80.10.2"),
            ("cupy-cuda{cuda}x>=13",),
            note="its encoder is a loop in Python, of many minutes for a billion weights: for speeds one block is "
            "encoded and all blocks hold it, and lm_head stays in 16 bits",
        ),
        Peer(
            "glyd",
            "Glyd",
            (Variant("max", "Glyd, as bytes", {"level": "max"}, no_quality=_LOSSLESS, no_speed=_STORED),),
            ("glyd==0.32.1",),
            note="the codec of bytes, each matrix by itself; the part for GPUs comes as binaries under a licence "
            "for non-commercial use, and is not measured here",
        ),
    )
}

DECODING = "nvcomp"
"""Decoding alone, beside nvCOMP: the benchmark in Rust, not a model."""

MATRICES = "matrices"
"""Products of one matrix, beside kernels for weights of fixed width: engines of their own, not models."""

NAMES = (*PEERS, DECODING, MATRICES)


def chosen(names: list[str] | None) -> list[str]:
    """The peers that were named, in the table's order; all without names.

    >>> chosen(["hqq", "bf16"])
    ['bf16', 'hqq']
    """
    if names is None:
        return list(NAMES)
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
            raise UnknownPeer(f"there is no peer {name!r} ({hint})")
    return [name for name in NAMES if name in names]
