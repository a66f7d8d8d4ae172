//! Launches that gather rows by indices in the device's memory, as for embeddings.

use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind};

use super::{Limits, Method, SharedMemory, TensorPlan, TilesItem};
use crate::coder::LANES;
use crate::error::Result;
use crate::gpu::work_item::RowIds;

/// The reason why no kernel gathers rows of a tensor by indices that only the device knows; none if one does.
pub fn can_look_up(plan: &TensorPlan) -> Option<String> {
    let tensor = &plan.tensor;
    if tensor.shape.len() != 2 || plan.elements() == 0 {
        return Some("no matrix".to_owned());
    }
    if tensor.transposed() {
        return Some("stored transposed".to_owned());
    }
    let other = plan.planes.iter().zip(&tensor.planes).find(|(method, _)| !matches!(method, Method::Tiles(_)));
    if let Some((_, stored)) = other {
        return Some(format!("coder {}", stored.form.coding.coder().name()));
    }
    if plan.matrix != (1, tensor.shape[0], tensor.shape[1]) {
        return Some("stored as another matrix".to_owned());
    }
    let small = !tensor.scheme.makes_symbols() && plan.output(tensor.dtype).is_ok_and(|k| k == OutputKind::Int8);
    small.then(|| format!("elements of {}", tensor.dtype))
}

/// One launch of a kernel that gathers rows, but for where indices and results are.
#[derive(Clone, Debug)]
pub struct LookupLaunch {
    /// The tensor's name.
    name: String,
    pub module: Module,
    pub kernel: String,
    params: Box<abi::RowsBatch>,
    shared_memory: SharedMemory,
    /// As `SharedMemory::shape` has it.
    shape: (usize, usize, usize),
    multiprocessors: usize,
    /// Whether rows are multiples of 16 bytes.
    aligned: bool,
}

impl LookupLaunch {
    /// The launch for a plane of a tensor for which [`can_look_up`] gives no reason. The item is of all its rows; its `out` is not looked at.
    ///
    /// # Errors
    /// Chunks are too large for the device, or elements are no floats of 16 or 32 bits.
    pub fn new(item: &TilesItem<'_>, limits: Limits) -> Result<Self> {
        let (tensor, kind) = (item.tensor, item.kind);
        if kind == OutputKind::Int8 {
            return Err(coded!(BAD_LOOKUP, "rows are looked up as F32, F16 or BF16, not as bytes")
                .tensor(tensor.name())
                .advice("name one of these"));
        }
        let key = item.key();
        let module = match key.module {
            Module::Rans => Module::Ransrows,
            Module::Huffman => Module::Huffmanrows,
            other => unreachable!("{} decodes no tiles", other.name()),
        };
        let shared_memory = SharedMemory::new(&[*item]);
        let (blocks, most, buffers) = shared_memory.shape(limits).map_err(|e| e.tensor(tensor.name()))?;
        let params = abi::RowsBatch {
            kind: kind as u32,
            barriers: shared_memory.barriers() as u32,
            buffer_bytes: shared_memory.buffer as u32,
            buffers_per_warp: buffers as u32,
            tiles: item.params(0),
            fields: item.tiles.bits.map(|bits| bits.fields(kind)).unwrap_or_default(),
            ..Default::default()
        };
        Ok(Self {
            name: tensor.name().to_owned(),
            module,
            kernel: key.mode.lookup_kernel(key.module),
            params: Box::new(params),
            shared_memory,
            shape: (blocks, most, buffers),
            multiprocessors: limits.multiprocessors,
            aligned: tensor.is_vector(0, kind),
        })
    }

    /// Shared memory that a launch takes at most, bytes.
    pub fn most_shared(&self) -> u32 {
        let (_, most, buffers) = self.shape;
        self.shared_memory.bytes(most, buffers) as u32
    }

    /// The launch for these indices, of which there are some: parameters, blocks, threads, and shared memory.
    ///
    /// # Errors
    /// There are too many, or something does not begin at a multiple of its elements' size.
    pub fn at(&self, ids: RowIds, out: u64) -> Result<(abi::RowsBatch, u32, u32, u32)> {
        let (blocks, most, buffers) = self.shape;
        let chunks = ids.count.checked_mul(self.params.tiles.tiles as usize).filter(|&n| n <= i32::MAX as usize);
        let Some(chunks) = chunks else {
            let what = format!("{} rows, which are more than a launch looks up", ids.count);
            return Err(coded!(BAD_LOOKUP, what).tensor(&self.name).advice("look up fewer at once"));
        };
        let element = if self.params.kind == OutputKind::F32 as u32 { 4 } else { 2 };
        if !ids.ptr.is_multiple_of(if ids.wide { 8 } else { 4 }) || !out.is_multiple_of(element) {
            let what = format!("numbers of rows at {:#x} and an output at {out:#x}", ids.ptr);
            let advice = "both begin at multiples of their elements' size";
            return Err(coded!(BAD_LOOKUP, what).tensor(&self.name).advice(advice));
        }
        let grid = chunks.clamp(1, self.multiprocessors * blocks);
        let warps = chunks.div_ceil(grid).clamp(1, most);
        let mut params = *self.params;
        (params.ids, params.wide, params.count) = (ids.ptr, u32::from(ids.wide), ids.count as u32);
        params.buffers = self.shared_memory.buffers_at(warps) as u32;
        params.tiles.output.out = out;
        params.tiles.vector = u8::from(self.aligned && out.is_multiple_of(16));
        Ok((params, grid as u32, (warps * LANES) as u32, self.shared_memory.bytes(warps, buffers) as u32))
    }
}
