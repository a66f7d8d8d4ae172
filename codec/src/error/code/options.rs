//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) about options of functions and commands.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Options", Input;

    I301 UNKNOWN_KEYWORD: "an unknown keyword",
        "It is a keyword of another function, of another tool, or mistyped.",
        "Use the one that the message names, or one of those that it lists.";

    I302 UNKNOWN_CHOICE: "an unknown choice",
        "There is no scheme, scale, coder, layout or residency of this name.",
        "Use one of those that the advice lists.";

    I303 UNKNOWN_COMMAND: "an unknown or incomplete command",
        "`wcodec help COMMAND` or a line in `wcodec chat` that begins with `/` names no command, or lacks the name \
        of a file.",
        "`wcodec help`; `/help` in a chat.";

    I304 BITS_AS_SCHEME: "a number of bits in place of a scheme",
        "The second argument of `compress_(model, 4)` is the scheme.",
        "`bits=4`.";

    I305 ENCODED_ALREADY: "options of encoding for a model that is encoded",
        "The folder or file is compressed already. Options are accepted if they ask for what it has.",
        "Leave them out, or encode the original again.";

    I306 NO_EFFECT: "an option without effect",
        "The option does nothing with the others, without another one, or for this kind of file.",
        "Leave it out, or do as the advice says.";

    I307 EXCLUSIVE: "options that exclude each other",
        "Two options say the same thing in two ways, or belong to different schemes, devices, residencies or plans.",
        "Leave out the one that the message names.";

    I308 BAD_NUMBER: "a number out of its range",
        "An argument is no number, no whole number, or too small or too large.",
        "Give a number in the range that the message says.";

    I309 BAD_SIZE: "a size that cannot be read",
        "`vram_budget`, `ram_budget` and `cache` take bytes, or text with a unit. `\"3G\"` could mean either, and is \
        refused.",
        "Give bytes, or text such as `\"3GB\"` (1,000) or `\"512MiB\"` (1,024).";

    I310 BAD_RULES: "rules of another form",
        "`rules` maps patterns to schemes or dictionaries of options.",
        "`rules={'*.mlp.*': {'bits': 3.5}, 'lm_head.*': 'lossless'}`.";

    I311 BAD_STEPS: "steps of another form",
        "`steps` says of a tensor how much larger its steps are than those of others, and `columns` says so of its \
        columns. `rate_bits` of the crate takes a share of a tensor's rows.",
        "Pass a dictionary of names that the source has, and numbers above 0: one, or of columns one for each.";

    I312 CODER_CONFLICT: "a layout or trellis that the coder does not have",
        "Symbols of four elements (layout `quad`) have codes of coder `huffman` alone, and a trellis needs tiles, \
        which `zstd` and `raw` do not have.",
        "Use coder `huffman` (for a trellis also `rans`), or leave the option out.";

    I313 BAD_CODING_NUMBER: "a number that the coder does not take",
        "`block` is a multiple of 16, and `tile` one of 64 up to 1024. `table_bits` is 8 to 12 (`huffman`) or 11 and \
        12 (`rans`). `level` is at most 19, and `frame` is bounded.",
        "Give such a number, or leave it out.";

    I314 ZSTD_ENCODING: "an encoding at which zstd fails",
        "libzstd failed, mostly for lack of memory.",
        "Free memory, or use a lower level.";

    I315 DISK_NEEDS_A_FILE: "residency `disk` without a compressed file",
        "The model would be compressed in memory, or the container is in memory.",
        "`wcodec encode MODEL -o FOLDER/`, and load that folder.";

    I316 BAD_PATTERN: "a pattern that is not valid",
        "A glob pattern is no text, too long, has unbalanced brackets or braces, or too many braces in one another.",
        "Give text such as `\"*.mlp.*\"`; write brackets that are meant themselves as `[[]`; give several shorter \
        patterns.";

    I317 NO_MATCH: "a pattern that matches nothing",
        "Patterns match whole names; `wcodec inspect --filter` takes a part of a name or a regular expression.",
        "Begin with `*`, or copy names from `wcodec inspect`; the advice names similar ones.";

    I318 BAD_TEXT: "a value that is no text",
        "Metadata, names and some options take text, without halves of characters (lone surrogates), which no file \
        can hold.",
        "Pass a dictionary of text; convert, leave out or replace the others.";

    I319 NO_THREADS: "threads that the system refuses",
        "The system allows no more threads.",
        "Ask for fewer with `threads`, or raise the limit of processes (`ulimit -u`).";

    I320 NO_DEVICE: "a device that there is not",
        "The name is no device, nothing decodes on it, or `CUDA_VISIBLE_DEVICES` hides the GPU.",
        "Use `cpu`, `cuda` or `cuda:N`, counted from 0 among the visible ones.";

    I321 ENVIRONMENT: "a variable or an instruction set that is not known",
        "`WCODEC_KERNELS` is `ptx` or not set; `WCODEC_ISA` and `isa` name `scalar`, `avx2` or `avx512`, if the \
        processor has them.",
        "Unset the variable, or use one of those listed.";

    I322 NO_CHAT_TEMPLATE: "a model that knows no conversations",
        "The tokenizer has no chat template, so that there are no turns and no system message.",
        "Leave the option out, or name another `--tokenizer`.";

    I323 CHAT_TEMPLATE_REFUSES: "messages that the chat template does not take",
        "The template belongs to the model, and refuses some messages: a system message, mostly.",
        "Leave the system message out.";

    I324 TOO_MANY_TOKENS: "more tokens than the model has positions",
        "The model's context is shorter than the text, the window or the conversation.",
        "Use fewer tokens; `/reset` begins a new conversation.";

    I325 NO_PROMPT: "no prompt",
        "The file of `--prompts` is empty, or the prompt is and the model has no token that a text begins with.",
        "Give some text, one prompt a line.";

    I326 SERVED_FOLDER: "a server for a single file",
        "Servers take the folder of a model.",
        "`wcodec encode CHECKPOINT -o OUT/`, and serve `OUT/`.";

    I701 COMMAND_VALUE: "arguments that the command does not take",
        "There is no such option or command, something is missing, or an option takes numbers, sizes or words of \
        another kind.",
        "Give one as the message says; `wcodec help COMMAND --all` has all options.";
}
