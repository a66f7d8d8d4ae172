//! Codes of [`ErrorKind::Format`](crate::ErrorKind::Format): the wrong file, or one that contradicts itself.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Files that are not what they should be", Format;

    F000 FORMAT: "a file that is not what it should be",
        "The file contradicts itself, or is another one than was meant.",
        "Check the path, or get the file again.";

    F101 NOT_A_CONTAINER: "a file of another kind",
        "The file is something else than was asked for: a `.safetensors` file, GGUF, ONNX, a pickle or zip of \
        `torch.save`, a NumPy file, or an archive. A Git LFS pointer or an HTML page stands for a download that went \
        wrong.",
        "Check the path. The message has the command that helps with such a file; a checkpoint is encoded first: \
        `wcodec encode SRC -o OUT/`.";

    F102 TOO_SHORT: "a file too short for a container",
        "A container begins with a header of 64 bytes. Often a download or a copy failed.",
        "Check the path, and copy the file again.";

    F103 UNFINISHED: "a container whose writing was interrupted",
        "The header is written last, and it is empty: this is the temporary file of an encoding that ended early, or \
        a copy of it.",
        "Encode the model again.";

    F104 NOT_SAFETENSORS: "a broken `.safetensors` header",
        "The source is no `.safetensors` file, or it was cut off or damaged in its header.",
        "Check the path, or download the file again.";

    F105 NOT_STATISTICS: "a file that holds no statistics",
        "`Statistics.load` and `--statistics` read what `Statistics.save` and `wcodec calibrate` wrote. This is \
        something else, or only a part of it.",
        "Check the path, copy the file again, or collect the statistics again.";

    F106 BAD_STATISTICS: "statistics that contradict themselves",
        "The file was changed after it was written; the message says what does not fit.",
        "Copy the file again, or collect the statistics again.";

    F107 NOT_A_PLAN: "a file that holds no plan",
        "`plan=` and `--plan` take what `PlanReport.save` and `wcodec plan --save` wrote.",
        "Check the path.";

    F108 BAD_PLAN: "a plan that contradicts itself",
        "The file was changed after it was written; the message says what does not fit.",
        "Plan again, and save that.";

    F109 BAD_CONFIG: "a config that cannot be read",
        "A config in the folder is no JSON object, or its `quantization_config` is not what one is.",
        "Restore the file.";

    F110 REFUSED_BY_TRANSFORMERS: "a config that transformers refuses",
        "transformers makes nothing of a config, or of another of the model's files; its own words follow the colon.",
        "Restore the file. If it is as its author made it, upgrade transformers.";

    F111 NOT_A_LEGACY_BLOB: "bytes that are no single layer",
        "`decode_layer` was given bytes that are neither a container nor a whole legacy blob.",
        "Give it what `encode_layer` returned.";

    F112 BAD_GGUF: "a damaged GGUF header",
        "The header of a GGUF file says what cannot be.",
        "Download the file again.";

    F113 GGUF_SHAPE: "a GGUF tensor of another shape",
        "transformers makes a tensor of the GGUF file that has another shape than its model has for it.",
        "Upgrade transformers.";

    F114 BAD_PROMPTS: "a line of prompts without a prompt",
        "In a file of prompts that ends with `.jsonl`, each line is an object such as `{\"prompt\": \"Once\"}`.",
        "Repair the line; for plain text, end the file's name with `.txt`.";

    F201 BAD_SHARD_INDEX: "a broken index of shards",
        "`model.safetensors.index.json` is damaged, or has no `weight_map`, or an empty one.",
        "Download the index again.";

    F202 SHARD_ELSEWHERE: "a shard outside of the folder",
        "The index names a file by a path. Only names in the same folder are allowed.",
        "Put the shards beside the index, and plain names into it.";

    F203 SHARDS_DISAGREE: "an index and shards that do not fit each other",
        "They are not of the same checkpoint, or an upload was partial. If several shards have a tensor, \
        transformers reads the last, whatever the index says.",
        "Download the checkpoint again, into an empty folder.";

    F204 WEIGHTS_OF_CONFIG: "a config that names a missing file of weights",
        "`config.json` names the file of the weights by `transformers_weights`, and it is not there.",
        "Restore the file or the config, or name the file of the weights.";

    F205 NO_CODE_SCALES: "quantized weights without their scales",
        "Weights of FP8 or MXFP4 say nothing without their scales: a part of the checkpoint is missing, or a tool \
        has left them out.",
        "Complete the checkpoint, or download it again. Schemes `lossless` and `raw` store it as it is.";

    F206 BAD_CODE_SCALES: "scales that do not fit their quantized weights",
        "The scales have another shape or dtype than such weights can have. Or there are zero points, which FP8 does \
        not have, or the config names other blocks.",
        "Use the original checkpoint with its own `config.json`.";

    F301 REST_OVERLAPS: "a tensor in the container and in the rest of its model",
        "The `.safetensors` file beside the container is not the one that was saved with it; perhaps it is the \
        original model.",
        "Put the right file there, or decode the container in a folder of its own with `--partial`.";

    F302 REST_ELSEWHERE: "a rest of the model outside of the folder",
        "The container's metadata name the file with the other weights by a path. Only names in the same folder are \
        allowed.",
        "Save the model again.";

    F401 BAD_HEADER: "a header that contradicts itself",
        "Its hash is right, so no copy damaged it: whoever wrote the file made a mistake, or changed it on purpose.",
        "Encode the model again, or get the file from whoever made it. If wcodec wrote it, report it.";

    F402 BAD_INDEX: "an index that is not as the format says",
        "The hash of the index is right, so no copy damaged it: whoever wrote the file made a mistake.",
        "Encode the model again, or get the file from whoever made it. If wcodec wrote it, report it.";

    F403 BAD_OPAQUE: "bytes of an unknown dtype whose note does not fit",
        "Tensors of dtypes that wcodec does not know are bytes with a note of their dtype, and the note does not \
        fit.",
        "Encode the model again, or get the file from whoever made it.";

    F404 BAD_MODEL_RECORD: "a record of the model that cannot be read",
        "The record that `container.model` shows is nested too deeply, or has a number or text that is none. Tensors \
        are not concerned.",
        "Encode the model again, or do without the record.";

    F405 BAD_NAMES: "names in the index that do not fit",
        "A name of a tensor, an alias or a table is empty, not unique, or names something that is not there.",
        "Encode the model again, or get the file from whoever made it.";

    F406 BAD_SEGMENTS: "segments with holes or overlaps",
        "Segments follow each other up to the index, without overlap or hole, and these do not.",
        "Encode the model again, or get the file from whoever made it.";

    F407 BAD_SIZES: "sizes that no memory can hold",
        "A shape, a plane or their sum in the index is larger than can be.",
        "Encode the model again, or get the file from whoever made it.";

    F408 BAD_PLANE: "a plane that lacks something",
        "The coder of the plane needs a table, offsets or a tile that the index does not give.",
        "Encode the model again, or get the file from whoever made it.";

    F409 BAD_COMBINATION: "scheme, coder and shape that do not fit together",
        "The index gives a tensor a scheme, coder, layout, filter or matrix view that excludes another one.",
        "Encode the model again, or get the file from whoever made it.";

    F410 BAD_FIELDS: "planes that do not make up their elements",
        "The planes of scheme `lossless` hold bits of elements, and these planes leave some out or hold some twice.",
        "Encode the model again, or get the file from whoever made it.";

    F411 BAD_SCALES: "scales that do not fit their tensor",
        "Number, kind or blocks of the scales do not fit the matrix.",
        "Encode the model again, or get the file from whoever made it.";

    F412 BAD_CODER_NUMBER: "a number that a coder does not take",
        "The index gives a table, tile, shift, filter or frame that the coder or layout does not have.",
        "Encode the model again, or get the file from whoever made it.";

    F413 CHUNK_COUNT: "another number of chunks than the index says",
        "The number of chunks follows from the tensor's shape, and the index says another one.",
        "Encode the model again, or get the file from whoever made it.";
}
