//! Work whose launches are ready.

use std::sync::Arc;

use super::Inner;
use super::streaming::{Groups, Streaming};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::gpu::device::Device;
use crate::gpu::launch::too_many_vectors;
use crate::gpu::shared::{Bytes, Work};
use crate::gpu::stream::Stream;
use crate::gpu::work_item::Vectors;

/// Targets or products whose copies and launches are ready. It keeps the decoder's memory alive, and so does a graph that captures it.
///
/// Tensors on the device are launched at once. The bytes of others are on their way when [`prefetch`](Self::prefetch)
/// was called, which is optional; [`launch`](Self::launch) decodes what was copied and copies what was not. Several
/// batches may be prefetched ahead; they are best launched in the same order. A batch is sent in groups of at most a
/// slot's bytes; each takes one of the ring's four slots ([`slots`](Self::slots)), from prefetching to launching.
#[derive(Debug)]
pub struct Batch {
    inner: Arc<Inner>,
    /// The part of it whose bytes are on the device.
    resident: Work,
    /// The part of it whose bytes come through a ring.
    streamed: Option<(Arc<Streaming>, Arc<Groups>)>,
    /// The most vectors that its products take, as far as they are prepared.
    most_vectors: usize,
}

impl Batch {
    pub(super) fn new(inner: Arc<Inner>, resident: Work, streamed: Option<(Arc<Streaming>, Arc<Groups>)>) -> Self {
        let most_vectors = resident.most_vectors();
        Self { inner, resident, streamed, most_vectors }
    }

    /// The launches of a group, from each slot; kernels are loaded by the first call.
    fn work<'a>(&self, groups: &'a Groups, group: usize, (slot, base): (usize, u64)) -> Result<&'a Work> {
        let place = &groups.work[group][slot];
        if let Some(work) = place.get() {
            return Ok(work);
        }
        let shared = &self.inner.shared;
        let work = shared.prepare(&groups.all[group].items(&shared.tensors, base)?, Bytes::Arrive)?;
        Ok(place.get_or_init(|| work))
    }

    /// Prepares all launches now.
    pub(super) fn prepared(mut self) -> Result<Self> {
        let mut most_vectors = self.most_vectors;
        if let Some((streaming, groups)) = &self.streamed {
            for group in 0..groups.all.len() {
                for slot in streaming.slots() {
                    most_vectors = most_vectors.min(self.work(groups, group, slot)?.most_vectors());
                }
            }
        }
        self.most_vectors = most_vectors;
        Ok(self)
    }

    /// Begins to copy the bytes that are not on the device into free slots of the ring, as far as there are some, on
    /// the decoder's own stream: each copy waits, on the device, for the last decoding from its slot. Returns at once.
    /// Bytes that are on the device already, or on their way, are not copied again; a batch that is never launched
    /// gives its slots back when it is dropped, and to launches that find no other.
    ///
    /// A group that finds no slot now is begun as soon as one is free if some of the decoder's tensors are in the file.
    pub fn prefetch(&self) -> Result<()> {
        match &self.streamed {
            Some((streaming, groups)) => streaming.prefetch(groups),
            None => Ok(()),
        }
    }

    /// Puts the launches into the stream, behind the copies; what was not prefetched is copied first. Neither allocates nor waits on the host,
    /// but for bytes from the file. Slots are free again as soon as they are decoded from. A CUDA graph can capture it where all bytes are on
    /// the device.
    ///
    /// # Safety
    /// Conditions of [`TensorDecoder::decode`](super::TensorDecoder::decode).
    ///
    /// # Errors
    /// The stream is being captured, and bytes come through the ring: replayed graphs would write to slots that others hold.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_until(stream, &Cancel::new()) }
    }

    /// As [`launch`](Self::launch); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// Conditions of [`launch`](Self::launch).
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch), and `cancel` was used.
    pub unsafe fn launch_until(&self, stream: &Stream, cancel: &Cancel) -> Result<()> {
        // SAFETY: as the caller promises.
        self.run(stream, cancel, |work| unsafe { self.inner.shared.launch(work, stream) })
    }

    /// Puts the products of a batch of [`prepare_products`](super::TensorDecoder::prepare_products) into the stream, as
    /// [`launch`](Self::launch) does for decoding. Rows with a damaged chunk give NaN, and [`check`](super::TensorDecoder::check) tells.
    ///
    /// # Safety
    /// Vectors, results and biases are on the decoder's device, large enough, alive until the work is done, and not changed (results: not used)
    /// by other work meanwhile.
    ///
    /// # Errors
    /// There are more than [`most_vectors`](Self::most_vectors), or more than [`Vectors::MOST_SQUARED`] behind a norm; and as for [`launch`](Self::launch).
    pub unsafe fn multiply(&self, vectors: &Vectors, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.multiply_until(vectors, stream, &Cancel::new()) }
    }

    /// As [`multiply`](Self::multiply); waiting for bytes from the file ends when `cancel` is used.
    ///
    /// # Safety
    /// Conditions of [`multiply`](Self::multiply).
    ///
    /// # Errors
    /// Those of [`multiply`](Self::multiply), and `cancel` was used.
    pub unsafe fn multiply_until(&self, vectors: &Vectors, stream: &Stream, cancel: &Cancel) -> Result<()> {
        // Before some of it is launched.
        if vectors.count > self.most_vectors {
            return Err(too_many_vectors(vectors.count, self.most_vectors));
        }
        // SAFETY: as the caller promises.
        self.run(stream, cancel, |work| unsafe { self.inner.shared.multiply(work, vectors, stream) })
    }

    /// Runs `launch` for what is on the device, and then for each group behind its copies.
    fn run(&self, stream: &Stream, cancel: &Cancel, launch: impl Fn(&Work) -> Result<()>) -> Result<()> {
        if stream.is_capturing()? {
            if self.streamed.is_some() {
                return Err(coded!(CUDA_GRAPH, "decoding from the host's memory cannot be part of a CUDA graph")
                    .advice("launch it outside of the capture, or keep the compressed bytes on the device"));
            }
            // The driver waits for work that is done at once before it frees the memory; of graphs it knows nothing.
            stream.keep(self.inner.clone())?;
        }
        launch(&self.resident)?;
        let Some((streaming, groups)) = &self.streamed else { return Ok(()) };
        streaming.run(groups, stream, cancel, |group, slot| launch(self.work(groups, group, slot)?))
    }

    /// The most vectors that its products take: [`Vectors::MOST`] where kernels of many vectors multiply with all of its tensors
    /// ([`TensorDecoder::most_vectors`](super::TensorDecoder::most_vectors)).
    pub fn most_vectors(&self) -> usize {
        self.most_vectors
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.inner.shared.device()
    }

    /// Slots of the ring that it takes, 0 where all is on the device; with more than the ring has, which is 4, it cannot be prefetched as a
    /// whole.
    pub fn slots(&self) -> usize {
        self.streamed.as_ref().map_or(0, |(_, groups)| groups.all.len())
    }

    /// Whether some of it comes from the file, so that launching it waits.
    pub fn waits(&self) -> bool {
        self.streamed.as_ref().is_some_and(|(_, groups)| groups.wait())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some((streaming, groups)) = &self.streamed {
            streaming.forget(groups);
        }
    }
}
