//! Reads weights as numbers: blocks are read and decoded in pieces.

use half::{bf16, f16};

use super::blocks::Blocks;
use super::{Gguf, GgufTensor};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::tensor::{AlignedBytes, Dtype, out_of_memory};

/// Weights that one thread decodes at once: a multiple of every block size.
const PIECE: usize = 1 << 18;
/// Weights that each thread holds in float32 at once: a multiple of every block size, too.
const AT_ONCE: usize = 1 << 12;

impl GgufTensor {
    /// The dtype of the tensor's weights as numbers: the stored one or, for blocks, the one that is wanted.
    ///
    /// # Errors
    /// The type of its blocks cannot be decoded.
    pub fn values_dtype(&self, wanted: Dtype) -> Result<Dtype> {
        match self.dtype {
            Some(dtype) => Ok(dtype),
            None => self.blocks().map(|_| wanted),
        }
    }

    fn blocks(&self) -> Result<Blocks> {
        Blocks::of(&self.kind).ok_or_else(|| {
            coded!(GGUF_TYPE, "its weights are of {}, which is not decoded", named(&self.kind))
                .tensor(&self.name)
                .advice("leave it out (--skip), or take a file of another type, such as Q8_0 or Q4_K")
        })
    }
}

/// The error for a dtype that blocks cannot be converted to.
pub(super) fn not_to(dtype: Dtype) -> Error {
    coded!(GGUF_VALUES, "weights are decoded to F32, F16 or BF16, not to {dtype}").advice("ask for one of these")
}

/// The name of a type in messages.
fn named(kind: &str) -> String {
    match kind.strip_prefix("type ") {
        Some(number) => format!("GGUF's type {number}"),
        None => format!("GGUF's type {kind}"),
    }
}

impl Gguf {
    /// Some of a tensor's weights as numbers, by index: `count` of them from `first` on, both at block boundaries (as
    /// rows are). Weights stored as numbers are returned unchanged; others are decoded to float32 bit for bit as the
    /// package `gguf` does, and rounded once to `dtype`: `F32`, `F16` or `BF16`.
    ///
    /// # Errors
    /// They are not in the tensor or not in the file, the type of their blocks cannot be decoded, `dtype` is another
    /// one, or `cancel` was used.
    pub fn read_values(
        &self,
        index: usize,
        (first, count): (u64, usize),
        dtype: Dtype,
        pool: &Pool,
        cancel: &Cancel,
    ) -> Result<AlignedBytes> {
        let t = &self.tensors[index];
        let of = |e: Error| e.tensor(&t.name);
        if first.checked_add(count as u64).is_none_or(|end| end > t.elements) {
            let what = format!("{count} weights from {first} on are not in it");
            return Err(of(coded!(GGUF_VALUES, what).advice("read rows that it has")));
        }
        if let Some(stored) = t.dtype {
            let size = stored.size();
            let bytes = count.checked_mul(size).ok_or_else(|| of(out_of_memory(usize::MAX)))?;
            return pool.run(|| self.read_part(index, first * size as u64, bytes, cancel)).flatten();
        }
        let blocks = t.blocks()?;
        let whole = |n: u64| n.is_multiple_of(blocks.elements as u64);
        if !whole(first) || !whole(count as u64) {
            let what = format!("{count} weights from {first} on are no whole blocks of {}", t.kind);
            return Err(of(coded!(GGUF_VALUES, what).advice("read whole rows")));
        }
        let begin = first / blocks.elements as u64 * blocks.bytes as u64;
        // Checked before memory is allocated for sizes from a damaged header.
        let end = t.offset + begin + (count / blocks.elements * blocks.bytes) as u64;
        if end > self.file_len() {
            let missing = end - self.file_len();
            let what = format!("{missing} bytes of it are missing");
            return Err(
                of(coded!(FILE_LENGTH, what).advice("the file was cut off: download it again")).file(self.file.path())
            );
        }
        let made = match dtype {
            Dtype::F32 => self.decoded(index, begin, count, blocks, (pool, cancel), f32::to_le_bytes),
            Dtype::F16 => self.decoded(index, begin, count, blocks, (pool, cancel), |v| f16::from_f32(v).to_le_bytes()),
            Dtype::BF16 => {
                self.decoded(index, begin, count, blocks, (pool, cancel), |v| bf16::from_f32(v).to_le_bytes())
            }
            other => Err(not_to(other)),
        };
        made.map_err(of)
    }

    /// Decodes `count` weights of blocks, from a byte of a tensor on.
    fn decoded<const SIZE: usize>(
        &self,
        index: usize,
        begin: u64,
        count: usize,
        blocks: Blocks,
        (pool, cancel): (&Pool, &Cancel),
        rounded: impl Fn(f32) -> [u8; SIZE] + Sync,
    ) -> Result<AlignedBytes> {
        let bytes = count.checked_mul(SIZE).ok_or_else(|| out_of_memory(usize::MAX))?;
        let mut out = AlignedBytes::zeroed(bytes)?;
        let read = |(piece, out): (usize, &mut [u8])| {
            let at = begin + (piece * (PIECE / blocks.elements) * blocks.bytes) as u64;
            let length = out.len() / SIZE / blocks.elements * blocks.bytes;
            let stored = self.read_part(index, at, length, cancel)?;
            let mut values = [0.0; AT_ONCE];
            let (out, step) = (out.as_chunks_mut::<SIZE>().0, AT_ONCE / blocks.elements * blocks.bytes);
            for (out, stored) in out.chunks_mut(AT_ONCE).zip(stored.chunks(step)) {
                let values = &mut values[..out.len()];
                (blocks.decode)(stored, values);
                out.iter_mut().zip(values).for_each(|(out, value)| *out = rounded(*value));
            }
            Ok(())
        };
        pool.each(out.chunks_mut(PIECE * SIZE).enumerate(), cancel, read)?;
        Ok(out)
    }
}
