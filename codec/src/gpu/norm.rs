//! Norms of vectors by a kernel of their own: behind products, with a residual, and LayerNorms in front of them.

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, Parameters};

use super::device::Device;
use super::kernel::Kernel;
use super::stream::Stream;
use crate::coder::LANES;
use crate::error::Result;
use crate::tensor::Dtype;

/// Kinds of norms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum NormKind {
    /// RMSNorm: a vector is divided by the root of the mean of its squares.
    #[default]
    Rms = abi::NORM_RMS,
    /// LayerNorm: its mean is taken off before.
    Layer = abi::NORM_LAYER,
}

/// A norm, whose elements are of the vectors' dtype. Addresses are the device's; 0 is for what is not there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Norm {
    /// Whether the mean is taken off.
    pub kind: NormKind,
    /// Is added to the mean of the squares.
    pub epsilon: f32,
    /// Address of a factor for each column.
    pub gain: u64,
    /// Is added to the factors.
    pub gain_offset: f32,
    /// Address of what is added for each column.
    pub bias: u64,
}

/// Vectors whose norms are wanted, and what becomes of these. Addresses are the device's; vectors of one array lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct NormVectors {
    /// Dtype of all elements: `F16` or `BF16`.
    pub dtype: Dtype,
    /// Number of vectors.
    pub count: usize,
    /// Elements of a vector.
    pub cols: usize,
    /// Address of the vectors.
    pub x: u64,
    /// Address of the results: the norms times `scale`, and the residual. It may be that of the vectors or of the residual.
    pub y: u64,
    /// By what norms are multiplied.
    pub scale: f32,
    /// Address of what is added; 0 for nothing.
    pub residual: u64,
    /// Address of the results, as they were rounded, times the gain of the norm that comes next: what products with that norm multiply with. 0 for
    /// none.
    pub scaled: u64,
    /// Address of that gain.
    pub next_gain: u64,
    /// Is added to it.
    pub next_offset: f32,
    /// By what both are multiplied: a power of two.
    pub next_scale: f32,
}

/// The kernel that does norms, on a device.
#[derive(Clone, Debug)]
pub struct Norms {
    kernel: Kernel,
}

impl Norms {
    /// Loads it.
    ///
    /// # Errors
    /// The driver loads none of its images.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { kernel: device.kernel(Module::Util, "wcodec_norm")? })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.kernel.device()
    }

    /// Puts norms into the stream, a block of threads for each vector. Neither allocates nor waits, and can be captured.
    ///
    /// # Safety
    /// The memory at all addresses is alive until the work is done, is as large as there are vectors, or columns, and nothing else writes to it
    /// meanwhile.
    ///
    /// # Errors
    /// Elements of another dtype, or vectors too long for the kernel to count.
    pub unsafe fn run(&self, norm: &Norm, vectors: &NormVectors, stream: &Stream) -> Result<()> {
        let Some((params, grid, threads, shared)) = launch(norm, vectors)? else { return Ok(()) };
        // SAFETY: as the caller promises; the kernel waits for the work before it.
        unsafe { self.kernel.launch(grid, threads, shared, params.as_bytes(), stream, true) }
    }
}

/// Parameters, blocks, threads of a block, and bytes of its shared memory; nothing where there is nothing to do.
pub(super) fn launch(norm: &Norm, vectors: &NormVectors) -> Result<Option<(abi::NormBatch, u32, u32, u32)>> {
    let bf16 = match vectors.dtype {
        Dtype::F16 => 0,
        Dtype::BF16 => 1,
        other => {
            return Err(coded!(NO_FUSED_KERNEL, "no kernel has norms of {other}").advice("use F16 or BF16"));
        }
    };
    let (Ok(grid), Ok(cols)) = (i32::try_from(vectors.count), i32::try_from(vectors.cols)) else {
        return Err(coded!(NO_FUSED_KERNEL, "{} vectors of {} elements", vectors.count, vectors.cols)
            .advice("compute the norms of fewer at once"));
    };
    if grid == 0 || cols == 0 {
        return Ok(None);
    }
    let all = vectors.x | vectors.y | vectors.residual | vectors.scaled | vectors.next_gain | norm.gain | norm.bias;
    let params = abi::NormBatch {
        x: vectors.x,
        residual: vectors.residual,
        y: vectors.y,
        gain: norm.gain,
        bias: norm.bias,
        scaled: vectors.scaled,
        next_gain: vectors.next_gain,
        cols: cols as u32,
        bf16,
        kind: norm.kind as u32,
        vector: u32::from(all.is_multiple_of(16) && vectors.cols.is_multiple_of(8)),
        epsilon: norm.epsilon.to_bits(),
        share: (1.0 / vectors.cols as f32).to_bits(),
        gain_offset: norm.gain_offset.to_bits(),
        result_scale: vectors.scale.to_bits(),
        next_scale: vectors.next_scale.to_bits(),
        next_offset: (vectors.next_offset * vectors.next_scale).to_bits(),
    };
    let threads = vectors.cols.div_ceil(8).next_multiple_of(LANES).min(abi::NORM_THREADS);
    let shared = abi::TABLE_AT + threads / LANES * 4;
    Ok(Some((params, grid as u32, threads as u32, shared as u32)))
}
