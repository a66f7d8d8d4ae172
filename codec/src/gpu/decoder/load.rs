//! The way of tensors from a container to their residency.

use std::sync::{Arc, Mutex};

use super::streaming::Streaming;
use super::{HostTensors, Inner};
use crate::decode::{Container, DecodeOptions};
use crate::error::Result;
use crate::gpu::buffer::{DeviceBuffer, PinnedBuffer};
use crate::gpu::device::Device;
use crate::gpu::disk::{self, Disk};
use crate::gpu::footprint::Sizes;
use crate::gpu::options::GpuOptions;
use crate::gpu::plan::{Method, TensorPlan};
use crate::gpu::residency::{Home, Residency};
use crate::gpu::shared::Shared;
use crate::gpu::stream::{Event, Stream};
use crate::gpu::upload::{Stage, read_plans};

/// Some of the tensors that a decoder is for: those of one residency.
#[derive(Default)]
struct Residents {
    names: Vec<String>,
    /// Bytes of them, packed.
    sizes: Vec<usize>,
    /// Their places among all.
    places: Vec<usize>,
}

impl Residents {
    fn bytes(&self) -> usize {
        self.sizes.iter().sum()
    }
}

/// Reads and checks tensors, and brings each to its residency.
pub fn load(
    device: &Device,
    container: &Container,
    names: &[String],
    residency: &dyn Fn(&str) -> Residency,
    options: &GpuOptions,
) -> Result<Inner> {
    let names = container.stored_names(names)?;
    // Sizes are known from the index, so that memory is asked for once.
    let sizes = Sizes::new(container, &names)?;
    let (mut on_device, mut on_host, mut on_disk) = (Residents::default(), Residents::default(), Residents::default());
    for (place, (name, &size)) in names.iter().zip(sizes.packed_bytes()).enumerate() {
        let residents = match residency(name) {
            Residency::Device => &mut on_device,
            Residency::Host => &mut on_host,
            Residency::Disk => &mut on_disk,
        };
        residents.names.push(name.clone());
        residents.sizes.push(size);
        residents.places.push(place);
    }
    let mut plans: Vec<Option<(TensorPlan, Home)>> = names.iter().map(|_| None).collect();
    let stream = Stream::new(device)?;
    let packed_tensors = to_device(device, container, &on_device, options, &stream, &mut plans)?;
    let host = to_host(device, container, &on_host, options, &mut plans)?;
    let streaming = if on_host.names.is_empty() && on_disk.names.is_empty() {
        None
    } else {
        let slot_bytes = sizes.slot(on_host.places.iter().chain(&on_disk.places).copied(), options.ring);
        let disk = match on_disk.names.is_empty() {
            true => None,
            false => {
                let (disk, planned) = open_disk(container, &on_disk.names, slot_bytes, options)?;
                for (&place, plan) in on_disk.places.iter().zip(planned) {
                    plans[place] = Some((plan, Home::Disk));
                }
                Some(disk)
            }
        };
        let margin = disk::margin(on_disk.places.iter().flat_map(|&i| &plans[i]).map(|(plan, _)| plan.planes.len()));
        let pinned_bytes = disk.as_ref().map_or(0, |_| slot_bytes.next_multiple_of(disk::PAGE) + margin);
        let packed_tensors = match &host {
            Some(host) => host.memory.clone(),
            None => Arc::new(PinnedBuffer::new(device, 0)?),
        };
        let copies = Stream::new(device)?;
        Some(Arc::new(Streaming::new(device, packed_tensors, disk, (slot_bytes, pinned_bytes), copies)?))
    };
    let (plans, homes) = plans.into_iter().map(|plan| plan.expect("a plan of each tensor")).unzip();
    let shared = Shared::new(device, container, plans, options, &stream)?;
    stream.synchronize()?;
    Ok(Inner { shared, homes, packed_tensors, host, streaming })
}

/// Sends tensors to the device.
fn to_device(
    device: &Device,
    container: &Container,
    residents: &Residents,
    options: &GpuOptions,
    stream: &Stream,
    plans: &mut [Option<(TensorPlan, Home)>],
) -> Result<DeviceBuffer> {
    let packed_tensors = DeviceBuffer::new(device, residents.bytes())?;
    if residents.names.is_empty() {
        return Ok(packed_tensors);
    }
    let mut stage = Stage::new(device, packed_tensors.len())?;
    let (mut begins, mut at) = (Vec::with_capacity(residents.names.len()), 0);
    let read = read_plans(container, &residents.names, &residents.sizes, options, &mut |read| {
        begins.extend(read.begins().iter().map(|begin| at + begin));
        stage.send(read, &packed_tensors, at, stream)?;
        at += read.len();
        Ok(())
    })?;
    for ((&place, plan), begin) in residents.places.iter().zip(read).zip(begins) {
        plans[place] = Some((plan, Home::Device(begin)));
    }
    Ok(packed_tensors)
}

/// Reads tensors to pinned memory.
fn to_host(
    device: &Device,
    container: &Container,
    residents: &Residents,
    options: &GpuOptions,
    plans: &mut [Option<(TensorPlan, Home)>],
) -> Result<Option<HostTensors>> {
    if residents.names.is_empty() {
        return Ok(None);
    }
    let mut memory = PinnedBuffer::new(device, residents.bytes())?;
    let (mut begins, mut at) = (Vec::with_capacity(residents.names.len()), 0);
    let read = read_plans(container, &residents.names, &residents.sizes, options, &mut |read| {
        begins.extend(read.begins().iter().map(|begin| at + begin));
        read.fill(0, &mut memory[at..at + read.len()])?;
        at += read.len();
        Ok(())
    })?;
    for ((&place, plan), begin) in residents.places.iter().zip(read).zip(begins) {
        plans[place] = Some((plan, Home::Host(begin)));
    }
    let address = memory.device_address()?;
    let (readers, reader) = (Stream::new(device)?, Mutex::new(Event::new(device)?));
    Ok(Some(HostTensors { memory: Arc::new(memory), address, readers, reader }))
}

/// The file of a container, and the plans of its tensors `names`, after all checks that need no coded bytes.
fn open_disk(
    container: &Container,
    names: &[String],
    slot_bytes: usize,
    options: &GpuOptions,
) -> Result<(Disk, Vec<TensorPlan>)> {
    let read =
        DecodeOptions { threads: options.threads, verify: options.verify, cancel: options.cancel.clone(), isa: None };
    let pool = container.pool(options.threads)?;
    let plans = pool.each(names, &options.cancel, |name| {
        let (tensor, tables) = container.structure_of(name, &read)?;
        TensorPlan::of(&tensor, tables.into_iter()).map_err(|e| container.reader().name(e))
    })?;
    // nvCOMP is not safe on frames that are damaged.
    let frames = |plan: &TensorPlan| plan.planes.iter().any(|m| matches!(m, Method::Zstd { .. }));
    let verify = options.verify || (!container.trusted() && plans.iter().any(frames));
    let disk = Disk::new(container, options.readers, options.direct, verify)?;
    let in_parts: Vec<&TensorPlan> = plans.iter().filter(|p| verify && p.packed.len > slot_bytes).collect();
    pool.each(in_parts, &options.cancel, |plan| {
        let segments = plan.tensor.planes.iter().flat_map(|p| [p.offsets.as_ref(), Some(&p.data), p.side.as_ref()]);
        let scales = plan.tensor.symbol_scales().map(|s| &s.segment);
        segments.flatten().chain(scales).try_for_each(|segment| {
            options.cancel.check()?;
            disk.check_segment(segment).map_err(|e| e.tensor(plan.name()))
        })
    })?;
    Ok((disk, plans))
}
