"""The table of encode options beside all that has them written out: signatures, types, the stub, Rust, the command and
the reference. Adding an option is a row of the table; these tests name what else has to have it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._cli.encoding import given_options
from wcodec._cli.parser import build_parser
from wcodec._cli.parsing import commands
from wcodec._core import coding, keywords
from wcodec._core.option_table import OPTIONS, RULE_KEYS, Option
from wcodec._core.options import encode_options

ROOT = Path(__file__).parents[2]
PACKAGE = Path(wcodec.__file__).parent
# Options of calibration and of models beside those of encoding.
BESIDE = {"CodingOptions": {"calibration_tokens", "feedback"}, "FileOptions": {"device", "trust_remote_code"}}
# It replaces files unless it is told otherwise, as the function of that name of safetensors.
OWN_DEFAULTS = {("save_file", "overwrite"): True}


def native_types() -> dict[str, str]:
    """The types of the dictionary that the native module takes."""
    own = {"way": "_Way", "coder_of_few": "str | None"}
    return {**own, **{name: o.native for name, o in OPTIONS.items() if o.native is not None}}


def in_source(path: Path, name: str) -> dict[str, str]:
    """The fields of a class, and their types as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    fields = (node for node in found.body if isinstance(node, ast.AnnAssign))
    return {ast.unparse(node.target): ast.unparse(node.annotation) for node in fields}


def of_group(group: str) -> dict[str, Option]:
    return {name: option for name, option in OPTIONS.items() if option.group == group}


@pytest.mark.parametrize("group", ["StorageOptions", "CodingOptions", "FileOptions"])
def test_typed_dictionaries_have_their_options(group: str) -> None:
    written = in_source(PACKAGE / "_core/coding.py", group)
    beside = BESIDE.get(group, set())
    assert beside <= set(written)
    assert {name: kind for name, kind in written.items() if name not in beside} == {
        name: option.annotation for name, option in of_group(group).items()
    }


def test_rules_have_a_type_for_each_key() -> None:
    assert set(coding.Rule.__optional_keys__) == set(RULE_KEYS)


@pytest.mark.parametrize(
    "name", ["compress", "compress_to_bytes", "save_file", "compress_", "load_model", "plan", "ranks", "WCodecConfig"]
)
def test_signatures_say_what_the_table_does(name: str) -> None:
    if name in ("compress_", "load_model", "plan", "ranks", "WCodecConfig"):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    parameters = inspect.signature(getattr(wcodec, name)).parameters
    shared = [parameters[option] for option in OPTIONS if option in parameters]
    assert len(shared) >= 4
    for parameter in shared:
        option = OPTIONS[parameter.name]
        assert parameter.default == OWN_DEFAULTS.get((name, option.name), option.default), (name, option.name)
        assert parameter.annotation == option.annotation, (name, option.name)


@pytest.mark.parametrize(
    ("name", "lacks"), [("compress", set()), ("save_file", set()), ("compress_to_bytes", {"overwrite"})]
)
def test_functions_on_files_take_every_option(name: str, lacks: set[str]) -> None:
    function = getattr(wcodec, name)
    assert OPTIONS.keys() - keywords._KNOWN[function] == lacks
    named = set(inspect.signature(function).parameters)
    assert {option for option in of_group("signature") if option not in named} == lacks


def test_the_native_module_takes_what_the_table_gives() -> None:
    assert in_source(PACKAGE / "_native.pyi", "_EncodeOptions") == native_types()
    assert in_source(PACKAGE / "_native.pyi", "_Way").keys() == set(RULE_KEYS)
    rust = (ROOT / "pyext/src/options.rs").read_text(encoding="utf-8")
    for structure, keys in (("Encode", native_types().keys()), ("Way", set(RULE_KEYS))):
        (body,) = re.findall(rf"pub struct {structure} {{(.*?)\n}}", rust, re.S)
        assert set(re.findall(r"^\s+(\w+):", body, re.M)) == set(keys), structure
    assert encode_options().keys() == native_types().keys()


def test_the_command_has_the_options_that_have_a_text() -> None:
    encode = commands(build_parser())["encode"]
    actions = {action.dest: action for action in encode._actions}
    for name, option in OPTIONS.items():
        if option.help is None:
            assert name not in actions, name
            continue
        assert option.flag in actions[name].option_strings
        assert actions[name].help == option.help
        assert tuple(actions[name].choices or ()) == option.choices


def test_the_command_hands_on_what_was_given() -> None:
    parsed = build_parser().parse_args(
        ["encode", "a", "b", "--tile", "128", "--no-trellis", "--skip", "x*", "--rule", "y*=lossless,huffman"]
    )
    options = given_options(parsed)
    told = {"tile": 128, "trellis": False, "skip": ["x*"], "rules": {"y*": {"scheme": "lossless", "coder": "huffman"}}}
    assert {name: options[name] for name in told} == told
    left = {name: value for name, value in options.items() if name not in told and value not in ([], ())}
    assert left == {name: OPTIONS[name].default for name in left}
    assert options.keys() == {name for name, option in OPTIONS.items() if option.help} | {"rules"}


def test_the_reference_lists_every_option() -> None:
    page = (ROOT / "docs/api/files.md").read_text(encoding="utf-8")
    for group in ("CodingOptions", "FileOptions"):
        (listed,) = re.findall(rf"autoclass:: wcodec\.{group}\(\)\n\s+:members: (.*)", page)
        wanted = {*of_group(group), *(of_group("StorageOptions") if group == "CodingOptions" else ())}
        assert wanted <= set(listed.split(", ")), group


# A value of each option that is not its default, and changes what encoding is told.
OTHERS: dict[str, Any] = {
    "scheme": "lossless", "bits": 5.0, "trellis": True, "rules": {"*": "raw"}, "optimize": "size", "coder": "rans",
    "include": ["a*"], "exclude": ["b*"], "overwrite": True, "metadata": {"a": "b"}, "layout": "pair", "level": 7,
    "tile": 64, "table_bits": 11, "threads": 2, "scale": "block", "block": 64, "bits_per_tensor": True,
    "steps": {"w": 2.0}, "skip": ["c*"], "transpose": ["d*"], "step": 0.5, "columns": {"w": [1.0, 2.0]},
    "frame": 4096,
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {"block": {"scale": "block"}}


def test_every_option_reaches_the_native_module() -> None:
    assert OTHERS.keys() == OPTIONS.keys()
    for name, value in OTHERS.items():
        assert encode_options(**{name: value}, **NEEDED.get(name, {})) != encode_options(**NEEDED.get(name, {})), name
    with pytest.raises(TypeError, match="no option blok"):
        encode_options(blok=1)


@pytest.mark.parametrize("name", ["compress", "compress_to_bytes", "save_file"])
def test_every_option_is_handed_on(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from wcodec._api import files

    class SeenError(Exception):
        """Options have arrived where encoding begins."""

    def seen(src: Any, options: dict[str, Any], progress: Any = False) -> Any:
        raise SeenError(options)

    monkeypatch.setattr(files, "encoding_of", seen)
    target = () if name == "compress_to_bytes" else (tmp_path / "a.wcodec",)
    for option, value in OTHERS.items():
        if (name, option) == ("compress_to_bytes", "overwrite"):
            continue
        with pytest.raises(SeenError) as arrived:
            getattr(wcodec, name)({"w": np.ones((16, 64), np.float32)}, *target, progress=False, **{option: value})
        assert arrived.value.args[0][option] == value, option
