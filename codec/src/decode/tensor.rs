//! Decodes one tensor.

use half::{bf16, f16};
use rayon::prelude::*;

use super::bytes::PlaneBytes;
use super::container::Container;
use super::options::DecodeOptions;
use crate::coder::Isa;
use crate::coder::plane::{Plane, Scratch};
use crate::container::{Hash, Segment, hash};
use crate::error::{Error, ErrorKind, Result};
use crate::scheme::int8::{Scales, Weight};
use crate::stored::{ScaleValues, StoredPlane, StoredScales, StoredTensor};
use crate::tensor::{AlignedBytes, Dtype, split, try_vec};
use crate::trust;

/// A plane whose segments have been read.
pub(crate) struct OpenPlane<'a> {
    pub stored: &'a StoredPlane,
    pub bytes: PlaneBytes,
    isa: Isa,
}

impl Container {
    /// Symbols of a tensor, matrix after matrix, row-major: scheme `int8`, or `raw` with 8-bit elements.
    ///
    /// # Errors
    /// The tensor has no symbols, is damaged, or would take more memory than a file that is not
    /// [trusted](crate::OpenOptions::trusted) may ask for.
    pub fn symbols(&self, name: &str, options: &DecodeOptions) -> Result<Vec<i8>> {
        self.with_tensor(name, options, |t| {
            if !t.has_symbols() {
                return Err(no_symbols(t));
            }
            self.check_decoded(t, t.plane().elements, trust::OR_TO_A_FILE)?;
            self.open_plane(t.plane(), options)?.symbols(options)
        })
    }

    /// Scales of a tensor of scheme `int8` or `rate`: one per row, block or tensor.
    ///
    /// # Errors
    /// The tensor has no scales, or they are damaged.
    pub fn scales(&self, name: &str) -> Result<Vec<f32>> {
        self.with_tensor(name, &DecodeOptions::default(), |t| match &t.scales {
            Some(scales) => Ok(self.read_scales(scales, &DecodeOptions::default())?.scales),
            None => {
                Err(coded!(NOT_QUANTIZED, "a tensor of scheme {} has no scales", t.scheme).advice("read its values"))
            }
        })
    }

    /// The factors of a tensor's columns, matrix by matrix, that its values are multiplied by: some tensors of scheme
    /// `rate` have them. `None` if it has none.
    ///
    /// # Errors
    /// They are damaged.
    pub fn columns(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.with_tensor(name, &DecodeOptions::default(), |t| match t.symbol_scales().filter(|s| s.columns) {
            Some(scales) => Ok(self.read_scales(scales, &DecodeOptions::default())?.columns),
            None => Ok(None),
        })
    }

    /// The tensor in its own dtype and shape, row-major little-endian; dequantized if it was quantized.
    ///
    /// # Errors
    /// The tensor is damaged, or would take more memory than a file that is not [trusted](crate::OpenOptions::trusted)
    /// may ask for.
    pub fn read(&self, name: &str, options: &DecodeOptions) -> Result<AlignedBytes> {
        self.with_tensor(name, options, |t| self.read_tensor(t, t.dtype, options))
    }

    /// The tensor as another dtype: `F32`, `F16` or `BF16` for scheme `int8`.
    ///
    /// # Errors
    /// The tensor cannot be converted to `dtype`, is damaged, or would take more memory than a file that is not
    /// [trusted](crate::OpenOptions::trusted) may ask for.
    pub fn read_as(&self, name: &str, dtype: Dtype, options: &DecodeOptions) -> Result<AlignedBytes> {
        self.with_tensor(name, options, |t| self.read_tensor(t, dtype, options))
    }

    /// Reads a plane's segments.
    pub(super) fn open_plane<'a>(&self, stored: &'a StoredPlane, options: &DecodeOptions) -> Result<OpenPlane<'a>> {
        let verify = options.verify;
        let read = |s: &Option<Segment>| match s {
            Some(s) => self.reader.segment_with(s, verify, &options.cancel),
            None => Ok(AlignedBytes::default()),
        };
        let isa = options.isa()?;
        let bytes = PlaneBytes {
            table: stored.table.map(|t| self.table(t, verify)).transpose()?,
            data: self.reader.segment_with(&stored.data, verify, &options.cancel)?,
            offsets: read(&stored.offsets)?,
            side: read(&stored.side)?,
        };
        Ok(OpenPlane { stored, bytes, isa })
    }

    /// Reads scales.
    pub(crate) fn read_scales(&self, scales: &StoredScales, options: &DecodeOptions) -> Result<ScaleValues> {
        Ok(scales.values(&self.reader.segment_with(&scales.segment, options.verify, &options.cancel)?))
    }

    /// Refuses a tensor that would take more memory, `decoded` bytes, than an untrusted file may ask for.
    pub(crate) fn check_decoded(&self, tensor: &StoredTensor, decoded: usize, advice: &'static str) -> Result<()> {
        trust::check_decoded(self.trusted(), tensor.stored_bytes, decoded as u64, advice)
    }

    fn read_tensor(&self, tensor: &StoredTensor, dtype: Dtype, options: &DecodeOptions) -> Result<AlignedBytes> {
        tensor.check_dtype(dtype, false)?;
        let bytes = tensor.plane().elements.checked_mul(tensor.bytes_of_symbol(dtype));
        let bytes = bytes.ok_or_else(|| coded!(BAD_SIZES, "the tensor is too large"))?;
        self.check_decoded(tensor, bytes, trust::OR_TO_A_FILE)?;
        if tensor.is_joined() {
            return self.open_joined(tensor, options)?.read(options);
        }
        let opened = self.open_plane(tensor.plane(), options)?;
        // Scales are read in any case, because those that nothing is multiplied by may be damaged, too.
        let scales = tensor.scales.as_ref().map(|s| self.read_scales(s, options)).transpose()?;
        let (Some(stored), Some(scales)) = (tensor.symbol_scales(), scales) else {
            let plane = opened.plane()?;
            let mut out = AlignedBytes::zeroed(tensor.plane().elements)?;
            opened.decode_into(&plane, bytemuck::cast_slice_mut(&mut out), options)?;
            return Ok(out);
        };
        let scales = stored.scales(&scales);
        match dtype {
            Dtype::F32 => opened.dequantize::<f32>(&scales, tensor.transposed(), options),
            Dtype::F16 => opened.dequantize::<f16>(&scales, tensor.transposed(), options),
            _ => opened.dequantize::<bf16>(&scales, tensor.transposed(), options),
        }
    }
}

/// The error for a tensor without symbols.
pub(super) fn no_symbols(tensor: &StoredTensor) -> Error {
    let StoredTensor { dtype, scheme, .. } = tensor;
    coded!(NOT_QUANTIZED, "a {dtype} tensor of scheme {scheme} has no symbols").advice("read its values")
}

/// An error with its position in the file: coders count from the start of their input, which begins at `base` of the
/// data segment.
pub(super) fn placed(plane: &StoredPlane, base: usize, error: Error) -> Error {
    if error.kind() == ErrorKind::Cancelled {
        return error;
    }
    let place = plane.data.offset + base as u64 + error.byte_offset().unwrap_or(0);
    let placed = error.code().error(error.message()).offset(place);
    match error.kind() {
        ErrorKind::Corrupt => placed.advice("restore the file, or encode the model again"),
        _ => placed,
    }
}

impl OpenPlane<'_> {
    /// The plane, structurally checked.
    pub fn plane(&self) -> Result<Plane<'_>> {
        Plane::new(self.bytes.source(self.stored.form), self.isa).map_err(|e| self.at_data(e))
    }

    /// A coder's error, with its position in the file.
    pub fn at_data(&self, error: Error) -> Error {
        placed(self.stored, 0, error)
    }

    /// Compares the hash of all decoded bytes with the expected one.
    pub(super) fn compare(&self, computed: Hash) -> Result<()> {
        self.stored.hash.check(computed).map_err(|e| e.offset(self.stored.data.offset))
    }

    /// All symbols (or bytes) of the plane.
    pub fn symbols(&self, options: &DecodeOptions) -> Result<Vec<i8>> {
        // Memory is allocated once the plane's parts are known to fit its size.
        let plane = self.plane()?;
        let mut out = try_vec(self.stored.elements)?;
        self.decode_into(&plane, &mut out, options)?;
        Ok(out)
    }

    /// Decodes all pieces into `out`, which has the plane's length, and checks the plane's hash.
    fn decode_into(&self, plane: &Plane<'_>, out: &mut [i8], options: &DecodeOptions) -> Result<()> {
        let pieces = split(out, (0..plane.pieces()).map(|i| plane.piece(i).len()));
        pieces.into_par_iter().enumerate().try_for_each_init(Scratch::default, |scratch, (i, piece)| {
            options.cancel.check()?;
            plane.decode_piece(i, piece, scratch).map_err(|e| self.at_data(e))
        })?;
        if options.verify { self.compare(hash(bytemuck::cast_slice(out))) } else { Ok(()) }
    }

    fn dequantize<T: Weight>(
        &self,
        scales: &Scales<'_>,
        transposed: bool,
        options: &DecodeOptions,
    ) -> Result<AlignedBytes> {
        let bytes = self.stored.elements.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or_else(|| coded!(BAD_SIZES, "the tensor is too large"))?;
        if transposed {
            let symbols = self.symbols(options)?;
            let mut out = AlignedBytes::zeroed(bytes)?;
            scales.apply_to_columns::<T>(&symbols, 0, bytemuck::cast_slice_mut(&mut out));
            return Ok(out);
        }
        let plane = self.plane()?;
        let mut out = AlignedBytes::zeroed(bytes)?;
        let values: &mut [T] = bytemuck::cast_slice_mut(&mut out);
        self.stream(&plane, options, &mut |begin, symbols| {
            scales.apply(begin, symbols, &mut values[begin..begin + symbols.len()]);
            Ok(())
        })?;
        Ok(out)
    }
}
