//! What decoders on a device have in common, wherever compressed bytes are: tables, statuses, nvCOMP, and the way from targets to
//! launches.

use std::collections::HashMap;
use std::ops::Range;

use wcodec_kernels::abi;

use super::buffer::DeviceBuffer;
use super::device::Device;
use super::launch::{Launcher, Launches, Lookups};
use super::nvcomp::Nvcomp;
use super::options::GpuOptions;
use super::plan::{Method, Places, TensorPlan, Times, no_lookup, unfused};
use super::stream::Stream;
use super::table::{Form, device_table};
use super::task::{DecodeTask, Factor, FactorPart, RowIds, Target, Vectors, checked_rows};
use super::zstd::{self, Demand, FrameRun, Zstd};
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::tensor::Dtype;

/// Work that only needs to be launched.
#[derive(Debug)]
pub(super) struct Work {
    launches: Launches,
    frames: Vec<FrameRun>,
}

/// What all tensors of a plan share on a device.
#[derive(Debug)]
pub(super) struct Shared {
    pub plans: Vec<TensorPlan>,
    names: HashMap<String, usize>,
    tables: DeviceBuffer,
    /// Number of each tensor's first plane, counted through all of them, and how many planes there are.
    first_plane: Vec<usize>,
    /// Place of each plane's table in `tables`.
    table_at: Vec<Option<usize>>,
    /// One of each plane.
    statuses: DeviceBuffer,
    launcher: Launcher,
    zstd: Option<Zstd>,
    overlap: bool,
}

impl Shared {
    pub fn new(
        device: &Device,
        container: &Container,
        plans: Vec<TensorPlan>,
        options: &GpuOptions,
        stream: &Stream,
    ) -> Result<Self> {
        let mut places: HashMap<(usize, Form), usize> = HashMap::new();
        let mut words: Vec<u32> = Vec::new();
        let mut demand = Demand::default();
        let (mut table_at, mut first_plane) = (Vec::new(), vec![0]);
        for plan in &plans {
            for method in &plan.planes {
                table_at.push(match method {
                    Method::Tiles(t) => {
                        let form = Form::of(&t.tiling);
                        Some(*places.entry((t.table_number, form)).or_insert_with(|| {
                            let at = words.len() * 4;
                            words.extend(device_table(&t.table, form));
                            at
                        }))
                    }
                    Method::Zstd { chunk, frames, .. } => {
                        demand.add(plan.elements(), *chunk, *frames);
                        None
                    }
                    Method::Raw { .. } => None,
                });
            }
            first_plane.push(table_at.len());
        }
        let zstd = if demand.frames > 0 {
            let nvcomp = Nvcomp::load_for(device, options.nvcomp.as_deref(), &options.nvcomp_folders)?;
            Some(Zstd::new(device, nvcomp, demand, zstd::budget(Some(device), options))?)
        } else {
            None
        };
        let tables = DeviceBuffer::new(device, words.len() * 4)?;
        tables.upload(0, bytemuck::cast_slice(&words), stream)?;
        let statuses = DeviceBuffer::new(device, table_at.len() * 4)?;
        statuses.fill(0xFF, stream)?;
        let mut names: HashMap<String, usize> =
            plans.iter().enumerate().map(|(i, p)| (p.name().to_owned(), i)).collect();
        for (alias, name) in container.aliases() {
            if let Some(&i) = names.get(name) {
                names.insert(alias.clone(), i);
            }
        }
        let launcher = Launcher::new(device);
        Ok(Self { plans, names, tables, first_plane, table_at, statuses, launcher, zstd, overlap: options.overlap })
    }

    pub fn find(&self, name: &str) -> Result<usize> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::input(format!("no tensor '{name}' was planned for the device"))
                .advice("name it when the decoder is made")
        })
    }

    /// The tasks that do `target`, one for each plane, whose images are at what `images` says of the tensor's number.
    pub fn tasks(&self, target: &Target, images: impl Fn(usize) -> Vec<Places>) -> Result<Vec<DecodeTask<'_>>> {
        let i = self.find(&target.name)?;
        let plan = &self.plans[i];
        let kind = plan.output(target.dtype)?;
        let rows = checked_rows(plan, target.rows.as_ref())?;
        if !target.out.is_multiple_of(kind.bytes() as u64) {
            return Err(Error::input(format!("an output at {:#x} for {}", target.out, target.dtype))
                .tensor(plan.name())
                .advice("outputs begin at multiples of their elements' size"));
        }
        let planes = images(i).into_iter().zip(&plan.planes).zip(self.first_plane[i]..);
        let task = |((image, method), plane): ((Places, _), usize)| DecodeTask {
            plan,
            method,
            image,
            table: self.table_at[plane].map_or(0, |at| self.tables.ptr() + at as u64),
            status: self.statuses.ptr() + 4 * plane as u64,
            out: target.out,
            kind,
            rows: rows.clone(),
            times: None,
        };
        Ok(planes.map(task).collect())
    }

    /// The tasks that decode these rows of the tensor `target`, one range behind the other; what it says of rows is not looked at.
    pub fn runs(
        &self,
        target: &Target,
        runs: &[Range<usize>],
        images: impl Fn(usize) -> Vec<Places>,
    ) -> Result<Vec<DecodeTask<'_>>> {
        let whole = self.tasks(&Target { rows: None, ..target.clone() }, images)?;
        let Some(DecodeTask { plan, kind, .. }) = whole.first() else { return Ok(Vec::new()) };
        let row_bytes = plan.matrix.2 * kind.bytes();
        let mut tasks = Vec::with_capacity(runs.len() * whole.len());
        let mut out = target.out;
        for run in runs {
            let rows = checked_rows(plan, Some(run))?;
            tasks.extend(whole.iter().map(|task| DecodeTask { out, rows: rows.clone(), ..task.clone() }));
            out = out.wrapping_add((rows.len() * row_bytes) as u64);
        }
        Ok(tasks)
    }

    /// What is to be done for products with these matrices together: targets without addresses, and where their results lie.
    ///
    /// # Errors
    /// A tensor was not planned, cannot be multiplied with as it is stored, or not in that dtype.
    pub fn factors(&self, factors: &[Factor]) -> Result<Vec<(Target, Times)>> {
        self.check_parts(factors)?;
        let mut before = 0u32;
        let each = factors.iter().map(|factor| {
            let plan = &self.plans[self.find(&factor.name)?];
            let refuse = |what: String, advice: &str| Err(Error::input(what).tensor(plan.name()).advice(advice));
            if let Some(why) = unfused(plan) {
                let what = format!("no kernel multiplies with it as it is stored: {why}");
                return refuse(what, "decode it, and multiply with what that gives");
            }
            if !matches!(factor.dtype, Dtype::F16 | Dtype::BF16) || !self.launcher.multiplies(factor.dtype) {
                let what = format!("no kernel of this device multiplies vectors of {}", factor.dtype);
                return refuse(what, "use F16, or BF16 on devices of compute capability 8.0 and later");
            }
            let rows = checked_rows(plan, factor.rows.as_ref())?.len() as u32;
            let part = match factor.part {
                FactorPart::Result => abi::PART_RESULT,
                FactorPart::Gate => abi::PART_GATE,
                FactorPart::Value => abi::PART_VALUE,
            };
            if factor.vector >= Vectors::MOST {
                let (vector, most) = (factor.vector, Vectors::MOST);
                let what = format!("vector {vector} of calls that have {most} at most");
                return refuse(what, "multiply in several calls");
            }
            let times = Times { bias: factor.bias, before, stride: rows, place: 0, part, vector: factor.vector as u32 };
            // Gates give their results with the values behind them.
            let rows = if factor.part == FactorPart::Gate { 0 } else { rows };
            before = before.checked_add(rows).filter(|&n| n < 1 << 31).ok_or_else(|| {
                Error::input("products of more than 2^31 rows").advice("multiply with fewer tensors at once")
            })?;
            let target = Target { name: factor.name.clone(), out: 0, dtype: factor.dtype, rows: factor.rows.clone() };
            Ok((target, times))
        });
        each.collect()
    }

    /// Gates are followed by their values, and nothing else is launched with them: both are all rows of matrices of one shape.
    fn check_parts(&self, factors: &[Factor]) -> Result<()> {
        if factors.iter().all(|f| f.part == FactorPart::Result) {
            return Ok(());
        }
        let plan = |f: &Factor| Ok::<_, Error>(&self.plans[self.find(&f.name)?]);
        if let [gate, value] = factors
            && (gate.part, value.part) == (FactorPart::Gate, FactorPart::Value)
            && gate.rows.is_none()
            && value.rows.is_none()
            && plan(gate)?.matrix == plan(value)?.matrix
            && plan(gate)?.matrix.0 == 1
        {
            return Ok(());
        }
        Err(Error::input("gates and values come as a pair: matrices of one shape, one behind the other, and no others")
            .tensor(plan(&factors[0])?.name())
            .advice("prepare them apart"))
    }

    /// Why a tensor cannot be multiplied with as it is stored; nothing if it can.
    pub fn unfused(&self, name: &str) -> Result<Option<String>> {
        Ok(unfused(&self.plans[self.find(name)?]))
    }

    /// Why rows of a tensor cannot be looked up by numbers on the device; nothing if they can.
    pub fn no_lookup(&self, name: &str) -> Result<Option<String>> {
        Ok(no_lookup(&self.plans[self.find(name)?]))
    }

    /// What looks rows of a tensor up, to be written as `dtype`.
    pub fn prepare_lookup(&self, name: &str, dtype: Dtype, images: impl Fn(usize) -> Vec<Places>) -> Result<Lookups> {
        if let Some(why) = self.no_lookup(name)? {
            return Err(Error::input(format!("no kernel looks rows of it up as it is stored: {why}"))
                .tensor(name)
                .advice("decode it, and look them up in what that gives"));
        }
        let target = Target { name: name.to_owned(), out: 0, dtype, rows: None };
        self.launcher.prepare_lookup(&self.tasks(&target, images)?)
    }

    /// Puts the looking up of rows into the stream.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch): `out` has room for as many rows as there are numbers, which are not changed meanwhile.
    pub unsafe fn look_up(&self, work: &Lookups, ids: RowIds, out: u64, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.look_up(work, ids, out, stream, self.overlap) }
    }

    /// Turns tasks into launches. Loads the kernels that they need, so that launching neither allocates nor waits.
    pub fn prepare(&self, tasks: &[DecodeTask<'_>]) -> Result<Work> {
        let some = tasks.iter().filter(|t| t.plan.elements() > 0 && !t.rows.is_empty());
        let (frames, others): (Vec<_>, Vec<_>) = some.partition(|t| matches!(t.method, Method::Zstd { .. }));
        let frames = frames.into_iter().map(FrameRun::new).collect::<Result<_>>()?;
        Ok(Work { launches: self.launcher.prepare(&others)?, frames })
    }

    /// Puts the work into the stream.
    ///
    /// # Safety
    /// The addresses of the tasks are of memory that is large enough and lives until the work is done, images are as
    /// planned, and nothing else writes there meanwhile.
    pub unsafe fn launch(&self, work: &Work, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.launch(&work.launches, stream, self.overlap)? };
        if !work.frames.is_empty() {
            let zstd = self.zstd.as_ref();
            let zstd = zstd.ok_or_else(|| Error::device("planes of coder zstd were planned without nvCOMP"))?;
            // SAFETY: likewise.
            unsafe { zstd.launch(&work.frames, self.launcher.limits(), stream)? };
        }
        Ok(())
    }

    /// Puts the work, which is products, into the stream.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch); `vectors` are of memory that is large enough, and lives until the work is done.
    pub unsafe fn multiply(&self, work: &Work, vectors: &Vectors, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launcher.multiply(&work.launches, vectors, stream, self.overlap) }
    }

    /// Waits for the stream, and reports what was found damaged since the last call.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let mut statuses = vec![abi::STATUS_GOOD; self.table_at.len()];
        self.statuses.download(0, bytemuck::cast_slice_mut(&mut statuses), stream)?;
        let Some(bad) = statuses.iter().position(|&s| s != abi::STATUS_GOOD) else { return Ok(()) };
        self.statuses.fill(0xFF, stream)?;
        let of = |places: &[usize]| statuses[places[0]..places[1]].iter().any(|&s| s != abi::STATUS_GOOD);
        let damaged: Vec<usize> =
            self.first_plane.windows(2).enumerate().filter(|(_, p)| of(p)).map(|(i, _)| i).collect();
        let plan = &self.plans[damaged[0]];
        let others = damaged.len() - 1;
        let more = if others > 0 { format!("; {others} other tensors are damaged too") } else { String::new() };
        let plane = &plan.tensor.planes[bad - self.first_plane[damaged[0]]];
        Err(Error::corrupt(format!("chunk {} does not decode on the GPU{more}", statuses[bad]))
            .tensor(plan.name())
            .offset(plane.data.offset)
            .advice("restore the file, or encode the model again"))
    }

    pub fn output_bytes(&self, name: &str, dtype: Dtype) -> Result<usize> {
        let plan = &self.plans[self.find(name)?];
        Ok(plan.output_bytes(plan.output(dtype)?))
    }

    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.plans[self.find(name)?].rows_of(first)
    }

    pub fn device_bytes(&self) -> usize {
        self.tables.len() + self.statuses.len() + self.zstd.as_ref().map_or(0, Zstd::scratch_bytes)
    }

    pub fn device(&self) -> &Device {
        self.launcher.device()
    }
}
