"""The options of encoding, in one table: what they are called, take and default to, and how the command spells them.

:func:`wcodec._core.options.encode_options` checks values by it, the command's parser is made of it, and tests compare
with it what a reader or a type checker wants to see written out: signatures, the typed dictionaries of
:mod:`wcodec._core.coding`, the native module's stub, and the page of the reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._native import encoding_facts

_FACTS = encoding_facts()
SCHEMES = tuple(_FACTS["schemes"])
SCALES = ("row", "tensor", "block")
CODERS = tuple(_FACTS["coders"])
TILED_CODERS = tuple(_FACTS["tiled_coders"])
"""Those that work in tiles, which a trellis needs."""
LAYOUTS = tuple(_FACTS["layouts"])
PURPOSES = ("speed", "size")
"""Purposes that bytes can be optimized for; the first is the default."""
PURPOSE_CODERS = _FACTS["purposes"]
"""The coder of each purpose, and whether the purpose uses a trellis if that coder supports one."""
LEAST_BITS, DEFAULT_BITS, MOST_BITS = _FACTS["bits"]
"""Bits per weight of scheme ``rate``: the fewest, those where none are given, and the most."""
DEFAULT_BLOCK = _FACTS["block"]
DEFAULT_LEVEL = _FACTS["level"]

_PATTERNS, _COUNT = "str | Iterable[str]", "int | None"


class Option(NamedTuple):
    """An option of encoding."""

    name: str
    """The keyword in Python; the command's option has dashes."""
    annotation: str
    """Its type, as signatures and typed dictionaries write it."""
    default: Any
    kind: str
    """The form of its values: ``choice`` of :attr:`choices`, ``count``, ``number``, ``switch``, ``patterns``, or a name
    of its own, which :mod:`wcodec._core.options` and :mod:`wcodec._cli.encoding` know."""
    group: str
    """The typed dictionary that has it, or ``signature`` where functions name it themselves."""
    native: str | None = None
    """Its type in the dictionary that the native module takes; ``None`` for what only several options give together."""
    choices: tuple[str, ...] = ()
    limit: int = 2**63
    """Counts are below it."""
    help: str | None = None
    """The text of the command's option; ``None`` if ``wcodec encode`` has none."""
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """The command's option."""
        return f"--{self.name.replace('_', '-')}"


_TABLE = (
    Option("scheme", "str | None", None, "choice", "signature", choices=SCHEMES,
           help="int8; rate, with any number of --bits; lossless, exact bfloat16 in two thirds of its size; raw, "
                "every tensor as it is (default: int8, or rate with --bits)"),
    Option("bits", "float | None", None, "bits", "signature", metavar="B",
           help=f"bits per weight, {LEAST_BITS:g} to {MOST_BITS:g}; scales and tables count (default: scheme int8; "
                f"{DEFAULT_BITS:g} with --scheme rate)"),
    Option("trellis", "bool | None", None, "either", "signature",
           help="choose levels of scheme rate by a trellis: better at the same bits, a little slower to encode and "
                "to decode (default: no, but with --optimize size)"),
    Option("rules", "Rules | None", None, "rules", "signature", native="list[tuple[str, _Way]]"),
    Option("optimize", "str", PURPOSES[0], "choice", "signature", native="str", choices=PURPOSES,
           help="speed: the form that GPUs multiply fastest with. size: some percent smaller at the same quality. "
                "It chooses --coder, --layout, --table-bits and --trellis where these are not given (default: "
                f"{PURPOSES[0]})"),
    Option("coder", "str | None", None, "choice", "signature", choices=CODERS,
           help="entropy coder (default: by --optimize)"),
    Option("include", _PATTERNS, (), "patterns", "signature", native="list[str]",
           help="quantize only tensors that match (may be repeated; the others are stored as they are)"),
    Option("exclude", _PATTERNS, (), "patterns", "signature", native="list[str]",
           help="store matching tensors as they are (may be repeated)"),
    Option("overwrite", "bool", False, "switch", "signature", native="bool", help="replace OUT if it exists"),
    Option("metadata", "Mapping[str, str] | None", None, "metadata", "signature", native="dict[str, str]"),
    Option("layout", "str | None", None, "choice", "StorageOptions", native="str | None", choices=LAYOUTS,
           help="layout of the symbols; quad, with huffman, is the fastest on a GPU (default: quad with huffman, or "
                "else pair)"),
    Option("level", "int", DEFAULT_LEVEL, "level", "StorageOptions", native="int", metavar="N",
           help=f"level of coder zstd, 1 to 19 (default: {DEFAULT_LEVEL})"),
    Option("tile", _COUNT, None, "count", "StorageOptions", native="int | None", metavar="N",
           help="columns of a tile, a multiple of 64 (default: by shape)"),
    Option("table_bits", _COUNT, None, "count", "StorageOptions", native="int | None", limit=2**32, metavar="P",
           help="log2 of the slots of tables: 11 or 12, with coder huffman 8 to 12 (default: by --optimize)"),
    Option("threads", _COUNT, None, "count", "StorageOptions", native="int | None", metavar="N",
           help="threads to use (default: all cores)"),
    Option("scale", "str", SCALES[0], "choice", "CodingOptions", choices=SCALES,
           help=f"the weights that share a scale (default: {SCALES[0]})"),
    Option("block", _COUNT, None, "count", "CodingOptions", metavar="N",
           help=f"block size with --scale block, a multiple of 16 (default: {DEFAULT_BLOCK})"),
    Option("bits_per_tensor", "bool", False, "switch", "CodingOptions", native="bool",
           help="give --bits to every tensor by itself"),
    Option("steps", "Mapping[str, float] | None", None, "steps", "CodingOptions", native="dict[str, float]"),
    Option("skip", _PATTERNS, (), "patterns", "FileOptions", native="list[str]",
           help="leave matching tensors out (may be repeated)"),
    Option("transpose", _PATTERNS, (), "patterns", "FileOptions", native="list[str]",
           help="matching matrices are stored [in, out], as GPT-2's Conv1D: scales go along the other axis"),
    Option("step", "float | None", None, "number", "FileOptions", native="float | None"),
    Option("columns", "Mapping[str, ArrayLike] | None", None, "columns", "FileOptions",
           native="dict[str, npt.NDArray[np.float32]]"),
    Option("frame", _COUNT, None, "count", "FileOptions", native="int | None"),
)  # fmt: skip
OPTIONS = {option.name: option for option in _TABLE}
"""All of them, by name."""
RULE_KEYS = ("scheme", "scale", "block", "bits", "trellis", "coder")
"""Options that a rule can have for the tensors that it is for: together they are a way to encode."""
