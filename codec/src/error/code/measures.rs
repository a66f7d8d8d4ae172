//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) about measuring, plots, calibration, plans and single layers.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Measuring, calibration and plans", Input;

    I601 NOTHING_TO_DRAW: "a plot without its data",
        "The report or file does not have them: they were not measured, or there is nothing of the kind.",
        "Measure them: the advice names the argument; or choose another tensor.";

    I602 NO_PLOT: "an unknown plot",
        "`x.plot` has none of this name.",
        "Use one of those that `x.plot` shows.";

    I603 NO_TOKENIZER: "a model without a tokenizer",
        "The model's folder has none.",
        "`tokenizer=` in Python, `--tokenizer FOLDER` in commands, or token ids.";

    I604 NOT_A_TEXT: "a text that is none",
        "A text is a `str`, a path of a file in UTF-8, or whole token ids in one dimension. Statistics also take \
        `\"self\"` and data sets.",
        "Give one text of such a kind.";

    I605 OTHER_VOCABULARY: "token ids of another vocabulary",
        "The ids are of another tokenizer, or model and baseline have different vocabularies.",
        "Use the model's own tokenizer; compare a model with its own original.";

    I606 SHORT_TEXT: "a text that is too short",
        "A model predicts a token from those before it, and the text is empty or shorter than asked for.",
        "Give more text: some hundred words, for statistics 30,000 tokens.";

    I607 NOT_FINITE_PREDICTIONS: "predictions that are not finite",
        "Computing overflowed in float16, or weights are wrong or damaged too much.",
        "Load the model in bfloat16 or float32; `wcodec verify` the file, or ask for more bits.";

    I608 DEVICES_DIFFER: "model and baseline on different devices",
        "Their speeds would say nothing about each other.",
        "`.to(\"cuda\")` both.";

    I609 GENERATION_OPTIONS: "a generation that cannot be timed",
        "Options such as beams change the meaning of a step.",
        "Leave them out.";

    I610 ATTENTION: "a cache of another dtype without sdpa",
        "Attention in a wider dtype than the model's exists for sdpa.",
        "Load the model with `attn_implementation=\"sdpa\"`, or pass `attention=\"model\"`.";

    I621 NO_SECOND_MOMENTS: "statistics without second moments",
        "Error feedback needs them, and these statistics were collected with `full=False`, `--steps-only` or \
         `--columns-only`, or as `columns`.",
        "Pass `feedback=False`, or collect them anew.";

    I622 OTHER_STATISTICS: "statistics of another model, or of another kind",
        "Names or shapes of the statistics are not those of the tensors. Or other statistics made the plan, or these \
        do not say how much each tensor matters.",
        "Collect them from this model, or pass those of the plan as `calibrate`.";

    I623 NOTHING_TO_QUANTIZE: "no tensor to choose bits for",
        "`include`, `exclude` or `rules` leave no tensor for scheme `rate`.",
        "Change them, or name another source.";

    I624 CALIBRATION_MODEL: "calibration without a model",
        "`calibrate` is text or `\"self\"`, and a mapping of tensors cannot be run.",
        "`collect_statistics(model)` first, and pass the result.";

    I625 CALIBRATION_ARGUMENTS: "arguments of calibration that do not go together",
        "`calibrate` takes statistics, their file, or the text to collect them on, and `tokens` says how much is \
        collected.",
        "Pass one of these.";

    I626 QUANTIZED_ARGUMENTS: "weights, steps or tiles that do not go together",
        "A matrix has a step for each row, and tiles of at least one column.",
        "The advice says which are asked for.";

    I631 TARGET: "no target, or several",
        "`wcodec.plan`, `compress` and `encode` meet one of budget, quality and bits, and a quality is measured on a \
        text.",
        "Pass one, leave the others out; pass a text that the model has not seen (`text=`, `--text`) with a quality.";

    I632 BAD_BUDGET: "a budget that cannot be read",
        "A size has a unit, bits have the word: `\"600MB\"`, `\"1.5GiB\"`, `\"4.2 bits\"`. Bits are from 1 to 8.",
        "Write it so; a number is bytes of the whole file.";

    I633 BAD_QUALITY: "a quality that cannot be read",
        "The one measure that is bounded is the mean KL divergence from the original, in nats per token.",
        "Write it as `\"kl<=0.02\"`.";

    I634 TARGET_UNREACHABLE: "a budget or a quality that cannot be met",
        "Every tensor has scales, tables and at least a bit or so per weight, and other tensors stay as they are. \
        Scheme `rate` has 8 bits at most.",
        "Ask for a target in the range that the message gives. Or exclude less, skip tensors that are not needed, or \
        leave `scheme` out, so that tensors are kept without loss.";

    I635 BAD_PLAN_ARGUMENT: "something else than a plan",
        "`plan`, `--plan`, `save` and `--save` take the result of `wcodec.plan`, or a file that ends in `.json`, \
        with statistics of a calibration.",
        "Pass such a plan or name.";

    I636 OTHER_PLAN: "a plan of another model",
        "Names or shapes of the plan are not those of the model, or it is of another version of it.",
        "Plan this model.";

    I641 LAYER_ARRAY: "an array that is no layer of symbols",
        "`encode_layer` takes a 2-D int8 array, symbols and not weights.",
        "Quantize first, or use `wcodec.compress`.";

    I642 NOT_A_LAYER: "a container that is no single layer",
        "`decode_layer` got a container of something else, or of another shape than was expected.",
        "Open it with `wcodec.open`; pass the right `rows` and `cols`, or leave them out.";

    I643 LEGACY_LIMITS: "a layer that does not fit a legacy blob",
        "Legacy blobs are coded with zstd, and hold fewer than 2^32 rows and columns.",
        "Use the default format, or leave `coder` out.";
}
