//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) about tensors: to encode, to read, to decode on a GPU.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Tensors", Input;

    I401 BITS_UNREACHABLE: "a number of bits that cannot be reached",
        "Every weight has a sign, every row a scale, every chunk its head: small matrices need more bits than large \
        ones.",
        "Ask for another number of bits, or exclude the small tensors.";

    I402 BAD_LEVELS: "levels that do not fit their tensor",
        "Programs that use the crate give scheme `rate` a level for each weight and a finite bf16 for each row. With \
        a trellis, paths restart at each tile. These are others.",
        "Follow section 4 of FORMAT.md, or let encoding find the levels.";

    I403 NOT_FINITE_WEIGHTS: "weights that are not finite",
        "Schemes `int8` and `rate` need finite weights, and there is a NaN or infinity.",
        "Repair the checkpoint, or exclude the tensor (`exclude`, `--exclude`), so that it is stored as it is.";

    I404 NOT_A_TENSOR: "something else than named tensors",
        "`save_file` and `compress` of a mapping take names and NumPy arrays or torch tensors.",
        "Convert with `numpy.asarray` or `torch.as_tensor`; for paths use `compress`.";

    I405 DTYPE_NOT_STORED: "a dtype that cannot be stored",
        "Objects, text, complex128 and quantized dtypes of torch have no place in a file.",
        "Convert the tensor, or leave it out.";

    I406 NOT_DENSE: "a tensor that does not hold its own elements",
        "Sparse, quantized, nested and masked tensors, and those that FSDP2 or tensor parallelism divided, are no \
        plain arrays.",
        "Make it plain by the call that the advice names: `.to_dense()`, `.dequantize()`, `.full_tensor()`, \
        `.unbind()`, `.filled(0)`.";

    I407 CHANGED_WHILE_READ: "a tensor that changed while it was read",
        "A mapping that makes its arrays on demand gave another one than before.",
        "Pass arrays that stay as they are.";

    I408 NO_DATA: "a tensor without data",
        "It is on the meta device, or its memory was given back, as FSDP does with sharded weights between steps.",
        "Load the weights first, use `wcodec.load_model`, or gather them (`summon_full_params`).";

    I409 NOT_A_MATRIX: "a tensor that cannot be transposed",
        "`transpose` matches a tensor without two dimensions.",
        "Narrow the pattern.";

    I410 SKIPPED_PARTNER: "one of two tensors that belong together is skipped",
        "`skip` matches one of two tied tensors, or the scales of codes that are kept.",
        "Skip both, or none.";

    I411 TOO_LARGE: "a tensor beyond the limits of the format",
        "A plane has at most 16 or 32 GiB, a container 2^64 bytes.",
        "Split the tensor, or use `coder=\"raw\"`.";

    I421 NO_TENSOR: "no tensor of this name",
        "The container has none, or the decoder was made with `names` that leave it out.",
        "See `wcodec inspect`; the advice names similar ones.";

    I422 BAD_NAMES_ARGUMENT: "names that are no list of names",
        "`names` is a list, and not empty.",
        "`names=[\"a\"]`; leave it out for all tensors.";

    I423 DECODED_DTYPE: "a dtype that a tensor does not decode to",
        "Quantized tensors decode to float32, float16 or bfloat16, and on request to their symbols; others to their \
        own dtype, and floats to floats.",
        "Leave `dtype` out, and convert afterwards.";

    I424 NOT_QUANTIZED: "symbols or scales of a tensor that is not quantized",
        "The tensor's scheme is `raw` or `lossless`.",
        "Read its values: `entry.numpy()`, `entry.torch()`.";

    I425 BAD_ROWS: "rows that a tensor does not have",
        "The range is not in the tensor, or ends before it begins.",
        "Ask for rows that it has.";

    I431 BAD_OUT: "an output tensor that does not fit",
        "`out` must be a contiguous torch tensor of the tensor's shape and dtype, on the decoder's device.",
        "The advice says which; `torch.empty(entry.shape, dtype=…, device=…)`.";

    I432 GPU_ROWS: "rows that a GPU cannot decode by themselves",
        "A GPU decodes strips of 16 rows, of tensors that are stored by rows.",
        "Widen the range to multiples of 16 or to the end of the tensor and cut the result, or decode the whole \
        tensor.";

    I433 CUDA_GRAPH: "something that a CUDA graph cannot capture",
        "Tensors in the host's memory or in the file are copied, and `check()` waits.",
        "Do it outside of the capture, or keep the compressed bytes on the GPU.";

    I434 LAUNCH_TOO_LARGE: "too much for one launch",
        "There are more chunks, vectors or rows than one launch counts.",
        "Do fewer at once.";

    I435 NO_PRODUCT: "a tensor that no kernel multiplies with",
        "`products` takes schemes `int8` and `rate`, layout `pair` of coders `rans` and `huffman`, and `quad` of \
        `huffman`. Vectors are float16, or bfloat16 from compute capability 8.0 on.",
        "Decode the tensor, and multiply with the result.";

    I436 BAD_VECTORS: "vectors or matrices that do not go together",
        "`products` got too many vectors, or vectors, matrices or biases of another width, dtype, device or number.",
        "Prepare them apart, convert the input, or decode the weight for so many.";

    I437 NO_LOOKUP: "a tensor whose rows no kernel looks up",
        "`lookup` takes matrices, of elements of 16 or 32 bits or quantized ones, of coders `rans` and `huffman`, \
        that are not transposed.",
        "Decode the tensor, and look rows up in the result.";

    I438 BAD_LOOKUP: "arguments that a lookup does not take",
        "Numbers of rows are int64 or int32 on the device, rows come as F32, F16 or BF16, and their number is \
        bounded.",
        "Convert the numbers; look up fewer at once.";

    I439 NO_FUSED_KERNEL: "a norm, activation or pair that no kernel computes",
        "The crate or the native module was given another one, or gates without values of the same shape.",
        "Use one that the message names; prepare gates and values as a pair.";

    I440 FUSED_CODE: "a fused layer that was called in another way than its code says",
        "`fuse_` reads from a module's code what its layers are called with, and it was something else.",
        "`wcodec.nn.fuse_(model, groups=False, blocks=False)`, and tell us.";
}
