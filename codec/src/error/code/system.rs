//! Codes of [`ErrorKind::Io`](crate::ErrorKind::Io): files and folders that are missing or refused.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Refusals of the operating system and of the Hub", Io;

    O000 IO: "a refusal of the operating system",
        "The system's own words follow the colon.",
        "Check the path, its permissions and the disk.";

    O101 NOT_FOUND: "a file or folder that does not exist",
        "A relative path counts from the working directory.",
        "Check the path, and `pwd`; make the folder of an output first.";

    O102 NO_PERMISSION: "a file or folder that must not be read or written",
        "The permissions of the file or its folder forbid it, or the file system is read-only.",
        "Check the permissions of the file and its folder.";

    O103 OUTPUT_EXISTS: "an output that exists already",
        "Nothing is replaced unasked.",
        "`overwrite=True` in Python, `--overwrite` in commands, or another name.";

    O104 NO_SPACE: "a full disk",
        "The disk is full, or a quota is reached. No partial file was left.",
        "Free some space, or write to another disk.";

    O105 NO_OUTPUT: "standard output is closed",
        "The command has something to print, and nowhere to print it to.",
        "Send it to a file, or to `/dev/null`.";

    O201 NO_REPOSITORY: "neither a path nor a repository that can be reached",
        "The name is no path here, and no repository of that name was found in the cache or on the Hugging Face Hub. \
        Perhaps `HF_HUB_OFFLINE` or `local_files_only` forbids asking.",
        "Check the spelling and the network; log in for private repositories; unset `HF_HUB_OFFLINE`, or fetch the \
        repository first (`hf download NAME`).";

    O202 NOT_IN_REPOSITORY: "a file or folder that the repository does not have",
        "It is neither in the cache nor to be had: the Hub must not be asked, cannot be reached, or has no such \
        file.",
        "Check the name; or fetch it (`hf download NAME`) with the same `revision` and `cache_dir`.";

    O203 HUB_READING: "weights that could not be read from the Hub",
        "A repository is read a tensor at a time while it is encoded. That broke off, or a mirror gives whole files \
        only.",
        "Try again; or `hf download` the repository first: files of the cache are read there.";

    O204 HUB_WRITING: "an upload that the Hub does not take",
        "`wcodec push` has no token with the right to write, the name is somebody else's, or there is no network; \
        the Hub's words follow.",
        "`hf auth login`, `--token`, or another name.";

    O301 NO_MODEL: "a folder or repository without weights that can be read",
        "It has no `.wcodec`, `.safetensors` or `.gguf` file as is wanted; perhaps only torch's `.bin` files.",
        "Name the right folder, or convert the weights to `.safetensors`.";

    O302 NO_CONTAINER: "a folder whose container is missing",
        "The folder's `config.json` says that the weights are compressed, and the `.wcodec` file is not there: it \
        was renamed, or not copied.",
        "Put the file back under its name, or save the model again.";

    O303 NO_SHARD: "a shard that is missing",
        "The index names a shard that is not there.",
        "Download it, or the whole checkpoint again.";

    O304 NO_REST: "a rest of the model that is missing",
        "The container is a part of a model, and the file with the other weights is not beside it.",
        "Put that file back, or decode what is there: `--partial`, in Python `partial=True`.";
}
