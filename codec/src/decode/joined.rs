//! Tensors whose elements are assembled from the bits of several planes.

use std::ops::Range;

use super::container::Container;
use super::options::DecodeOptions;
use super::stream::{Opened, stream_planes};
use super::tensor::OpenPlane;
use super::whole::Bytes;
use crate::coder::plane::Plane;
use crate::error::Result;
use crate::scheme::lossless::columns;
use crate::scheme::{Fields, join};
use crate::stored::StoredTensor;
use crate::tensor::AlignedBytes;
use crate::trust;

/// Elements that are assembled at once for a sink.
const SLICE: usize = 1 << 20;

/// Receives the decoded planes in order: the index of the first elements, and equally many elements of each plane with
/// the bits of an element that they hold.
type PartsSink<'a> = dyn FnMut(usize, &[(&[i8], &Fields)]) -> Result<()> + Send + 'a;

/// A tensor whose planes have been read.
pub(crate) struct OpenJoined<'a> {
    container: &'a Container,
    tensor: &'a StoredTensor,
    planes: Vec<OpenPlane<'a>>,
    /// The bits that each plane holds.
    fields: Vec<Fields>,
}

impl Container {
    /// Reads the planes of a tensor whose elements are spread over them.
    pub(super) fn open_joined<'a>(
        &'a self,
        tensor: &'a StoredTensor,
        options: &DecodeOptions,
    ) -> Result<OpenJoined<'a>> {
        let planes = tensor.planes.iter().map(|p| self.open_plane(p, options)).collect::<Result<_>>()?;
        Ok(OpenJoined { container: self, tensor, planes, fields: tensor.fields() })
    }
}

impl OpenJoined<'_> {
    /// The planes, structurally checked.
    fn opened(&self) -> Result<Vec<Plane<'_>>> {
        self.planes.iter().map(OpenPlane::plane).collect()
    }

    fn stream(&self, planes: &[Plane<'_>], options: &DecodeOptions, sink: &mut PartsSink<'_>) -> Result<()> {
        let opened: Vec<Opened<'_>> = self.planes.iter().zip(planes).collect();
        stream_planes(&opened, options, &mut |begin, symbols| {
            let parts: Vec<_> = symbols.iter().copied().zip(&self.fields).collect();
            sink(begin, &parts)
        })
    }

    /// All elements in the order of the matrices, unless they would take more memory than an untrusted file may ask
    /// for.
    fn elements(&self, options: &DecodeOptions) -> Result<AlignedBytes> {
        let size = self.tensor.dtype.size();
        let bytes = self.tensor.plane().elements * size;
        self.container.check_decoded(self.tensor, bytes, trust::AS_TRUSTED)?;
        // Memory is allocated once the planes' parts are known to fit their size.
        let planes = self.opened()?;
        let mut out = AlignedBytes::zeroed(bytes)?;
        self.stream(&planes, options, &mut |begin, parts| {
            let n = parts[0].0.len() / parts[0].1.bytes();
            join(parts, size, &mut out[begin * size..(begin + n) * size]);
            Ok(())
        })?;
        Ok(out)
    }

    /// The tensor, row-major in its own shape.
    pub fn read(&self, options: &DecodeOptions) -> Result<AlignedBytes> {
        if self.tensor.transposed() {
            return self.columns(0..self.tensor.plane().form.matrix.2, options);
        }
        self.elements(options)
    }

    /// Some columns of the matrix, one after the other: the rows of a tensor that is stored transposed.
    pub fn columns(&self, range: Range<usize>, options: &DecodeOptions) -> Result<AlignedBytes> {
        let (size, (_, rows, cols)) = (self.tensor.dtype.size(), self.tensor.plane().form.matrix);
        let elements = self.elements(options)?;
        let mut out = AlignedBytes::zeroed(range.len() * rows * size)?;
        columns(&elements, size, cols, range.start, &mut out);
        Ok(out)
    }

    /// Decodes all planes and compares their hashes.
    pub fn check(&self, options: &DecodeOptions) -> Result<()> {
        self.stream(&self.opened()?, options, &mut |_, _| Ok(()))
    }

    /// Passes the tensor's bytes to `sink`, in its own order. For a tensor that is stored transposed, all elements are
    /// held meanwhile.
    pub fn in_order(&self, options: &DecodeOptions, sink: &mut Bytes<'_>) -> Result<()> {
        let size = self.tensor.dtype.size();
        if self.tensor.transposed() {
            let (_, rows, cols) = self.tensor.plane().form.matrix;
            let elements = self.elements(options)?;
            let step = (SLICE / rows).clamp(1, cols);
            let mut buffer = AlignedBytes::zeroed(step * rows * size)?;
            return (0..cols).step_by(step).try_for_each(|col| {
                let out = &mut buffer[..step.min(cols - col) * rows * size];
                columns(&elements, size, cols, col, out);
                sink(out)
            });
        }
        let mut buffer = AlignedBytes::zeroed(SLICE.min(self.tensor.plane().elements) * size)?;
        self.stream(&self.opened()?, options, &mut |_, parts| {
            let n = parts[0].0.len() / parts[0].1.bytes();
            (0..n).step_by(SLICE).try_for_each(|at| {
                let end = n.min(at + SLICE);
                let some =
                    parts.iter().map(|&(held, fields)| (&held[at * fields.bytes()..end * fields.bytes()], fields));
                let some: Vec<_> = some.collect();
                let out = &mut buffer[..(end - at) * size];
                join(&some, size, out);
                sink(out)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{HEADER_BYTES, Header, hash};
    use crate::tensor::Dtype;
    use crate::{Coder, EncodeOptions, ErrorKind, MemorySource, Scheme, encode_to_vec};

    /// The bytes of a container with some text of its index replaced, and the hashes that follow from that.
    fn with_index(bytes: &[u8], changes: &[(&str, &str)]) -> Vec<u8> {
        let container = Container::from_bytes(bytes.to_vec()).unwrap();
        let (header, mut index) = (*container.reader().header(), container.reader().index_json().unwrap());
        for (from, to) in changes {
            assert!(index.contains(from), "{from} in {index}");
            index = index.replace(from, to);
        }
        let mut body = bytes[..header.index_offset as usize].to_vec();
        let file_length = (body.len() + index.len()) as u64;
        let (index_length, index_hash) = (index.len() as u64, hash(index.as_bytes()).0);
        let header = Header { index_length, index_hash, file_length, ..header };
        body[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        [&body, index.as_bytes()].concat()
    }

    /// Elements of 8 bits have no bits outside their plane, whatever the index says.
    #[test]
    fn a_plane_of_more_than_an_element_is_refused() {
        let bytes: Vec<u8> = (0..64 * 512u32)
            .flat_map(|i| (0x3C00 | (i.wrapping_mul(2_654_435_761) >> 16 & 0x80FF) as u16).to_le_bytes())
            .collect();
        let mut source = MemorySource::new();
        source.push("w".into(), Dtype::BF16, vec![64, 512], bytes.into()).unwrap();
        let options = EncodeOptions { scheme: Scheme::Lossless, coder: Coder::Rans, ..Default::default() };
        let made = encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0;
        let changes = [("\"BF16\"", "\"F8_E4M3\""), ("\"fields\":[[7,8],[15,1],[0,7]],", "")];
        let container = Container::from_bytes(with_index(&made, &changes)).unwrap();
        let e = container.read("w", &DecodeOptions { verify: false, ..Default::default() }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format, "{e}");
    }

    /// Memory for tensors that must be held as a whole is bounded, whichever function reads them.
    #[test]
    fn transposed_tensors_do_not_take_more_memory_than_their_bytes_allow() {
        let mut source = MemorySource::new();
        source.push("w".into(), Dtype::F8_E4M3, vec![9000, 8192], vec![0x38; 9000 * 8192].into()).unwrap();
        let transpose = vec!["w".to_owned()];
        let options = EncodeOptions {
            scheme: Scheme::Lossless,
            coder: Coder::Zstd,
            zstd_chunk: Some(1 << 20),
            transpose,
            ..Default::default()
        };
        let made = encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0;
        let container = Container::from_bytes(made).unwrap();
        let options = DecodeOptions::default();
        let whole = container.read_in_order("w", &options, &mut |_| Ok(()));
        let rows = container.read_rows("w", 0..1, None, &options).map(drop);
        for e in [whole.unwrap_err(), rows.unwrap_err()] {
            assert!(e.kind() == ErrorKind::Input && e.to_string().contains("trusted"), "{e}");
        }
        container.check("w", &options).unwrap();
    }
}
