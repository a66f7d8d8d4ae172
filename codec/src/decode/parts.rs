//! A tensor's stored parts, for decoders that are not the CPU's.

use std::sync::Arc;

use super::tensor::need;
use super::{Container, DecodeOptions};
use crate::coder::table::Table;
use crate::coder::tile::TileGeometry;
use crate::coder::{Coder, Filter, Layout};
use crate::container::{PlaneEntry, Segment, TensorEntry};
use crate::error::{Error, Result};
use crate::scheme::int8::Granularity;
use crate::tensor::{AlignedBytes, Dtype};
use crate::trust;

/// The parts of a tensor: read, compared with their hashes, and known to fit each other as the format demands.
pub(crate) struct Parts {
    pub name: String,
    pub dtype: Dtype,
    /// Symbols, or bytes where elements are wider than 8 bits.
    pub elements: usize,
    /// Matrices, rows, columns; of a tensor that is not seen as matrices its first dimension, and the bytes of an entry of that.
    pub matrix: (usize, usize, usize),
    /// Entries of the first dimension.
    pub entries: usize,
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

/// What the index says of how large the parts of a tensor are on a device. They are only claims until the parts are read.
pub(crate) struct Outline {
    /// As in [`Parts`].
    pub matrix: (usize, usize, usize),
    pub entries: usize,
    /// Lengths of scales, offsets, data and side plane, bytes.
    pub lengths: [usize; 4],
    /// Bytes of scales that a row has of its own.
    pub scales_per_row: usize,
    pub coding: OutlineCoding,
}

/// What is decoded together, in an [`Outline`].
pub(crate) enum OutlineCoding {
    Raw,
    /// Decoded bytes of a frame, frames, bytes of the longest.
    Zstd {
        chunk: usize,
        frames: usize,
        longest: usize,
    },
    /// Tiles of a strip, strips, bytes of the longest chunk; number, layout and bits of the table.
    Tiles {
        tiles: usize,
        strips: usize,
        longest: usize,
        table: (usize, Layout, u32),
    },
}

impl Container {
    /// What the index says of a tensor; nothing is read.
    pub(crate) fn outline(&self, entry: &TensorEntry) -> Result<Outline> {
        let form = self.form(entry)?;
        let plane = form.plane;
        let entries = entry.shape.first().copied().unwrap_or(1);
        let matrix = match entry.matrix {
            None if form.elements > 0 => (1, entries, form.elements / entries),
            _ => form.matrix,
        };
        let scales = self.scale_form(entry)?.filter(|_| entry.scheme == "int8");
        let length = |s: Option<&Segment>| usize::try_from(s.map_or(0, |s| s.length)).unwrap_or(usize::MAX);
        let longest = plane.max_chunk.unwrap_or(0);
        let coding = match form.coder {
            Coder::Raw => OutlineCoding::Raw,
            Coder::Zstd => {
                let chunk = need(plane.chunk, "chunk")?.max(1);
                OutlineCoding::Zstd { chunk, frames: form.elements.div_ceil(chunk), longest }
            }
            Coder::Rans | Coder::Huffman => {
                let (count, rows, cols) = matrix;
                let geometry = TileGeometry::new(count, rows, cols, need(plane.tile, "tile")?)?;
                let number = need(plane.table, "table")?;
                let table = (number, layout_of(plane)?, self.reader.index().tables[number].bits);
                OutlineCoding::Tiles { tiles: geometry.tiles(), strips: geometry.strips(), longest, table }
            }
        };
        Ok(Outline {
            matrix,
            entries,
            lengths: [
                length(scales.map(|(_, s)| s)),
                length(plane.offsets.as_ref()),
                length(Some(&plane.data)),
                length(plane.side.as_ref()),
            ],
            scales_per_row: scales.map_or(0, |(g, _)| 4 * g.scales_per_row(matrix.2)),
            coding,
        })
    }

    /// Reads a tensor's parts and checks everything but the coded bytes themselves.
    ///
    /// Those of coder `zstd` go to nvCOMP, whose documentation says that it may hang on damaged frames, or write elsewhere. Of a file that
    /// is not [trusted](crate::OpenOptions::trusted) they are therefore decoded here once, and compared with the plane's hash, whatever
    /// `options` say; of one that is, the frames' headers and lengths alone are checked.
    ///
    /// # Errors
    /// Damage, or a tensor that is too large for a file that is not trusted.
    pub(crate) fn parts(&self, name: &str, options: &DecodeOptions) -> Result<Parts> {
        self.with_tensor(name, options, |entry| self.read_parts(entry, options))
    }

    fn read_parts(&self, entry: &TensorEntry, options: &DecodeOptions) -> Result<Parts> {
        let outline = self.outline(entry)?;
        self.check_decoded(entry, self.form(entry)?.elements, trust::AS_TRUSTED)?;
        let opened = self.open_tensor(entry, options)?;
        // Checks the structure: offsets, lengths, numbers of chunks.
        let checked = opened.plane()?;
        checked.check_frames().map_err(|e| opened.at_data(e))?;
        if opened.coder == Coder::Zstd && !self.trusted() {
            let options = DecodeOptions { verify: true, ..options.clone() };
            opened.stream(&checked, &options, &mut |_, _| Ok(()))?;
        }
        let (granularity, scales) = match self.read_scales(entry, options)? {
            Some((g, scales)) if entry.scheme == "int8" => {
                (Some(g), AlignedBytes::copy_of(bytemuck::cast_slice(&scales))?)
            }
            _ => (None, AlignedBytes::default()),
        };
        let plane = &entry.planes[0];
        let tiled = matches!(opened.coder, Coder::Rans | Coder::Huffman);
        let layout = if tiled { layout_of(plane)? } else { Layout::Byte };
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
            matrix: outline.matrix,
            entries: outline.entries,
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

fn layout_of(plane: &PlaneEntry) -> Result<Layout> {
    Layout::from_name(plane.layout.as_deref().unwrap_or(Layout::Byte.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{HEADER_BYTES, Header, hash};
    use crate::{EncodeOptions, MemorySource, OpenOptions, Scheme, encode_to_container, encode_to_vec};

    fn zstd(chunk: usize) -> EncodeOptions {
        EncodeOptions {
            scheme: Scheme::Raw,
            coder: Coder::Zstd,
            layout: Layout::Byte,
            zstd_chunk: Some(chunk),
            ..Default::default()
        }
    }

    fn source(bytes: Vec<u8>) -> MemorySource<'static> {
        let mut source = MemorySource::new();
        source.push("w".into(), Dtype::U8, vec![bytes.len()], bytes.into()).unwrap();
        source
    }

    /// With byte `at` of the coded bytes changed, and every hash but that of the decoded plane right.
    fn damaged(bytes: &[u8], at: usize) -> Vec<u8> {
        let container = Container::from_bytes(bytes.to_vec()).unwrap();
        let data = container.reader().index().tensors[0].planes[0].data;
        let (header, mut index) = (*container.reader().header(), container.reader().index_json().unwrap());
        let mut body = bytes[..header.index_offset as usize].to_vec();
        let coded = data.offset as usize..(data.offset + data.length) as usize;
        let before = hash(&body[coded.clone()]).to_string();
        body[coded.clone()][at] ^= 0x10;
        assert_eq!(index.matches(&before).count(), 1);
        index = index.replace(&before, &hash(&body[coded]).to_string());
        let header = Header { index_hash: hash(index.as_bytes()).0, ..header };
        body[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        [&body, index.as_bytes()].concat()
    }

    /// Whatever a frame holds behind a sound header, nvCOMP gets it only by the user's word.
    #[test]
    fn frames_are_decoded_here_before_a_device_gets_them() {
        let made = source((0..100_000u32).map(|i| (i.wrapping_mul(i) >> 9) as u8 & 31).collect());
        let bytes = encode_to_vec(&made, &zstd(16 << 10), &mut |_| Ok(())).unwrap().0;
        let options = [true, false].map(|verify| DecodeOptions { verify, ..Default::default() });
        let whole = Container::from_bytes(bytes.clone()).unwrap();
        let length = whole.reader().index().tensors[0].planes[0].data.length as usize;
        let mut passed = 0;
        for at in (20..length).step_by(length / 40) {
            let bytes = damaged(&bytes, at);
            let container = Container::from_bytes(bytes.clone()).unwrap();
            for options in &options {
                let e = container.parts("w", options).err().expect("damage is found");
                assert!(matches!(e.kind(), crate::ErrorKind::Corrupt | crate::ErrorKind::Format), "{e}");
            }
            let trusted = Container::from_bytes_with(bytes, &OpenOptions { trusted: true, ..Default::default() });
            passed += usize::from(trusted.unwrap().parts("w", &options[0]).is_ok());
        }
        assert!(passed > 20, "{passed}: without that check they would have been passed on");
        assert!(options.iter().all(|o| whole.parts("w", o).is_ok()));
    }

    #[test]
    fn what_this_process_made_is_trusted() {
        let source = source(vec![7; 80 << 20]);
        let made = encode_to_container(&source, &zstd(1 << 20), &mut |_| Ok(())).unwrap().0;
        assert!(made.trusted() && made.parts("w", &DecodeOptions::default()).is_ok());
        let read = Container::from_bytes(encode_to_vec(&source, &zstd(1 << 20), &mut |_| Ok(())).unwrap().0).unwrap();
        let e = read.parts("w", &DecodeOptions::default()).err();
        let e = e.unwrap_or_else(|| panic!("{:?}", read.info("w")));
        assert!(e.kind() == crate::ErrorKind::Input && e.to_string().contains("trusted=True"), "{e}");
    }
}
