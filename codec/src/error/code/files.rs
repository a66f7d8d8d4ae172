//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) about outputs, sources and paths.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Files, folders and paths", Input;

    I000 INPUT: "arguments or data that are not what was asked for",
        "The message says which, and what to give instead.",
        "Change them as the message says.";

    I101 FOLDER_OR_FILE: "an output that does not go with its source",
        "A folder (`OUT/`) can be made from the folder of a model, a GGUF file or a name on the Hub. A single file \
        can be made from local files only.",
        "Name another output: one that ends with `/` is a folder, `.wcodec` a file; or leave out what belongs to the \
        Hub.";

    I102 NOT_REPLACED: "an output that is not replaced",
        "Something else is there than such an output: a link, a pipe, a device, or a file or folder of another kind. \
        `--overwrite` replaces its own kind only.",
        "For a link, name the file that it points to; otherwise choose another name.";

    I103 OUTPUT_IS_READ: "an output that would destroy what is read",
        "The output is a file that is read, or holds it, perhaps through a link.",
        "Choose another name.";

    I104 OUTPUT_HOLDS_MORE: "a folder with something else in it",
        "A folder, a link or something else is in the model's folder that is to be replaced, and would be lost. \
        Files stay there, whatever they are.",
        "Move it elsewhere, or choose another name.";

    I105 WORKING_FOLDER: "an output that is the working folder",
        "The shell would be left in a folder that is gone.",
        "Run the command elsewhere, or give the name of a new folder.";

    I106 WRITTEN_MEANWHILE: "a folder that another program wrote to",
        "The model was replaced, and something appeared in the folder in that moment.",
        "Fetch it from the place that the message names.";

    I107 OUTPUT_IS_FOLDER: "an output that is a folder",
        "The output is one file.",
        "Name a file in that folder.";

    I108 OUTPUT_ENDING: "an ending that means another kind of file",
        "The name would say that the file is something else, or matplotlib knows no picture of that ending.",
        "End it in `.wcodec`, `.safetensors`, `.json` or `.png` as the message says.";

    I109 RESERVED_NAME: "a tensor's name that `.safetensors` keeps for itself",
        "A tensor is called `__metadata__`, which `.safetensors` cannot have.",
        "Encode without it (`--skip`).";

    I201 SEVERAL_SOURCES: "several files of which one is meant",
        "The folder or repository has several `.wcodec`, `.gguf` or `.safetensors` files or indexes, and nothing \
        says which.",
        "Name one of them, or put the index of the shards beside them.";

    I202 OTHER_WEIGHTS: "weights of two forms in one folder",
        "transformers looks for weights in torch's form of this folder, and not for the `.safetensors` file of \
        another name. They may differ.",
        "Name the file, rename it to `model.safetensors`, or move the other away.";

    I203 COMPRESSED_SOURCE: "a source that is compressed already",
        "The folder or repository was written by wcodec, and is no source to encode.",
        "Name the original checkpoint, or `wcodec decode` the container first. If the file was replaced by a whole \
        model, take `quantization_config` out of `config.json`.";

    I204 OTHER_FORM: "weights in another form than `.safetensors`",
        "The folder has torch's `.bin` files, ONNX, TensorFlow, Flax, a distributed checkpoint or another runtime's \
        form, or no weights.",
        "Take the repository with `.safetensors` files, or let transformers convert: `from_pretrained(folder)`, \
        `save_pretrained(new)`. A `.gguf` file is named itself.";

    I205 NO_MODEL_THERE: "a folder without a model",
        "The folder is empty, or has a tokenizer alone: it is the wrong one, or a download failed.",
        "Name the folder of a model.";

    I206 NOT_OF_TRANSFORMERS: "a model of another library",
        "The folder is of diffusers, timm or the model's authors. Models are those of transformers; tensors of any \
        kind can be stored.",
        "Take the model in the form of transformers, or name the `.safetensors` file and an output that ends with \
        `.wcodec`.";

    I207 IN_A_SUBFOLDER: "a model in a subfolder",
        "The folder is of sentence-transformers or a training, with the model or several in subfolders.",
        "Name the subfolder.";

    I208 ADAPTER: "an adapter instead of a model",
        "The folder has an adapter of peft alone.",
        "`wcodec.load_model` the model that it is of, then `PeftModel.from_pretrained(model, folder)`; or merge both \
        with `merge_and_unload()`, and save that.";

    I209 ADAPTER_BESIDE: "an adapter beside the model",
        "transformers applies the adapter of a model's folder, and a single `.wcodec` file has no place for it.",
        "Write a folder (`-o OUT/`), which keeps it; merge both and save that; or name the `.safetensors` file.";

    I210 SUBFOLDER: "a subfolder outside of the repository",
        "`subfolder` is absolute, or leads out of the repository.",
        "Name a folder in it.";

    I211 NOT_TRUSTED: "more memory than is given to a file that is not trusted",
        "The index is very large, or a tensor becomes more than 64 MiB and 1,024 times its stored bytes. Tensors of \
        nothing but zeros are like that, and files made to fill your memory.",
        "If you know the file's origin: `trusted=True`, `--trust`. Otherwise decode it to a file (`wcodec decode`), \
        which takes little memory, and `wcodec verify` it.";

    I212 NOT_A_TEXT_FILE: "a path that is no such file",
        "A folder, a pipe or a device is named instead of a file. Or the file is larger than any config, index or \
        file of keys.",
        "Check the path.";

    I213 NO_TENSORS: "nothing to encode",
        "The source has no tensors, or `skip` leaves none.",
        "Name another source, or skip fewer.";

    I214 REPOSITORY_NAME: "a name that no repository has",
        "`wcodec push` wants `owner/name`.",
        "Change the name.";

    I215 NOT_FOR_THE_HUB: "a folder that is not uploaded",
        "`wcodec push` uploads folders of compressed models, which load right or not at all. This one has no \
        container, or weights that other programs would take for the whole model.",
        "Encode the model to a folder, and name that; move other weights away; load and save folders of earlier \
        versions again.";

    I216 GGUF_VALUES: "weights of a GGUF file that cannot be had so",
        "A program asked for a dtype, a range or a part of a block that is not there.",
        "Ask for whole rows, in F32, F16 or BF16.";

    I217 CONTAINERS_TO_JOIN: "containers that cannot be joined",
        "`join_to` of the crate was given none, or a tensor twice.",
        "Name each tensor once.";

    I218 BAD_PATH: "a path that is none",
        "Paths of bytes, numbers or open files are not taken, nor those with surrogates that stand for no byte.",
        "Give the file's name as text or `pathlib.Path`; `os.fsdecode(path)` makes text of bytes.";

    I219 PARTS: "parts that a tensor does not have",
        "`narrow` and `extract` got no parts, or two of one name. Or a dimension or range does not exist, a part is larger \
        than 16 GiB, or the tensor is seen as matrices of another shape.",
        "Name at least one part; dimensions count from 0, ranges are within them.";

    I220 NO_MEMORY: "too little memory in the host",
        "The host's memory does not suffice for this tensor.",
        "Free memory; read fewer tensors at a time.";

    I221 CLOSED: "a closed container",
        "It was closed, by `close()` or at the end of its `with` block.",
        "Open it again, or read inside the block; load a model again whose container was closed.";

    I222 ENCODED_OR_NOT: "a view that the file has nothing for",
        "The inspector shows checkpoints and containers. One of them has nothing to verify, to time or to compare, \
        the other nothing to encode.",
        "Encode it first: `wcodec encode`, or key E.";
}
