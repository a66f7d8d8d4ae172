//! Rows that are looked up by numbers on the device.

use std::sync::Arc;

use super::Inner;
use super::streaming::Streaming;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::gpu::buffer::read_device;
use crate::gpu::device::Device;
use crate::gpu::groups::FileLookup;
use crate::gpu::launch::Lookups;
use crate::gpu::residency::Home;
use crate::gpu::shared::Bytes;
use crate::gpu::stream::Stream;
use crate::gpu::work_item::{DecodeItem, RowIds};
use crate::tensor::Dtype;

/// Rows of a matrix, to be looked up again and again. It keeps the decoder's memory alive, and so does a graph that captures it.
#[derive(Debug)]
pub struct Lookup {
    inner: Arc<Inner>,
    /// Whether kernels read it in the host's memory.
    on_host: bool,
    /// The ring for a tensor in the file.
    file: Option<Arc<Streaming>>,
    /// The tensor and its dtype.
    item: DecodeItem,
    /// Bytes from one row of the output to the next.
    row_bytes: usize,
    /// The launches for a tensor that kernels read where it stays.
    work: Lookups,
}

impl Lookup {
    pub(super) fn new(inner: &Arc<Inner>, name: &str, dtype: Dtype) -> Result<Self> {
        let (shared, tensors) = (&inner.shared, &inner.shared.tensors);
        let number = tensors.find(name)?;
        // Also for a tensor in the file, from no place: kernels are loaded, and what they do not take is refused now.
        let items = tensors.lookup_items(name, dtype, |i| inner.addresses(i))?;
        let row_bytes = items.first().map_or(0, |item| item.plan.row_bytes(item.kind));
        let work = shared.prepare_lookup(&items)?;
        let item = DecodeItem { name: name.to_owned(), out: 0, dtype, rows: None };
        let home = inner.homes[number];
        let file = inner.streaming.clone().filter(|_| home == Home::Disk);
        let on_host = matches!(home, Home::Host(_));
        Ok(Self { inner: inner.clone(), on_host, file, item, row_bytes, work })
    }

    /// Puts the gathering into the stream: the rows of these indices are written from `out` on, one after the other, each as it is decoded with
    /// all others. Numbers that are of no row, negative ones too, give NaN, and so do chunks that are damaged, which
    /// [`check`](super::TensorDecoder::check) tells.
    ///
    /// For a tensor on the device or in the host's memory, which kernels read from there strip by strip, it neither
    /// allocates nor waits, and a CUDA graph can capture it. For a tensor in the file it waits for the numbers and for
    /// the bytes, each strip of which is read once, and takes a launch for each run of numbers that are of the same
    /// part of what is read.
    ///
    /// # Safety
    /// Numbers and output are on the decoder's device, large enough, alive until the work is done (if the stream is being captured, until the
    /// last time that the graph runs), and not changed (output: not used) by other work meanwhile.
    ///
    /// # Errors
    /// There are more than some hundred million numbers, or something does not begin at a multiple of its elements'
    /// size. For a tensor in the file also: it cannot be read or is damaged, or the stream is being captured.
    pub unsafe fn look_up(&self, ids: RowIds, out: u64, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.look_up_until(ids, out, stream, &Cancel::new()) }
    }

    /// As [`look_up`](Self::look_up); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// Conditions of [`look_up`](Self::look_up).
    ///
    /// # Errors
    /// Those of [`look_up`](Self::look_up), and `cancel` was used.
    pub unsafe fn look_up_until(&self, ids: RowIds, out: u64, stream: &Stream, cancel: &Cancel) -> Result<()> {
        if let Some(streaming) = &self.file {
            // SAFETY: as the caller promises.
            return unsafe { self.read_and_look_up(streaming, ids, out, stream, cancel) };
        }
        let capturing = stream.is_capturing()?;
        if capturing {
            stream.keep(self.inner.clone())?;
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.shared.look_up(&self.work, ids, out, Bytes::Stay, stream)? };
        match &self.inner.host {
            Some(host) if self.on_host && !capturing => host.read_by(stream),
            _ => Ok(()),
        }
    }

    /// # Safety
    /// Conditions of [`look_up`](Self::look_up).
    unsafe fn read_and_look_up(
        &self,
        streaming: &Streaming,
        ids: RowIds,
        out: u64,
        stream: &Stream,
        cancel: &Cancel,
    ) -> Result<()> {
        if stream.is_capturing()? {
            return Err(coded!(CUDA_GRAPH, "rows of a tensor in the file cannot be looked up in a CUDA graph")
                .tensor(&self.item.name)
                .advice("do it outside of the capture, or keep the tensor on the device or in the host's memory"));
        }
        self.work.check(ids, out)?;
        if ids.count == 0 {
            return Ok(());
        }
        let shared = &self.inner.shared;
        let size = ids.bytes();
        let mut numbers = vec![0; ids.count * size];
        // SAFETY: as the caller promises.
        unsafe { read_device(ids.ptr, &mut numbers, stream)? };
        let lookup =
            FileLookup::new(&self.inner.sources(streaming), &shared.tensors, &self.item, &ids.indices(&numbers))?;
        let groups = streaming.batch(lookup.groups);
        // Otherwise the ring would take it that the order of what was prefetched for others is not the one that comes.
        let begun = streaming.prefetch(&groups);
        let look_up = |group: usize, (_, base): (usize, u64)| {
            let pieces = &groups.all[group].pieces;
            let mut work: Vec<Option<Lookups>> = pieces.iter().map(|_| None).collect();
            for (piece, run) in &lookup.runs[group] {
                let work = match &mut work[*piece] {
                    Some(work) => work,
                    none => {
                        let place = |_| pieces[*piece].places(base);
                        let items = shared.tensors.lookup_items(&self.item.name, self.item.dtype, place)?;
                        none.insert(shared.prepare_lookup(&items)?)
                    }
                };
                let ids = RowIds { ptr: ids.ptr + (run.start * size) as u64, count: run.len(), ..ids };
                // SAFETY: as the caller promises; the piece is in the slot, and has the strips of these rows.
                unsafe {
                    shared.look_up(work, ids, out + (run.start * self.row_bytes) as u64, Bytes::Arrive, stream)?;
                }
            }
            Ok(())
        };
        let done = begun.and_then(|()| streaming.run(&groups, stream, cancel, look_up));
        streaming.forget(&groups);
        done
    }

    /// Whether it comes from the file, so that gathering rows waits.
    pub fn waits(&self) -> bool {
        self.file.is_some()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }
}
