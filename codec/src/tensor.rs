//! Tensors of a checkpoint: a dtype, a shape and little-endian bytes.

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pool::Pool;

/// Element type of a tensor, named as in safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
    C64,
}

const DTYPES: &[(Dtype, &str, usize)] = &[
    (Dtype::BOOL, "BOOL", 1),
    (Dtype::U8, "U8", 1),
    (Dtype::I8, "I8", 1),
    (Dtype::F8_E5M2, "F8_E5M2", 1),
    (Dtype::F8_E4M3, "F8_E4M3", 1),
    (Dtype::F8_E8M0, "F8_E8M0", 1),
    (Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 1),
    (Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 1),
    (Dtype::I16, "I16", 2),
    (Dtype::U16, "U16", 2),
    (Dtype::F16, "F16", 2),
    (Dtype::BF16, "BF16", 2),
    (Dtype::I32, "I32", 4),
    (Dtype::U32, "U32", 4),
    (Dtype::F32, "F32", 4),
    (Dtype::F64, "F64", 8),
    (Dtype::I64, "I64", 8),
    (Dtype::U64, "U64", 8),
    (Dtype::C64, "C64", 8),
];

impl Dtype {
    fn row(self) -> &'static (Dtype, &'static str, usize) {
        DTYPES.iter().find(|r| r.0 == self).expect("every dtype has a row")
    }

    /// The name that safetensors and the index use.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.row().2
    }

    /// The dtype with this name, or an [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) error.
    pub fn from_name(name: &str) -> Result<Self> {
        DTYPES.iter().find(|r| r.1 == name).map(|r| r.0).ok_or_else(|| {
            coded!(UNKNOWN_DTYPE, "unknown dtype '{name}'").advice("convert the tensor, or leave it out with exclude")
        })
    }

    /// Whether scheme `int8` supports it: f32, f16 and bf16.
    pub fn is_quantizable(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of elements of `shape`; an error if it does not fit `usize`.
pub fn element_count(shape: &[usize]) -> Result<usize> {
    // A zero anywhere makes the tensor empty, whatever the product of the other dimensions.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .ok_or_else(|| coded!(BAD_SIZES, "shape {shape:?} has too many elements"))
}

/// Bytes of a tensor; an error from 2^63 on, so that sums and products of a few sizes cannot overflow.
pub(crate) fn check_bytes(shape: &[usize], dtype: Dtype) -> Result<u64> {
    element_count(shape)?
        .checked_mul(dtype.size())
        .filter(|&n| n <= isize::MAX as usize)
        .map(|n| n as u64)
        .ok_or_else(|| coded!(BAD_SIZES, "a {dtype} tensor of shape {shape:?} is too large"))
}

/// Borrowed tensor: row-major little-endian elements.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Views `data` (bytes) as a tensor; an error unless its length is that of `shape` and `dtype`.
    pub fn new(dtype: Dtype, shape: &'a [usize], data: &'a [u8]) -> Result<Self> {
        let want = element_count(shape)?.checked_mul(dtype.size());
        if want != Some(data.len()) {
            let got = data.len();
            return Err(coded!(INPUT_BUG, "{got} bytes do not make a {dtype} tensor of shape {shape:?}"));
        }
        Ok(Self { dtype, shape, data })
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements' bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}

/// Bytes whose address is a multiple of 8, so that they can be viewed as any element type.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes; an error, rather than an abort, if memory does not suffice.
    pub fn zeroed(len: usize) -> Result<Self> {
        Ok(Self { words: try_vec(len.div_ceil(8))?, len })
    }

    /// The underlying words and the length in bytes; the last word is padded with zeros.
    pub fn into_words(self) -> (Vec<u64>, usize) {
        (self.words, self.len)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut out = Self::zeroed(bytes.len())?;
        out.copy_from_slice(bytes);
        Ok(out)
    }

    /// A copy of `bytes`, made by the threads of a pool.
    ///
    /// # Errors
    /// Memory does not suffice, or `cancel` was used.
    pub fn copy_with(bytes: &[u8], pool: &Pool, cancel: &Cancel) -> Result<Self> {
        let mut out = Self::zeroed(bytes.len())?;
        copy_with(bytes, &mut out, pool, cancel)?;
        Ok(out)
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// Bytes that one thread copies at once: the first write to new memory is slow, so many threads are faster than one.
const COPIED: usize = 2 << 20;

/// Copies `from` to `to`, which has the same length, with the threads of a pool.
pub(crate) fn copy_with(from: &[u8], to: &mut [u8], pool: &Pool, cancel: &Cancel) -> Result<()> {
    if from.len() <= COPIED {
        to.copy_from_slice(from);
        return Ok(());
    }
    let copy = |(to, from): (&mut [u8], &[u8])| {
        to.copy_from_slice(from);
        Ok(())
    };
    pool.each(to.chunks_mut(COPIED).zip(from.chunks(COPIED)), cancel, copy).map(drop)
}

pub(crate) fn out_of_memory(bytes: usize) -> Error {
    coded!(NO_MEMORY, "not enough memory for {bytes} bytes").advice("free memory, or read fewer tensors at a time")
}

/// A vector of `len` zeros; an error if memory does not suffice.
pub(crate) fn try_vec<T: bytemuck::Zeroable>(len: usize) -> Result<Vec<T>> {
    // The operating system provides it zeroed, and it is not touched before it is used.
    let zeros = bytemuck::allocation::try_zeroed_slice_box(len);
    zeros.map(Vec::from).map_err(|()| out_of_memory(len.saturating_mul(size_of::<T>())))
}

/// Resizes `out` to `len`; an error if memory does not suffice. Old content may remain.
pub(crate) fn reserve(out: &mut Vec<i8>, len: usize) -> Result<()> {
    out.try_reserve_exact(len.saturating_sub(out.len())).map_err(|_| out_of_memory(len))?;
    out.resize(len, 0);
    Ok(())
}

/// Cuts `all` into consecutive pieces of these lengths.
pub(crate) fn split<T>(mut all: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    lengths
        .map(|length| {
            let (piece, rest) = std::mem::take(&mut all).split_at_mut(length);
            all = rest;
            piece
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_round_trip_by_name() {
        for &(d, name, size) in DTYPES {
            assert_eq!((Dtype::from_name(name).unwrap(), d.name(), d.size()), (d, name, size));
        }
        assert_eq!(Dtype::from_name("F7").unwrap_err().kind(), crate::ErrorKind::Unsupported);
    }

    #[test]
    fn copies_by_many_threads_are_whole() {
        let pool = Pool::new(Some(3)).unwrap();
        let bytes: Vec<u8> = (0..3 * COPIED + 5).map(|i| (i % 251) as u8).collect();
        for length in [0, 7, COPIED, COPIED + 1, bytes.len()] {
            assert_eq!(AlignedBytes::copy_with(&bytes[..length], &pool, &Cancel::new()).unwrap()[..], bytes[..length]);
        }
        let cancel = Cancel::new();
        cancel.cancel();
        assert!(AlignedBytes::copy_with(&bytes, &pool, &cancel).is_err());
    }

    #[test]
    fn views_check_their_length() {
        assert!(TensorView::new(Dtype::F32, &[2, 3], &[0; 24]).is_ok());
        assert!(TensorView::new(Dtype::F32, &[2, 3], &[0; 23]).is_err());
        assert!(TensorView::new(Dtype::F32, &[], &[0; 4]).is_ok());
        assert!(TensorView::new(Dtype::U8, &[usize::MAX, 2], &[]).is_err());
        assert!(TensorView::new(Dtype::U8, &[usize::MAX, 2, 0], &[]).is_ok());
    }
}
