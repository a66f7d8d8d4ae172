//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) about models: to compress, to load, to save, to run.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Models and their layers", Input;

    I501 NOTHING_TO_COMPRESS: "a model without layers to compress",
        "No layer can be compressed, or patterns leave none; the reasons follow.",
        "Change `include`, `exclude` or `embeddings`; `wcodec.compress` stores tensors of any kind in a file.";

    I502 NOT_A_MODEL: "something else than a model",
        "`compress_`, `decompress_` and measuring take a `torch.nn.Module` that is in memory, and the former one \
        with layers.",
        "`wcodec.load_model(path)` for a folder or the Hub, `CompressedLinear.from_linear` and its like for a layer, \
        `wcodec.compress` for tensors.";

    I503 NOT_A_LANGUAGE_MODEL: "a model that is no causal language model",
        "Damage and speed are measured on predictions of the next token.",
        "Name the folder of a model of a class `…ForCausalLM` of transformers, with its `config.json`.";

    I504 QUANTIZED_LAYER: "quantized weights in a layer that is not compressed",
        "With `WCodecConfig`, transformers reads the layers that are not compressed, and would take codes for \
        weights.",
        "`wcodec.load_model`, or leave `include` and `exclude` out.";

    I505 ADAPTED_LAYER: "a layer with an adapter of peft",
        "It would be compressed or saved with the model, and train no more.",
        "Compress first, then attach adapters; `merge_and_unload()` or `unload()` those that are there. \
        `save_pretrained` of the PeftModel saves the adapter.";

    I506 NOT_COMPRESSED: "a model without compressed layers",
        "The model is an ordinary one, or patterns match nothing.",
        "`wcodec.compress_` first.";

    I507 ANOTHER_MODEL: "weights that are not those of the model",
        "File and config are of different models, or a part is missing; the message says which tensor is missing, \
        extra or of another shape.",
        "Use the `config.json` that belongs to the weights, or restore or save the model again.";

    I508 FOREIGN_CODE: "a model that is code of its own",
        "Its classes are Python files of its repository, or its config names kernels of the Hub or a backbone, which \
        would be fetched and run.",
        "Read that code; if you trust it, `trust_remote_code=True` or `--trust-remote-code`. Or remove the key from \
        the config.";

    I509 MODEL_FAILS: "a model that does not run",
        "torch or transformers raised the error that follows. The config, or `generation_config.json`, may not be \
        that of the weights.",
        "Restore these files.";

    I510 NO_CONFIG: "a container without a config",
        "Nothing says which model this is.",
        "Put its `config.json` beside it.";

    I511 NO_WEIGHTS_FILE: "a folder without its container",
        "`from_pretrained` found no file of weights.",
        "Save with `wcodec.save_pretrained`, and copy the whole folder; or use `wcodec.load_model`.";

    I512 CONFIG_WITHOUT_METHOD: "a config that does not say that the weights are compressed",
        "`transformers_weights` of the folder's `config.json` names a container, and its `quantization_config` is \
        missing or another method's.",
        "Put the `config.json` back that was saved with the container.";

    I513 SAVED_OVER_ORIGINAL: "a folder with a model that is not compressed",
        "`save_pretrained` would write its config over that of the original, whose weights nothing would find again.",
        "Save to another folder.";

    I514 SAVING_OPTION: "an option of saving that compressed layers do not take",
        "`state_dict`, `variant`, `safe_serialization=False` and others of transformers mean nothing here.",
        "Leave it out.";

    I515 NOT_SAVABLE: "a model that cannot be saved so",
        "Only models of transformers have a config to save.",
        "Save its `state_dict()`.";

    I516 SEVERAL_CONTAINERS: "layers of several containers",
        "Layers were compressed in several calls.",
        "`decompress_` the model, and `compress_` it at once.";

    I517 PARTS_OF_A_MODEL: "a part of a model",
        "FSDP, DeepSpeed or tensor parallelism has cut the model, and a part is no whole to be saved or \
        decompressed.",
        "Save the model before it is cut, or load it in one process, without `tp_plan` and `distributed_config`.";

    I518 LOST_NAMES: "layers under names that no model has",
        "`compress_` was called after `torch.compile` of a part of the model, or of a module of your own around the \
        model.",
        "`compress_` the model itself, before `torch.compile`.";

    I519 NOT_OF_THE_CONFIG: "a model that its config does not make",
        "A part was added, or replaced by one of another size, and loading makes the model of its class and config.",
        "Save a model of a class that makes the part in its `__init__`, or change the config as the model was \
        changed. Or save the part by itself.";

    I520 DEVICE_MAP: "a device map that does not fit",
        "It names a device that nothing decodes on, or leaves modules out.",
        "`\"cuda\"`, numbers of GPUs, `\"cpu\"` or `\"disk\"`; an entry for each module, or `\"\"` for all that are \
        left; more `max_memory`.";

    I521 NOT_DIVISIBLE: "a model that so many ranks cannot share",
        "Heads, outputs, rows, columns or blocks of scales cannot be divided among the ranks, or the class has no \
        plan.",
        "A number of ranks that divides them; scales per row; transformers 5.23 or later.";

    I522 COMPUTED_DTYPE: "a dtype that layers do not compute in",
        "Compressed layers compute in float32, float16 or bfloat16.",
        "Use one of them as `dtype`.";

    I523 BUDGET_TOO_SMALL: "a memory budget that is too small",
        "`vram_budget` does not hold even the memory that decoding takes, or `ram_budget` the ring that weights on \
        disk pass through.",
        "Allow what the message says, or lower `cache`; load a model that was compressed in memory from a file.";

    I531 NOT_TRAINABLE: "training of compressed weights",
        "Compressed weights have no gradients: not by `requires_grad_()`, nor by peft's `modules_to_save` or \
        `trainable_token_indices`.",
        "Train adapters beside the layers, keep the layer out with `compress_(exclude=...)`, or `wcodec.decompress_` \
        it first; a layer's `bias` can be trained.";

    I532 READ_ONLY: "a compressed weight that is written to",
        "Something writes into `layer.weight`, or sets it to another tensor, and nobody would find it.",
        "`layer.weight.clone()` is a tensor of its own; or `wcodec.decompress_` the layer first.";

    I533 NOT_RESIZABLE: "a compressed table or head that is resized",
        "`resize_token_embeddings` changes weights that are compressed.",
        "Resize before `compress_`, or `wcodec.decompress_(model, include=[...])` the layers that are named.";

    I534 DATA_PARALLEL: "`torch.nn.DataParallel` around compressed layers",
        "It copies layers for each batch, and would decode on one GPU for all.",
        "One process for each GPU (`DistributedDataParallel`), or `device_map`.";

    I535 NO_LORA: "an adapter that does not attach",
        "LoRA attaches to compressed linear layers, not to embeddings or experts, and no method that changes the \
        weight does.",
        "Use plain LoRA or DoRA and leave the layer out of the targets; or keep it as it is with \
        `compress_(exclude=...)`.";

    I536 NOT_MERGED: "an adapter that is merged into a compressed weight",
        "`merge_adapter()`, or `merge()` of a layer, would write to the weight.",
        "`merge_and_unload()` makes uncompressed layers; or `wcodec.decompress_` the model first.";

    I537 REPLACED_MEANWHILE: "a weight that was replaced between forward and backward",
        "Another state was loaded into the layer, and gradients would be those of another weight.",
        "Load weights before the forward pass or after the backward pass.";

    I538 BAD_LAYER_INPUT: "an input that the layer does not take",
        "Device, dtype, number of features or token ids do not fit the layer.",
        "Move, convert or reshape the input; use autocast; check that the tokenizer is the model's own.";

    I539 ENGINE_MOVES: "an engine that does something else with a weight",
        "vLLM or a model's own loader there moves, cuts or changes a weight in a way that compressed ones do not \
        take. Or the config is not that of the weights.",
        "Do without offloading; save config and weights again, together; if that changes nothing, run this model \
        without compression.";

    I540 ENGINE_OPTION: "an unknown key of `additional_config`",
        "`--additional-config` of vLLM has another key for wcodec.",
        "Use one of those that the message names.";

    I541 ANOTHER_LAYER: "a state of another layer",
        "The state or the container has another shape or other tensors than the layer.",
        "Load the state of this model.";

    I542 LAYER_GONE: "a compiled program that outlived its model",
        "Its compressed layers are gone.",
        "Compile the model again.";
}
