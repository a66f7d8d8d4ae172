//! The memory that tensors take on a device, before anything of them is read.

use std::collections::HashSet;

use serde::Serialize;

use super::device::Device;
use super::disk;
use super::nvcomp::Nvcomp;
use super::options::GpuOptions;
use super::packed_rows::PackedRows;
use super::plan::PackedTensor;
use super::ring::SLOTS;
use super::table::Form;
use super::zstd::{self, Demand};
use crate::coder::plane::Coding;
use crate::decode::Container;
use crate::error::Result;

/// Bytes of a device's memory that decoders of some tensors hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Compressed tensors; 0 where they stay in the host's memory.
    pub images: usize,
    /// The ring that tensors in the host's memory pass through.
    pub ring: usize,
    /// Decoding tables, and a status for each plane.
    pub tables: usize,
    /// Scratch that nvCOMP needs for planes of coder `zstd`.
    pub scratch: usize,
}

impl Footprint {
    /// All of it.
    pub fn total(&self) -> usize {
        self.images + self.ring + self.tables + self.scratch
    }
}

/// Sizes of some tensors on a device, by what the index says of them.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{GpuOptions, Sizes};
/// use wcodec::{Container, Dtype, EncodeOptions, MemorySource, encode_to_vec};
/// let mut source = MemorySource::new();
/// source.push("w".into(), Dtype::F32, vec![64, 256], vec![1; 64 * 256 * 4].into())?;
/// let container = Container::from_bytes(encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(()))?.0)?;
/// let sizes = Sizes::new(&container, &[])?;
/// let takes = sizes.footprint(0..1, false, &GpuOptions::default(), None)?;
/// assert_eq!((takes.images, takes.ring), (sizes.packed_bytes()[0], 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sizes {
    packed_bytes: Vec<usize>,
    tensors: Vec<TensorSize>,
}

#[derive(Debug)]
struct TensorSize {
    /// Bytes that cannot be cut: those of a strip.
    strip: usize,
    planes: usize,
    /// Number, form and bits of its planes' tables.
    tables: Vec<(usize, Form, u32)>,
    /// Decoded bytes, those of a frame, and frames of its planes of coder `zstd`.
    zstd: Vec<(usize, usize, usize)>,
}

impl Sizes {
    /// Those of the tensors `names`, in their order, each stored one once; of all that are there if empty.
    ///
    /// # Errors
    /// There is no such tensor, or its entry contradicts itself.
    pub fn new(container: &Container, names: &[String]) -> Result<Self> {
        let names = container.stored_names(names)?;
        let mut sizes =
            Self { packed_bytes: Vec::with_capacity(names.len()), tensors: Vec::with_capacity(names.len()) };
        for name in &names {
            let tensor = container.stored(name)?;
            let (mut tables, mut zstd) = (Vec::new(), Vec::new());
            for plane in &tensor.planes {
                match plane.form.coding {
                    Coding::Tiles(tiling) => tables
                        .extend(plane.table.map(|n| (n, Form::of(&tiling), container.reader().index().tables[n].bits))),
                    Coding::Zstd { chunk, .. } => zstd.push((plane.elements, chunk, plane.chunks)),
                    Coding::Raw => {}
                }
            }
            sizes.packed_bytes.push(PackedTensor::of(&tensor).len);
            let (strip, planes) = (PackedRows::bound_of_strip(&tensor), tensor.planes.len());
            sizes.tensors.push(TensorSize { strip, planes, tables, zstd });
        }
        Ok(sizes)
    }

    /// Whether nvCOMP is needed to decode one of them.
    pub fn need_nvcomp(&self) -> bool {
        self.tensors.iter().any(|t| !t.zstd.is_empty())
    }

    /// Bytes that each tensor takes where it stays.
    pub fn packed_bytes(&self) -> &[usize] {
        &self.packed_bytes
    }

    /// [`packed_bytes`](Self::packed_bytes) by their former name.
    pub fn images(&self) -> &[usize] {
        self.packed_bytes()
    }

    /// Bytes of a slot of the ring for some of the tensors: a share of what the ring may take, or more where a tensor cannot be cut so
    /// small.
    pub(super) fn slot(&self, which: impl Iterator<Item = usize>, ring: usize) -> usize {
        let share = ring / SLOTS;
        let (slot, all) = which.fold((share, 0), |(slot, all), i| {
            let uncut = if self.packed_bytes[i] > share { self.tensors[i].strip } else { 0 };
            (slot.max(uncut), all + self.packed_bytes[i])
        });
        slot.min(all)
    }

    /// Pinned memory of the host that a [`HostDecoder`](super::HostDecoder) of some of the tensors, by their places, takes, in bytes. Those of
    /// `on_disk` are read from the file.
    pub fn pinned(&self, in_memory: &[usize], on_disk: &[usize], options: &GpuOptions) -> usize {
        let packed: usize = in_memory.iter().map(|&i| self.packed_bytes[i]).sum();
        if on_disk.is_empty() {
            return packed;
        }
        let slot = self.slot(in_memory.iter().chain(on_disk).copied(), options.ring);
        let margin = disk::margin(on_disk.iter().map(|&i| self.tensors[i].planes));
        packed + SLOTS * (slot.next_multiple_of(disk::PAGE) + margin)
    }

    /// The memory that a decoder of some of the tensors, by their places, takes: [`GpuDecoder`](super::GpuDecoder), or with `on_host`
    /// [`HostDecoder`](super::HostDecoder). Without a device, where nvCOMP cannot be asked, as much as it has asked for at most.
    ///
    /// # Errors
    /// nvCOMP is needed and not there.
    pub fn footprint(
        &self,
        which: impl IntoIterator<Item = usize>,
        on_host: bool,
        options: &GpuOptions,
        device: Option<&Device>,
    ) -> Result<Footprint> {
        let which: Vec<usize> = which.into_iter().collect();
        let (mut demand, mut tables) = (Demand::default(), HashSet::new());
        let planes: usize = which.iter().map(|&i| self.tensors[i].planes).sum();
        let mut footprint = Footprint { tables: 4 * planes, ..Footprint::default() };
        for t in which.iter().map(|&i| &self.tensors[i]) {
            for &(number, form, bits) in &t.tables {
                if tables.insert((number, form)) {
                    footprint.tables += 4 << bits.min(16);
                }
            }
            for &(elements, chunk, frames) in &t.zstd {
                demand.add(elements, chunk, frames);
            }
        }
        if on_host {
            footprint.ring = SLOTS * self.slot(which.iter().copied(), options.ring);
        } else {
            footprint.images = which.iter().map(|&i| self.packed_bytes[i]).sum();
        }
        footprint.scratch = match device {
            _ if demand.frames == 0 => 0,
            Some(device) => {
                let nvcomp = Nvcomp::load_for(device, options.nvcomp.as_deref(), &options.nvcomp_folders)?;
                zstd::scratch_bytes(&nvcomp, demand, zstd::budget(Some(device), options))?
            }
            None => {
                demand.bytes.saturating_mul(zstd::FACTOR).saturating_add(zstd::LEAST).min(zstd::budget(None, options))
            }
        };
        Ok(footprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coder, Dtype, EncodeOptions, MemorySource, Scheme, encode_to_vec};

    const SHAPE: [usize; 2] = [4096, 1024];

    fn container(options: EncodeOptions) -> Container {
        let mut source = MemorySource::new();
        let bytes: Vec<u8> = (0..SHAPE[0] * SHAPE[1] * 2).map(|i| (i * i % 251) as u8 & 0x3F).collect();
        source.push("head".into(), Dtype::BF16, SHAPE.to_vec(), bytes.into()).unwrap();
        Container::from_bytes(encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().0).unwrap()
    }

    fn kinds() -> Vec<EncodeOptions> {
        let all = [Coder::Rans, Coder::Huffman, Coder::Zstd].map(|coder| EncodeOptions { coder, ..Default::default() });
        let raw =
            [Coder::Zstd, Coder::Raw].map(|coder| EncodeOptions { scheme: Scheme::Raw, coder, ..Default::default() });
        all.into_iter().chain(raw).collect()
    }

    #[test]
    fn a_ring_keeps_to_its_bound_whatever_the_tensor_is_stored_as() {
        for options in kinds() {
            let container = container(options.clone());
            let stored: usize = container.infos().unwrap()[0].stored_bytes as usize;
            let sizes = Sizes::new(&container, &[]).unwrap();
            for ring in [0, 1 << 20, 1 << 22] {
                let gpu = GpuOptions { ring, ..Default::default() };
                let takes = sizes.footprint([0], true, &gpu, None).unwrap();
                // Sixteen rows cannot be cut, if less is asked for.
                let most = ring.max(SLOTS * (stored / SHAPE[0] * 16 * 2 + (64 << 10)));
                assert!(takes.ring > 0 && takes.ring <= most, "{options:?}: a ring of {} for {ring}", takes.ring);
                assert_eq!(takes.images, 0);
            }
            let there = sizes.footprint([0], false, &GpuOptions::default(), None).unwrap();
            assert!(
                there.ring == 0 && (stored - 1024..stored + 4096).contains(&there.images),
                "{options:?}: {there:?}"
            );
            assert_eq!(there.scratch > 0, options.coder == Coder::Zstd);
        }
    }

    #[test]
    fn tables_that_are_shared_count_once() {
        let mut source = MemorySource::new();
        let weights: Vec<f32> = (0..256 * 512).map(|i| ((i * 7919 % 1009) as f32 / 500.0 - 1.0).powi(3)).collect();
        for name in ["a", "b", "c"] {
            let turned: Vec<f32> = weights.iter().rev().map(|w| w * (name.len() as f32)).collect();
            let data = if name == "b" { &turned } else { &weights };
            source.push(name.into(), Dtype::F32, vec![256, 512], bytemuck::cast_slice(data).to_vec().into()).unwrap();
        }
        let bytes = encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(())).unwrap().0;
        let container = Container::from_bytes(bytes).unwrap();
        let tables = container.reader().index().tables.len();
        let stored = container.names().len();
        let sizes = Sizes::new(&container, &[]).unwrap();
        let takes = sizes.footprint(0..stored, false, &GpuOptions::default(), None).unwrap();
        assert_eq!(takes.tables, tables * (4 << 12) + 4 * stored);
        assert!(Sizes::new(&container, &["nothing".to_owned()]).is_err());
    }
}
