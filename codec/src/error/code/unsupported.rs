//! Codes of [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): a package is missing, or a version is too old.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Things that this version or installation lacks", Unsupported;

    U000 UNSUPPORTED: "something that this version or installation does not support",
        "The file is fine; something is missing here, or too old.",
        "Upgrade wcodec, or install what the message names.";

    U101 NEWER_FORMAT: "a file of a newer format",
        "The file uses something that was added to the format later.",
        "Upgrade wcodec.";

    U102 UNKNOWN_NAME: "an unknown coder, layout, filter or scheme",
        "A file names something that this version does not know; the advice lists what it knows.",
        "Upgrade wcodec.";

    U103 UNKNOWN_DTYPE: "an unknown dtype",
        "A container or a program names a dtype that wcodec does not know. Checkpoints may have any: such tensors \
        are stored as they are.",
        "Upgrade wcodec, or convert the tensor.";

    U104 DRAFT_FORMAT: "a file of a draft of the format",
        "A development version wrote it, before format 1.1 was settled.",
        "Compress the model again.";

    U105 SCALES_KIND: "scales of an unknown kind",
        "The scales have a dtype or an arrangement that this version does not know for the scheme.",
        "Upgrade wcodec.";

    U106 NEWER_RECORD: "a plan or statistics of a newer version",
        "A newer wcodec wrote the file.",
        "Upgrade wcodec; or plan again, or collect the statistics again.";

    U107 LEGACY_BLOB: "a legacy blob that cannot be decoded so",
        "Legacy blobs are of dtype int8, and decode on the CPU.",
        "Decode it with `Decoder()`, or with the program that wrote it; `Encoder()` makes a layer that a GPU \
        decodes.";

    U108 GPU_LIMITS: "a tensor beyond the kernels' limits",
        "The matrix has 2^31 rows or columns, the plane 2^32 frames, or its elements are in more runs of bits than \
        kernels take.",
        "Decode this tensor on the CPU.";

    U201 NO_TORCH: "torch is not installed",
        "NumPy alone suffices for files; layers, models and GPU decoding in Python need torch.",
        "`pip install torch`, or ask for NumPy arrays (`framework=\"numpy\"`).";

    U202 NO_TRANSFORMERS: "transformers is not installed",
        "`load_model`, `save_pretrained`, `generate`, `eval` and `bench` work on models of transformers.",
        "`pip install torch transformers accelerate`.";

    U203 NO_PACKAGE: "a package is not installed",
        "Something optional was asked for that another package does: uploads, adapters, plots, statistics, GGUF, \
        completions, vLLM.",
        "Install the package that the message names.";

    U204 PACKAGE_TOO_OLD: "a package that is too old",
        "peft or transformers lacks an interface that this needs.",
        "Upgrade the package as the message says.";

    U205 PACKAGE_UNTRIED: "a version of a package that is not known",
        "transformers or vLLM changed something between versions that wcodec builds on.",
        "Install a version that the message names, or upgrade wcodec. `wcodec.load_model` needs less of transformers \
        than `from_pretrained`.";

    U206 TENSOR_PARALLEL_LAYER: "a layer that ranks cannot share",
        "The `tp_plan` gives a compressed layer a style that it has no parts for, or this transformers has none for \
        compressed embeddings or experts.",
        "Install transformers 5.23 or later, or leave the layer out of the plan or of what is compressed.";

    U207 TENSOR_PARALLEL_ONLY: "ranks that share in another way than by tensor parallelism",
        "Compressed layers take neither `ep_size`, `fsdp_size`, `dp_replicate_size` nor `pp_size` of \
        `DistributedConfig`.",
        "Give `tp_size` alone.";

    U208 TENSOR_PARALLEL_ENCODING: "tensor parallelism of a model that is not compressed yet",
        "Each rank would compress the whole model.",
        "`wcodec encode FOLDER -o OUT/` first, and load `OUT/`.";

    U209 TENSOR_PARALLEL_DISK: "tensor parallelism from disk",
        "A rank's part of a model is kept in memory, not on disk.",
        "Take residency `device` or `host`.";

    U210 RANK_FAILED: "another rank that could not load the model",
        "One rank failed, so that all do.",
        "See that rank's error.";

    U211 FP8_PARTS: "parts of a tensor with FP8 codes and scales",
        "Schemes `lossless` and `raw` keep the codes of an FP8 checkpoint, and neither tensor parallelism nor vLLM \
        gets the parts of their scales.",
        "Encode the checkpoint with another scheme.";

    U301 QUANTIZED: "weights that another tool has quantized",
        "GPTQ, AWQ, bitsandbytes and others are not dequantized here, and their scales must not be quantized as if \
        they were weights. Plain weights, FP8 and MXFP4 are taken.",
        "Use the original checkpoint, or the tool that the message names. `wcodec encode --scheme lossless` and \
        `raw` to a file store all tensors as they are.";

    U302 ROUNDTRIP_OF_CODES: "a round trip of quantized weights",
        "`wcodec roundtrip` compares with the tensors of the file, which are codes and scales here.",
        "Take `--scheme lossless`; or encode it, and `wcodec verify OUT --against CHECKPOINT`.";

    U303 NO_MODEL_TYPE: "a config without a model type",
        "The config is that of another library, or very old.",
        "Put the model's own `config.json` there, or compress the `.safetensors` file by itself.";

    U304 UNKNOWN_MODEL: "a model that transformers does not know",
        "The installed transformers has no class for the config's `model_type`, or does not read this architecture \
        from GGUF.",
        "Upgrade transformers, or check the config. For GGUF, name an output that ends with `.wcodec`.";

    U305 GGUF_BYTE_ORDER: "a big-endian GGUF file",
        "Its numbers are the other way round, as IBM Z and POWER write them.",
        "Take a little-endian file, or convert it with llama.cpp's `gguf_convert_endian.py`.";

    U306 GGUF_VERSION: "a GGUF file of another version",
        "Version 3 is read.",
        "Convert the model again with a current llama.cpp.";

    U307 GGUF_SPLIT: "a part of a split GGUF file",
        "The other parts have the other tensors.",
        "Put them together: `llama-gguf-split --merge FIRST OUT.gguf`.";

    U308 GGUF_TYPE: "a GGUF type that is not decoded",
        "The type came later, or files do not have it, such as Q8_1.",
        "Take a file of another type; or leave the tensor out of a `.wcodec` file (`--skip`).";

    U309 GGUF_ROTATIONS: "a GGUF file with rotations that transformers does not read",
        "`rope_freqs.weight` is of a kind without which it would be another model. Those of Llama 3 are found again.",
        "Take the checkpoint that the file was made from.";

    U310 GGUF_EXPORT: "a GGUF file that the inspector is to encode",
        "The inspector looks at GGUF files, and does not encode them.",
        "`wcodec encode FILE.gguf -o OUT/`.";

    U401 LIBRARY_DTYPE: "a dtype that NumPy, torch or safetensors lacks",
        "NumPy alone has no bfloat16 and no 8-bit floats, and torch and safetensors got some dtypes late.",
        "`pip install ml_dtypes`, use or upgrade torch, or read the tensor by `wcodec.load_file`.";

    U402 LIBRARY_SHAPE: "a shape that NumPy or torch cannot have",
        "A file can have more dimensions than NumPy (64; 32 before NumPy 2), and an empty tensor extents of any \
        size.",
        "`wcodec decode` writes it to `.safetensors`.";

    U501 NO_SERVER: "a server that cannot be started",
        "`wcodec serve` found no server, not the one that was asked for, or one that the system refused to run.",
        "The advice says how to install each.";

    U502 VLLM_LOAD_FORMAT: "compressed weights and another load format of vLLM",
        "vLLM's `--load-format` names another format, or the compressed model is not the main one, such as a draft \
        model beside an ordinary model.",
        "Leave `--load-format` out; for a draft model take `--load-format wcodec`, which loads both.";

    U503 VLLM_OFFLOADING: "vLLM's own offloading",
        "`--cpu-offload-gb` and the like move parameters, and compressed weights are none.",
        "Leave it out, and take `--additional-config '{\"wcodec\": {\"residency\": \"host\"}}'`.";

    U504 VLLM_MOVING: "an option of vLLM that moves weights",
        "`--enable-eplb` and `--enable-sleep-mode` do not work with compressed weights.",
        "Leave the option out.";

    U505 VLLM_EXPERT_BIASES: "experts with biases in vLLM",
        "Compressed experts have no biases there, and models such as gpt-oss have some.",
        "Compress the model with `exclude=\"*experts*\"`.";

    U506 VLLM_EXPERT_ADAPTERS: "adapters of experts in vLLM",
        "vLLM adds adapters (LoRA) to routed experts within kernels of its own, which read no compressed weights.",
        "Name the layers that adapters are for, as `--lora-target-modules q_proj k_proj v_proj o_proj`, or compress the \
         model with `exclude=\"*experts*\"`.";
}
