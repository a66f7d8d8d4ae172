//! A tensor's stored parts, for decoders that are not the CPU's.

use std::sync::Arc;

use super::{Container, DecodeOptions};
use crate::coder::table::Table;
use crate::coder::{Coder, Filter, Layout};
use crate::container::TensorEntry;
use crate::error::{Error, Result};
use crate::scheme::int8::Granularity;
use crate::tensor::{AlignedBytes, Dtype};

/// The parts of a tensor: read, compared with their hashes, and known to fit each other as the format demands.
pub(crate) struct Parts {
    pub name: String,
    pub dtype: Dtype,
    /// Symbols, or bytes where elements are wider than 8 bits.
    pub elements: usize,
    /// Matrices, rows, columns.
    pub matrix: (usize, usize, usize),
    pub transposed: bool,
    /// Of scheme `int8`: what shares a scale.
    pub granularity: Option<Granularity>,
    pub coder: Coder,
    pub filter: Filter,
    pub layout: Layout,
    pub shift: u32,
    /// Columns of a tile.
    pub tile: usize,
    /// Number of the table, and the table.
    pub table: Option<(usize, Arc<Table>)>,
    pub max_chunk: usize,
    /// Decoded bytes of a frame of `zstd`.
    pub zstd_chunk: usize,
    /// Where `data` begins in the file.
    pub data_offset: u64,
    pub scales: AlignedBytes,
    pub offsets: AlignedBytes,
    pub data: AlignedBytes,
    pub side: AlignedBytes,
}

impl Container {
    /// Reads a tensor's parts and checks everything but the coded bytes themselves; of zstd frames their headers and lengths too,
    /// which nvCOMP would follow wherever they lead.
    pub(crate) fn parts(&self, name: &str, options: &DecodeOptions) -> Result<Parts> {
        self.with_tensor(name, options, |entry| self.read_parts(entry, options))
    }

    fn read_parts(&self, entry: &TensorEntry, options: &DecodeOptions) -> Result<Parts> {
        let opened = self.open_tensor(entry, options)?;
        // Checks the structure: offsets, lengths, numbers of chunks.
        opened.plane()?.check_frames().map_err(|e| opened.at_data(e))?;
        let (granularity, scales) = match self.read_scales(entry, options)? {
            Some((g, scales)) if entry.scheme == "int8" => {
                (Some(g), AlignedBytes::copy_of(bytemuck::cast_slice(&scales))?)
            }
            _ => (None, AlignedBytes::default()),
        };
        let plane = &entry.planes[0];
        let tiled = matches!(opened.coder, Coder::Rans | Coder::Huffman);
        let layout = match &plane.layout {
            Some(name) if tiled => Layout::from_name(name)?,
            _ => Layout::Byte,
        };
        let number = plane.table.filter(|_| tiled);
        let table = match (number, &opened.table) {
            (Some(n), Some(table)) => Some((n, table.clone())),
            (None, _) => None,
            _ => return Err(Error::format("a plane without 'table'")),
        };
        Ok(Parts {
            name: entry.name.clone(),
            dtype: opened.dtype,
            elements: opened.elements,
            matrix: opened.matrix,
            transposed: opened.row_axis == 1,
            granularity,
            coder: opened.coder,
            filter: plane.filter.as_deref().map_or(Ok(Filter::None), Filter::from_name)?,
            layout,
            shift: if layout == Layout::Pair { plane.shift.unwrap_or(0) } else { 0 },
            tile: plane.tile.unwrap_or(0),
            table,
            max_chunk: plane.max_chunk.unwrap_or(0),
            zstd_chunk: plane.chunk.unwrap_or(0),
            data_offset: plane.data.offset,
            scales,
            offsets: opened.offsets,
            data: opened.data,
            side: opened.side,
        })
    }
}
