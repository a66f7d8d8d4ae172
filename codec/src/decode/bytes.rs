//! A tensor's stored bytes, for decoders that do not run on the CPU.

use std::sync::Arc;

use super::container::Container;
use super::options::DecodeOptions;
use super::tensor::placed;
use crate::coder::Coder;
use crate::coder::plane::{Coding, PlaneForm, PlaneSource, check_tiles};
use crate::coder::table::Table;
use crate::container::Segment;
use crate::error::{Error, Result};
use crate::stored::{StoredPlane, StoredScales, StoredTensor};
use crate::tensor::AlignedBytes;
use crate::trust;

/// A tensor and its bytes: read, compared with their hashes, and checked for consistency as the format demands.
pub(crate) struct TensorBytes {
    pub tensor: Arc<StoredTensor>,
    /// The scales that symbols are multiplied by, as stored; empty if there are none.
    pub scales: AlignedBytes,
    /// The bytes of each plane.
    pub planes: Vec<PlaneBytes>,
}

/// The tables of a tensor's planes.
pub(crate) type Tables = Vec<Option<Arc<Table>>>;

/// The bytes of a plane, and its table.
pub(crate) struct PlaneBytes {
    pub table: Option<Arc<Table>>,
    pub offsets: AlignedBytes,
    pub data: AlignedBytes,
    pub side: AlignedBytes,
}

impl PlaneBytes {
    /// The plane in the form that coders take.
    pub fn source(&self, form: PlaneForm) -> PlaneSource<'_> {
        PlaneSource { form, data: &self.data, offsets: &self.offsets, side: &self.side, table: self.table.as_deref() }
    }
}

impl Container {
    /// Reads a tensor's bytes and checks everything but the coded bytes themselves.
    ///
    /// Frames of coder `zstd` go to nvCOMP, whose documentation says that it may hang on damaged frames, or write out
    /// of bounds. If the file is not [trusted](crate::OpenOptions::trusted), they are therefore decoded here once and
    /// compared with the plane's hash, whatever `options` say; if it is, only the frames' headers and lengths are
    /// checked.
    ///
    /// # Errors
    /// Damage, or a tensor that is too large for an untrusted file.
    pub(crate) fn bytes_of(&self, name: &str, options: &DecodeOptions) -> Result<TensorBytes> {
        let tensor = Arc::new(self.stored(name)?);
        let read = self.pool(options.threads)?.run(|| self.read_bytes(&tensor, options)).flatten();
        let (planes, scales) = read.map_err(|e| self.reader.name(e.tensor(name)))?;
        Ok(TensorBytes { tensor, scales, planes })
    }

    /// A tensor and its tables, after the checks of [`bytes_of`](Self::bytes_of) that need no coded bytes: those are
    /// read and compared with their hashes later, on demand. For coder `zstd` the checks need them, so they are read
    /// now.
    ///
    /// # Errors
    /// Those of [`bytes_of`](Self::bytes_of).
    pub(crate) fn structure_of(&self, name: &str, options: &DecodeOptions) -> Result<(Arc<StoredTensor>, Tables)> {
        let tensor = Arc::new(self.stored(name)?);
        if tensor.planes.iter().any(|p| p.form.coding.coder() == Coder::Zstd) {
            let bytes = self.bytes_of(name, options)?;
            return Ok((tensor, bytes.planes.into_iter().map(|p| p.table).collect()));
        }
        let check = |plane: &StoredPlane| {
            let at = |e: Error| placed(plane, 0, e);
            let length = |s: Option<&Segment>| s.map_or(0, |s| s.length) as usize;
            let data = length(Some(&plane.data));
            let Coding::Tiles(tiling) = plane.form.coding else {
                let elements = plane.form.elements().map_err(at)?;
                let fits = data == elements;
                return if fits {
                    Ok(None)
                } else {
                    Err(at(coded!(SEGMENT_LENGTH, "{data} bytes in a raw plane of {elements}")))
                };
            };
            let table = plane.table.map(|t| self.table(t, options.verify)).transpose()?;
            let coder = tiling.coder;
            match &table {
                None => return Err(at(coded!(BAD_PLANE, "a plane of coder {coder} without a table"))),
                Some(t) => t.check(coder, tiling.layout).map_err(at)?,
            }
            let read = |s: &Segment| self.reader.segment_with(s, options.verify, &options.cancel);
            let offsets = plane.offsets.as_ref().map(read).transpose()?.unwrap_or_default();
            check_tiles(&plane.form, tiling, &offsets, data, length(plane.side.as_ref())).map_err(at)?;
            Ok(table)
        };
        let decoded = tensor.planes.iter().map(|p| p.elements).fold(0, usize::saturating_add);
        let checked = self.check_decoded(&tensor, decoded, trust::AS_TRUSTED);
        let tables = checked.and_then(|()| tensor.planes.iter().map(check).collect());
        let tables = tables.map_err(|e| self.reader.name(e.tensor(name)))?;
        Ok((tensor, tables))
    }

    fn read_bytes(&self, tensor: &StoredTensor, options: &DecodeOptions) -> Result<(Vec<PlaneBytes>, AlignedBytes)> {
        let decoded = tensor.planes.iter().map(|p| p.elements).fold(0, usize::saturating_add);
        self.check_decoded(tensor, decoded, trust::AS_TRUSTED)?;
        let mut planes = Vec::with_capacity(tensor.planes.len());
        for stored in &tensor.planes {
            let opened = self.open_plane(stored, options)?;
            // Checks the structure: offsets, lengths, numbers of chunks.
            let checked = opened.plane()?;
            checked.check_frames().map_err(|e| opened.at_data(e))?;
            if stored.form.coding.coder() == Coder::Zstd && !self.trusted() {
                let options = DecodeOptions { verify: true, ..options.clone() };
                opened.stream(&checked, &options, &mut |_, _| Ok(()))?;
            }
            drop(checked);
            planes.push(opened.bytes);
        }
        let read = |s: &StoredScales| self.reader.segment_with(&s.segment, options.verify, &options.cancel);
        let scales = tensor.symbol_scales().map(read).transpose()?;
        Ok((planes, scales.map_or_else(|| AlignedBytes::zeroed(0), Ok)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::Layout;
    use crate::container::{HEADER_BYTES, Header, hash};
    use crate::tensor::Dtype;
    use crate::{EncodeOptions, MemorySource, OpenOptions, Scheme, encode_to_container, encode_to_vec};

    fn zstd(chunk: usize) -> EncodeOptions {
        EncodeOptions {
            scheme: Scheme::Raw,
            coder: Coder::Zstd,
            layout: Some(Layout::Byte),
            zstd_chunk: Some(chunk),
            ..Default::default()
        }
    }

    fn source(bytes: Vec<u8>) -> MemorySource<'static> {
        let mut source = MemorySource::new();
        source.push("w".into(), Dtype::U8, vec![bytes.len()], bytes.into()).unwrap();
        source
    }

    /// The container with byte `at` of the coded bytes changed, and all hashes updated except that of the decoded
    /// plane.
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

    /// However sound a frame's header looks, nvCOMP gets it unverified only if the user trusts the file.
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
                let e = container.bytes_of("w", options).err().expect("damage is found");
                assert!(matches!(e.kind(), crate::ErrorKind::Corrupt | crate::ErrorKind::Format), "{e}");
            }
            let trusted = Container::from_bytes_with(bytes, &OpenOptions { trusted: true, ..Default::default() });
            passed += usize::from(trusted.unwrap().bytes_of("w", &options[0]).is_ok());
        }
        assert!(passed > 20, "{passed}: without that check they would have been passed on");
        assert!(options.iter().all(|o| whole.bytes_of("w", o).is_ok()));
    }

    #[test]
    fn what_this_process_made_is_trusted() {
        let source = source(vec![7; 80 << 20]);
        let made = encode_to_container(&source, &zstd(1 << 20), &mut |_| Ok(())).unwrap().0;
        assert!(made.trusted() && made.bytes_of("w", &DecodeOptions::default()).is_ok());
        let read = Container::from_bytes(encode_to_vec(&source, &zstd(1 << 20), &mut |_| Ok(())).unwrap().0).unwrap();
        let e = read.bytes_of("w", &DecodeOptions::default()).err();
        let e = e.unwrap_or_else(|| panic!("{:?}", read.info("w")));
        assert!(e.kind() == crate::ErrorKind::Input && e.to_string().contains("trusted=True"), "{e}");
    }
}
