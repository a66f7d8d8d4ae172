//! Codes of [`ErrorKind::Device`](crate::ErrorKind::Device): GPU, driver, nvCOMP, torch's CUDA.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "GPU, driver and their libraries", Device;

    D000 DEVICE: "a GPU, driver or library that refuses",
        "`wcodec doctor` shows GPU, driver, torch and nvCOMP at once.",
        "Do as the message says; GPU set-up in the guide explains the lines of `wcodec doctor`.";

    D101 NO_DRIVER: "no NVIDIA driver",
        "`libcuda.so.1` is not in a place that the system's loader searches: no driver, no GPU, or a container \
        without GPUs.",
        "Install NVIDIA driver 550 or later; start containers with their GPUs (`docker run --gpus all`); in hosted \
        notebooks, choose a machine with a GPU.";

    D102 DRIVER_INCOMPLETE: "an incomplete NVIDIA driver",
        "The `libcuda` that was found is a stub, or of an old driver.",
        "Install a current driver; take other copies of `libcuda` out of the library path.";

    D103 DRIVER_TOO_OLD: "an NVIDIA driver that is too old",
        "Drivers before 550 do not take the kernels.",
        "Install NVIDIA driver 550 or later.";

    D104 DRIVER_CALL: "a call that the NVIDIA driver refused",
        "The driver says why by a name, such as `CUDA_ERROR_NO_DEVICE`. The advice goes by that name.",
        "Do as the advice in the message says. After a kernel failed (700 to 721) the process must start again; \
        `CUDA_LAUNCH_BLOCKING=1` shows which one it was.";

    D105 GPU_TOO_OLD: "a GPU that is too old",
        "The GPU is older than Turing.",
        "Use a GPU of compute capability 7.5 or later (T4, RTX 20), or the CPU.";

    D106 KERNELS_DAMAGED: "damaged kernels",
        "The kernels are a part of wcodec's library, compressed, and do not decompress: the library's file was \
        changed.",
        "Install wcodec again; report it if that does not help.";

    D107 SHARED_MEMORY: "kernels that do not fit the GPU's shared memory",
        "Chunks or tiles need more shared memory for a block than a multiprocessor has.",
        "Decode on the CPU, encode with narrower tiles, or look for a newer wcodec.";

    D201 GPU_MEMORY: "a GPU that is out of memory",
        "The GPU is full; the message says how much was asked for and how much is free.",
        "End other programs (`nvidia-smi` lists them), free tensors and `torch.cuda.empty_cache()`, or use \
        `residency=\"host\"` or `\"auto\"`.";

    D202 PINNED_MEMORY: "memory that cannot be pinned",
        "Residency `host` pins the compressed bytes in the host's memory, and the system gives no more.",
        "End other programs, raise the limit of locked memory (`ulimit -l`, or `--ulimit memlock=-1` for Docker), or \
        use `residency=\"device\"`.";

    D301 TORCH_WITHOUT_GPU: "torch cannot use the GPU",
        "torch is built without CUDA, or for a CUDA that the driver does not implement, or its own initialization or \
        decoding fails.",
        "Install the build that the message names, or update the driver; `python -c 'import torch; \
        torch.cuda.init()'` shows torch's own words.";

    D401 NO_NVCOMP: "nvCOMP was not found",
        "Coder `zstd` alone needs nvCOMP on a GPU, and it is neither installed nor at the path that was named.",
        "Install the wheel that the message names, or name `libnvcomp.so` itself in `WCODEC_NVCOMP`; or encode with \
        `rans`.";

    D402 NVCOMP_REFUSED: "an nvCOMP that cannot be used",
        "Libraries were found and refused: too new for the driver, or of a version that wcodec does not know. The \
        reasons follow.",
        "Install the wheel that the message names; `nvidia-libnvcomp-cu13` needs driver 580 or later.";

    D403 NVCOMP_FAILED: "a call that nvCOMP refused",
        "nvCOMP refused or failed.",
        "Set `NVCOMP_LOG_LEVEL=5` and `NVCOMP_LOG_FILE=nvcomp.log`, and read the log; try another version; or encode \
        with `rans`.";

    D404 NVCOMP_TOO_OLD: "an nvCOMP without ANS",
        "The Rust crate's benchmarks ask for a coder that came with nvCOMP 6.0.",
        "Install nvCOMP 6.0 or later.";

    D501 WRONG_RESULTS: "a machine that decodes wrongly",
        "`wcodec doctor` encodes and decodes a tensor with each coder, and the results differ.",
        "Report it, with the output of the command.";

    D901 DEVICE_BUG: "a mistake within wcodec, on a device",
        "Only programs that use the Rust crate with wrong numbers can cause it.",
        "From Python or a command it is a bug: report it, with the output of `wcodec doctor`.";
}
