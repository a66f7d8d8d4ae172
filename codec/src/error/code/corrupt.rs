//! Codes of [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): bytes that were valid and are not any more.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Damaged files", Corrupt;

    C000 CORRUPT: "damaged data",
        "The file was valid, and its bytes were changed: by a disk, a copy that broke off, an editor.",
        "Restore the file from a copy, or encode the model again. `wcodec verify FILE` lists every damaged tensor.";

    C101 FILE_LENGTH: "a file that was cut off or appended to",
        "The file is shorter or longer than its header says.",
        "Copy or download it again.";

    C102 CHANGED_WHILE_OPEN: "a file that was changed while it was open",
        "Another program wrote to it. Containers are written once.",
        "Let that program finish, and open the file again.";

    C103 HEADER_HASH: "a damaged header or index",
        "The hash of the header or the index does not match. Nothing of the file can be trusted: without the index \
        no tensor can be found.",
        "Restore the file from a copy, or encode the model again.";

    C104 SEGMENT_HASH: "a damaged segment",
        "The hash of a tensor's symbols, scales, offsets or table does not match. Other tensors stay readable.",
        "Restore the file from a copy, or encode the model again. `wcodec verify FILE` lists every damaged tensor.";

    C105 READ_AGAIN: "bytes that are not those that were read before",
        "With residency `disk`, a part of a large matrix was sound when it was read first, and is not now.",
        "See whether the disk is sound, and restore the file.";

    C106 DECODED_HASH: "decoded bytes whose hash does not match",
        "All segments were right, and they do not decode to the bytes that were encoded.",
        "Restore the file from a copy, or encode the model again. If that does not help, report it.";

    C107 GPU_CHUNK: "a chunk that does not decode on the GPU",
        "`check()` of a decoder finds it; its other calls only launch, and report nothing. The message says how many \
        other tensors are damaged.",
        "Restore the file from a copy, or encode the model again.";

    C108 NOT_FINITE: "a decoded value that is not finite",
        "Verifying alone finds it: decoding gives infinity, or no number. Older versions wrote such scales for \
        weights near the largest number that their dtype has.",
        "Encode the model again.";

    C109 PADDING: "padding that is not zero",
        "No tensor is hurt, but somebody wrote between the segments.",
        "Restore the file from a copy, or encode the model again.";

    C110 ZSTD_FRAME: "a zstd frame that does not decode",
        "The frame is damaged; its number counts from 0, and libzstd's words follow the colon.",
        "Restore the file from a copy, or encode the model again.";

    C111 DAMAGED_UPLOAD: "a damaged file that is not uploaded",
        "`wcodec push` compares all hashes first.",
        "Encode the model again, or restore the file.";

    C201 SEGMENT_LENGTH: "a segment of the wrong length",
        "The length does not fit the symbols that the segment holds. It is found where hashes were not compared \
        first. These are rows of a tensor, `check=False`, legacy blobs, and files whose hashes were recomputed after \
        the damage.",
        "Restore the file from a copy, or encode the model again.";

    C202 CHUNK_PLACES: "chunks in the wrong places",
        "The offsets of a plane do not ascend, do not fit its bytes, or are too many or too few. It is found where \
        hashes were not compared first.",
        "Restore the file from a copy, or encode the model again.";

    C203 BAD_TABLE: "a damaged table",
        "The codes or frequencies of a coder's table do not add up, or it has the wrong length. It is found where \
        hashes were not compared first.",
        "Restore the file from a copy, or encode the model again.";

    C204 BAD_CHUNK: "a chunk with damaged contents",
        "The stream or the patches of a chunk do not decode to its symbols. It is found where hashes were not \
        compared first.",
        "Restore the file from a copy, or encode the model again.";

    C205 BAD_LEGACY_BLOB: "a damaged legacy blob",
        "The payload has another length or other symbols than its header says.",
        "Restore the blob, or encode the layer again.";
}
