//! Compressed tensors on their way from a container to a decoder: read and checked several at once, and copied by all threads.

use std::sync::Arc;

use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::device::Device;
use super::options::GpuOptions;
use super::plan::TensorPlan;
use super::stream::{Event, Stream};
use crate::cancel::Cancel;
use crate::decode::{Container, DecodeOptions, TensorBytes};
use crate::error::Result;
use crate::pool::Pool;

/// Bytes of tensors that are read together, unless one has more.
const TOGETHER: usize = 256 << 20;
/// Bytes that are sent to the device at once.
const STAGE: usize = 64 << 20;
/// Bytes that a thread copies at once.
const PIECE: usize = 2 << 20;

/// Tensors that were read, packed one after the other.
pub struct PackedTensors<'a> {
    tensors: Vec<(TensorPlan, TensorBytes)>,
    /// The byte at which each packed tensor begins, and the one at which the last one ends.
    begins: Vec<usize>,
    pool: &'a Pool,
    cancel: &'a Cancel,
}

impl PackedTensors<'_> {
    /// Bytes of all packed tensors.
    pub fn len(&self) -> usize {
        self.begins[self.tensors.len()]
    }

    /// The byte at which each packed tensor begins.
    pub fn begins(&self) -> &[usize] {
        &self.begins[..self.tensors.len()]
    }

    /// Writes what the packed tensors have from `begin` on to `out`, with all threads.
    pub fn fill(&self, begin: usize, out: &mut [u8]) -> Result<()> {
        let pieces = out.chunks_mut(PIECE).enumerate();
        let fill = |(i, piece)| {
            self.fill_piece(begin + i * PIECE, piece);
            Ok(())
        };
        self.pool.each(pieces, self.cancel, fill).map(drop)
    }

    fn fill_piece(&self, begin: usize, out: &mut [u8]) {
        let end = begin + out.len();
        for ((plan, parts), place) in self.tensors.iter().zip(self.begins.windows(2)) {
            let (from, to) = (place[0].max(begin), place[1].min(end));
            if from < to {
                plan.packed.fill(parts, from - place[0], &mut out[from - begin..to - begin]);
            }
        }
    }
}

/// Plans the tensors `names`, which have `sizes` bytes when packed; `each` gets some of them after the other, in their order.
///
/// # Errors
/// A tensor is damaged, does not fit the kernels or into memory; or the work was stopped.
pub fn read_plans(
    container: &Container,
    names: &[String],
    sizes: &[usize],
    options: &GpuOptions,
    each: &mut dyn FnMut(&PackedTensors<'_>) -> Result<()>,
) -> Result<Vec<TensorPlan>> {
    // Hashes that were made a moment ago, of bytes in this process's memory, need no comparison.
    let verify = options.verify && !container.is_of_this_process();
    let read = DecodeOptions { threads: options.threads, isa: None, verify, cancel: options.cancel.clone() };
    let pool: Arc<Pool> = container.pool(options.threads)?;
    let one = |name: &String| {
        let parts = container.bytes_of(name, &read)?;
        let plan = TensorPlan::new(&parts).map_err(|e| container.reader().name(e))?;
        Ok((plan, parts))
    };
    let mut plans: Vec<TensorPlan> = Vec::with_capacity(names.len());
    while plans.len() < names.len() {
        let left = plans.len()..names.len();
        let mut bytes = 0usize;
        let fits = |&i: &usize| {
            bytes = bytes.saturating_add(sizes[i]);
            i == left.start || bytes <= TOGETHER
        };
        let now = left.clone().take_while(fits).map(|i| &names[i]);
        let tensors = pool.each(now, &options.cancel, one)?;
        let mut begins = vec![0];
        begins.extend(tensors.iter().scan(0, |end, (plan, _)| {
            *end += plan.packed.len;
            Some(*end)
        }));
        let packed_tensors = PackedTensors { tensors, begins, pool: &pool, cancel: &options.cancel };
        each(&packed_tensors)?;
        plans.extend(packed_tensors.tensors.into_iter().map(|(plan, _)| plan));
    }
    Ok(plans)
}

/// Pinned memory in two halves: one is filled while the other is being copied. Freed when nothing is copied from it any more.
pub struct Stage {
    halves: [(PinnedBuffer, Event); 2],
    turn: usize,
}

impl Stage {
    /// For so many bytes in all.
    pub fn new(device: &Device, total: usize) -> Result<Self> {
        let half = || -> Result<_> { Ok((PinnedBuffer::new(device, STAGE.min(total))?, Event::new(device)?)) };
        Ok(Self { halves: [half()?, half()?], turn: 0 })
    }

    /// Sends packed tensors to offset `at` of `to`.
    pub fn send(
        &mut self,
        packed_tensors: &PackedTensors<'_>,
        to: &DeviceBuffer,
        at: usize,
        stream: &Stream,
    ) -> Result<()> {
        let size = self.halves[0].0.len().max(1);
        for begin in (0..packed_tensors.len()).step_by(size) {
            let (pinned, done) = &mut self.halves[self.turn];
            let length = size.min(packed_tensors.len() - begin);
            // The copy from this half that came before.
            done.synchronize()?;
            packed_tensors.fill(begin, &mut pinned[..length])?;
            // SAFETY: the half is not touched until its event was reached, and `to` outlives the stream's work.
            unsafe { to.upload_async(at + begin, pinned, 0..length, stream)? };
            done.record(stream)?;
            self.turn ^= 1;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // After an error copies may be under way still.
        for (_, done) in &self.halves {
            done.synchronize().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coder, Dtype, EncodeOptions, ErrorKind, MemorySource, encode_to_container, encode_to_vec};

    fn source() -> MemorySource<'static> {
        let mut source = MemorySource::new();
        for (i, shape) in [[64, 192], [700, 4096], [16, 64], [333, 500]].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..shape[0] * shape[1] * 2).map(|k| (k * k % (200 + i)) as u8 & 0x3F).collect();
            source.push(format!("t{i}"), Dtype::BF16, shape.to_vec(), bytes.into()).unwrap();
        }
        source.push("empty".into(), Dtype::F32, vec![0, 7], Vec::new().into()).unwrap();
        source
    }

    #[test]
    fn packed_tensors_are_the_same_in_pieces_and_as_wholes() {
        for coder in [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw] {
            let options = EncodeOptions { coder, ..EncodeOptions::default() };
            let container = encode_to_container(&source(), &options, &mut |_| Ok(())).unwrap().0;
            let names: Vec<String> = container.names().into_iter().map(str::to_owned).collect();
            let sizes = crate::gpu::Sizes::new(&container, &names).unwrap();
            let mut whole = Vec::new();
            for name in &names {
                let parts = container.bytes_of(name, &DecodeOptions::default()).unwrap();
                let packed = TensorPlan::new(&parts).unwrap().packed;
                let begin = whole.len();
                whole.resize(begin + packed.len, 0xEE);
                let out = &mut whole[begin..];
                let mut used = vec![(&packed.scales, &parts.scales)];
                for (place, plane) in packed.planes.iter().zip(&parts.planes) {
                    used.extend([
                        (&place.offsets, &plane.offsets),
                        (&place.data, &plane.data),
                        (&place.side, &plane.side),
                    ]);
                }
                used.iter().for_each(|(place, bytes)| out[(*place).clone()].copy_from_slice(bytes));
                (0..packed.len).filter(|i| !used.iter().any(|(r, _)| r.contains(i))).for_each(|i| out[i] = 0);
            }
            let mut got = 0;
            let plans =
                read_plans(&container, &names, sizes.packed_bytes(), &GpuOptions::default(), &mut |packed_tensors| {
                    assert_eq!(packed_tensors.begins().len(), names.len());
                    let mut out = vec![0xDD; packed_tensors.len()];
                    packed_tensors.fill(0, &mut out)?;
                    assert!(out == whole, "{coder}");
                    for (begin, length) in
                        [(1, 300), (127, 129), (packed_tensors.len() - 5, 5), (700, 0), (3, packed_tensors.len() - 9)]
                    {
                        let mut out = vec![0xDD; length];
                        packed_tensors.fill(begin, &mut out)?;
                        assert!(out == whole[begin..begin + length], "{coder}: {length} from {begin}");
                    }
                    got += packed_tensors.len();
                    Ok(())
                });
            assert_eq!(plans.unwrap().iter().map(|p| p.packed.len).collect::<Vec<_>>(), sizes.packed_bytes());
            assert_eq!(got, whole.len());
        }
    }

    #[test]
    fn tensors_that_are_large_come_one_by_one_and_the_first_error_counts() {
        let mut bytes = encode_to_vec(&source(), &EncodeOptions::default(), &mut |_| Ok(())).unwrap().0;
        let container = Container::from_bytes(bytes.clone()).unwrap();
        let names: Vec<String> = container.names().into_iter().map(str::to_owned).collect();
        let mut seen = Vec::new();
        read_plans(
            &container,
            &names,
            &[TOGETHER + 1, 1, 2, TOGETHER, 1],
            &GpuOptions::default(),
            &mut |packed_tensors| {
                seen.push(packed_tensors.begins().len());
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(seen, [1, 2, 1, 1]);

        for name in ["t1", "t3"] {
            let at = container.reader().tensor(name).unwrap().planes[0].data.offset as usize;
            bytes[at] ^= 1;
        }
        let damaged = Container::from_bytes(bytes).unwrap();
        let sizes = vec![1; names.len()];
        let e = read_plans(&damaged, &names, &sizes, &GpuOptions::default(), &mut |_| Ok(())).unwrap_err();
        assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("t1")));

        let options = GpuOptions::default();
        options.cancel.cancel();
        let e = read_plans(&container, &names, &sizes, &options, &mut |_| Ok(())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Cancelled);
    }
}
