// The operators that exllamav3's quantizer and its decoder of whole matrices call, as torch.ops.exl3. They are compiled
// beside the sources of the package itself (exl3_.py names these). Of its codebooks only mul1 is there, which its
// converter takes by default: all others would take minutes to compile.
#include <torch/library.h>

#include "quant/comp_units/quantize_tiles_instances.cuh"
#include "quant/frac.cuh"
#include "quant/pack.cuh"
#include "quant/quantize.cuh"
#include "quant/quantize_tiles_kernel.cuh"
#include "quant/reconstruct.cuh"

using Kernel = fp_quantize_tiles_kernel;

#define NONE(K)                                                                                                        \
    Kernel quantize_tiles_kernel_k##K##_cb0(bool) { return nullptr; }                                                  \
    Kernel quantize_tiles_kernel_k##K##_cb1(bool) { return nullptr; }                                                  \
    Kernel quantize_tiles_kernel_k##K##_cb2_l160(bool) { return nullptr; }
NONE(1) NONE(2) NONE(3) NONE(4) NONE(5) NONE(6) NONE(7) NONE(8)

// The other form of these kernels ("optimized") is for other chips than those of data centres.
#define SOME(K)                                                                                                        \
    Kernel quantize_tiles_kernel_k##K##_cb2(bool optimized)                                                            \
    {                                                                                                                  \
        return optimized ? nullptr : quantize_tiles_kernel<K, 2>;                                                      \
    }
SOME(1) SOME(2) SOME(3) SOME(4) SOME(5) SOME(6) SOME(7) SOME(8)

using at::Tensor;

static std::tuple<bool, int64_t> scratch(int64_t device, int64_t bits, bool mcg, bool mul1, int64_t length)
{
    return quantize_tiles_scratch((int) device, (int) bits, mcg, mul1, (int) length);
}

static void tiles(Tensor in, Tensor out, Tensor states, Tensor costs, Tensor edges, int64_t bits, bool mcg, bool mul1)
{
    quantize_tiles(in, out, states, costs, edges, (int) bits, mcg, mul1);
}

static void tiles_frac(Tensor in, Tensor out, Tensor states, Tensor costs, Tensor edges, int64_t bits, int64_t mask)
{
    quantize_tiles_frac(in, out, states, costs, edges, (int) bits, mask);
}

static void pack(Tensor packed, Tensor states, int64_t bits) { pack_trellis(packed, states, (int) bits); }

static void pack_frac(Tensor packed, Tensor states, int64_t bits, int64_t mask)
{
    pack_trellis_frac(packed, states, (int) bits, mask);
}

static void decode_matrix(
    Tensor out, Tensor packed, Tensor suh, Tensor svh, double bits, bool mcg, bool mul1, int64_t column)
{
    reconstruct_had_slice(out, packed, suh, svh, (float) bits, mcg, mul1, column);
}

TORCH_LIBRARY(exl3, m)
{
    m.def("quantize_tiles_scratch(int d, int k, bool mcg, bool mul1, int n) -> (bool, int)", &scratch);
    m.def(
        "quantize_tiles(Tensor x, Tensor(a!) y, Tensor(b!) s, Tensor(c!) c, Tensor(d!) e, int k, bool mcg, bool mul1) "
        "-> ()",
        &tiles);
    m.def(
        "quantize_tiles_frac(Tensor x, Tensor(a!) y, Tensor(b!) s, Tensor(c!) c, Tensor(d!) e, int k, int mask) -> ()",
        &tiles_frac);
    m.def("pack_trellis(Tensor(a!) p, Tensor s, int k) -> ()", &pack);
    m.def("pack_trellis_frac(Tensor(a!) p, Tensor s, int k, int mask) -> ()", &pack_frac);
    m.def(
        "reconstruct_had_slice(Tensor(a!) y, Tensor p, Tensor suh, Tensor svh, float k, bool mcg, bool mul1, int n) "
        "-> ()",
        &decode_matrix);
}
