"""Folders of compressed models as earlier versions wrote them: what is not compressed is in `model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path

import wcodec
from safetensors.torch import save_file
from wcodec import _native
from wcodec._core.paths import output

# A small Llama of 4 bits, written by `wcodec encode` of commit bea0d06, and what it answered at the last of 12 tokens.
RELEASED = Path(__file__).parents[1] / "released/folder"
LOGITS = (-0.061821311712265015, 0.011180061846971512, -0.060805581510066986, -0.0005438572843559086)


def split(folder: Path, said: bool = True) -> Path:
    """Makes a folder of today one of then.

    :param said: whether its container says that it is a part, which the first ones did not.
    """
    path = folder / "model.wcodec"
    with wcodec.open(path) as container:
        entries = {name: container[name] for name in container}
        rest = [name for name, entry in entries.items() if entry.coder == "raw" and not entry.makes_symbols]
        save_file({name: entries[name].torch() for name in rest}, folder / "model.safetensors", {"format": "pt"})
        with output(path, overwrite=True) as out:
            kept = [name for name in entries if name not in rest]
            said_so = {_native.REST_KEY: "model.safetensors"} if said else {}
            out.write_extract([(container._open, kept)], said_so)
            out.finish()
    config = folder / "config.json"
    record = json.loads(config.read_text())
    del record["transformers_weights"]
    config.write_text(json.dumps(record))
    return folder
