//! The tensors of a decoder as they were planned, and what kernels are told of them wherever their bytes are. No device is touched here.

use std::collections::HashMap;
use std::ops::Range;

use wcodec_kernels::abi::{self, OutputKind};

use super::plan::{Limits, Method, PlaneAddresses, ProductOutput, TensorPlan, can_fuse, can_look_up, most_vectors};
use super::table::{Form, device_table};
use super::work_item::{DecodeItem, ProductItem, ProductPart, ResultOrder, Vectors, WorkItem, checked_rows};
use super::zstd::Demand;
use crate::decode::Container;
use crate::error::{Code, Error, Result};
use crate::tensor::Dtype;

/// Planned tensors, their tables and their statuses.
#[derive(Debug)]
pub(super) struct Tensors {
    pub plans: Vec<TensorPlan>,
    names: HashMap<String, usize>,
    /// Number of each tensor's first plane, counted through all of them, and how many planes there are.
    first_plane: Vec<usize>,
    /// Place of each plane's table among all of them, bytes.
    table_at: Vec<Option<usize>>,
    /// Device addresses of the tables, and of a status for each plane.
    tables: u64,
    statuses: u64,
}

/// Memory that tensors need on the device besides their compressed bytes.
#[derive(Debug)]
pub(super) struct Needs {
    /// Decoding tables, one after the other.
    pub tables: Vec<u32>,
    /// Planes, each of which has a status.
    pub planes: usize,
    /// Scratch of coder `zstd`.
    pub zstd: Demand,
}

impl Tensors {
    /// Tensors that were planned, with the names that the container has for them, and the memory that they need. They can be decoded when that
    /// has [addresses](Self::place).
    pub fn new(container: &Container, plans: Vec<TensorPlan>) -> (Self, Needs) {
        let mut places: HashMap<(usize, Form), usize> = HashMap::new();
        let (mut words, mut zstd): (Vec<u32>, _) = (Vec::new(), Demand::default());
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
                        zstd.add(plan.elements(), *chunk, *frames);
                        None
                    }
                    Method::Raw { .. } => None,
                });
            }
            first_plane.push(table_at.len());
        }
        let mut names: HashMap<String, usize> =
            plans.iter().enumerate().map(|(i, p)| (p.name().to_owned(), i)).collect();
        for (alias, name) in container.aliases() {
            if let Some(&i) = names.get(name) {
                names.insert(alias.clone(), i);
            }
        }
        let needs = Needs { tables: words, planes: table_at.len(), zstd };
        (Self { plans, names, first_plane, table_at, tables: 0, statuses: 0 }, needs)
    }

    /// Says at which addresses of the device tables and statuses lie.
    pub fn place(&mut self, tables: u64, statuses: u64) {
        (self.tables, self.statuses) = (tables, statuses);
    }

    pub fn find(&self, name: &str) -> Result<usize> {
        self.names.get(name).copied().ok_or_else(|| {
            coded!(INPUT_BUG, "no tensor '{name}' was planned for the device")
                .advice("name it when the decoder is made")
        })
    }

    /// An item that can be done: the tensor's number, the kind of the output, and the rows.
    ///
    /// # Errors
    /// The tensor was not planned, cannot be had as the dtype or by these rows, or the output is not aligned.
    pub fn checked(&self, item: &DecodeItem) -> Result<(usize, OutputKind, Range<usize>)> {
        let i = self.find(&item.name)?;
        let plan = &self.plans[i];
        let kind = plan.output(item.dtype)?;
        let rows = checked_rows(plan, item.rows.as_ref())?;
        if !item.out.is_multiple_of(kind.bytes() as u64) {
            return Err(coded!(INPUT_BUG, "an output at {:#x} for {}", item.out, item.dtype)
                .tensor(plan.name())
                .advice("outputs begin at multiples of their elements' size"));
        }
        Ok((i, kind, rows))
    }

    /// The work items that do `item`, one for each plane; `addresses` gives those of its planes by the tensor's number.
    pub fn items(
        &self,
        item: &DecodeItem,
        addresses: impl Fn(usize) -> Vec<PlaneAddresses>,
    ) -> Result<Vec<WorkItem<'_>>> {
        let (i, kind, rows) = self.checked(item)?;
        let plan = &self.plans[i];
        let planes = addresses(i).into_iter().zip(&plan.planes).zip(self.first_plane[i]..);
        let item = |((addresses, method), plane): ((PlaneAddresses, _), usize)| WorkItem {
            plan,
            method,
            addresses,
            table: self.table_at[plane].map_or(0, |at| self.tables + at as u64),
            status: self.statuses + 4 * plane as u64,
            out: item.out,
            kind,
            rows: rows.clone(),
            product: None,
        };
        Ok(planes.map(item).collect())
    }

    /// The work items that decode these rows of the tensor `item`, one range after the other; what it says of rows is not looked at.
    pub fn runs(
        &self,
        item: &DecodeItem,
        runs: &[Range<usize>],
        addresses: impl Fn(usize) -> Vec<PlaneAddresses>,
    ) -> Result<Vec<WorkItem<'_>>> {
        let planes = self.items(&DecodeItem { rows: None, ..item.clone() }, addresses)?;
        let Some(WorkItem { plan, kind, .. }) = planes.first() else { return Ok(Vec::new()) };
        let row_bytes = plan.matrix.2 * kind.bytes();
        let mut items = Vec::with_capacity(runs.len() * planes.len());
        let mut out = item.out;
        for run in runs {
            let rows = checked_rows(plan, Some(run))?;
            items.extend(planes.iter().map(|item| WorkItem { out, rows: rows.clone(), ..item.clone() }));
            out = out.wrapping_add((rows.len() * row_bytes) as u64);
        }
        Ok(items)
    }

    /// Targets that decode these rows, one for each range.
    pub fn run_items(&self, item: &DecodeItem, runs: &[Range<usize>]) -> Result<Vec<DecodeItem>> {
        let plan = &self.plans[self.find(&item.name)?];
        let row_bytes = plan.matrix.2 * plan.output(item.dtype)?.bytes();
        let mut out = item.out;
        let each = runs.iter().map(|run| {
            let rows = checked_rows(plan, Some(run))?;
            let next = out.wrapping_add((rows.len() * row_bytes) as u64);
            Ok(DecodeItem { rows: Some(rows), out: std::mem::replace(&mut out, next), ..item.clone() })
        });
        each.collect()
    }

    /// The work of products with these matrices together: items without addresses, and the places of their results.
    ///
    /// `multiplies` tells of which dtypes the device's kernels multiply vectors.
    ///
    /// # Errors
    /// A tensor was not planned, cannot be multiplied with as it is stored, or not in that dtype.
    pub fn products(
        &self,
        items: &[ProductItem],
        order: ResultOrder,
        multiplies: impl Fn(Dtype) -> bool,
    ) -> Result<Vec<(DecodeItem, ProductOutput)>> {
        self.check_parts(items)?;
        let mut before = 0u32;
        let each = items.iter().map(|item| {
            let plan = &self.plans[self.find(&item.name)?];
            let refuse =
                |code: Code, what: String, advice: &str| Err(code.error(what).tensor(plan.name()).advice(advice));
            if let Some(why) = can_fuse(plan) {
                let what = format!("no kernel multiplies with it as it is stored: {why}");
                return refuse(Code::NO_PRODUCT, what, "decode it, and multiply with what that gives");
            }
            if !matches!(item.dtype, Dtype::F16 | Dtype::BF16) || !multiplies(item.dtype) {
                let what = format!("no kernel of this device multiplies vectors of {}", item.dtype);
                return refuse(
                    Code::NO_PRODUCT,
                    what,
                    "use F16, or BF16 on devices of compute capability 8.0 and later",
                );
            }
            let rows = checked_rows(plan, item.rows.as_ref())?.len() as u32;
            let part = match item.part {
                ProductPart::Result => abi::PART_RESULT,
                ProductPart::Gate => abi::PART_GATE,
                ProductPart::Up => abi::PART_UP,
            };
            if item.vector >= Vectors::MOST {
                let (vector, most) = (item.vector, Vectors::MOST);
                let what = format!("vector {vector} of calls that have {most} at most");
                return refuse(Code::BAD_VECTORS, what, "multiply in several calls");
            }
            let product =
                ProductOutput { bias: item.bias, before, stride: rows, place: 0, part, vector: item.vector as u32 };
            // A gate gives its results with the up projection behind it.
            let rows = if item.part == ProductPart::Gate { 0 } else { rows };
            before = before.checked_add(rows).filter(|&n| n < 1 << 31).ok_or_else(|| {
                coded!(BAD_VECTORS, "products of more than 2^31 rows").advice("multiply with fewer tensors at once")
            })?;
            let item = DecodeItem { name: item.name.clone(), out: 0, dtype: item.dtype, rows: item.rows.clone() };
            Ok((item, product))
        });
        let mut found = each.collect::<Result<Vec<_>>>()?;
        if order == ResultOrder::ByVector {
            for (_, product) in &mut found {
                *product = ProductOutput { place: product.before, before: 0, stride: before, ..*product };
            }
        }
        Ok(found)
    }

    /// A gate is followed by its up projection, and nothing else is launched with them: both are all rows of matrices of
    /// one shape, or as many rows of one matrix.
    fn check_parts(&self, items: &[ProductItem]) -> Result<()> {
        if items.iter().all(|f| f.part == ProductPart::Result) {
            return Ok(());
        }
        let plan = |f: &ProductItem| Ok::<_, Error>(&self.plans[self.find(&f.name)?]);
        if let [gate, up] = items
            && (gate.part, up.part) == (ProductPart::Gate, ProductPart::Up)
            && plan(gate)?.matrix == plan(up)?.matrix
            && plan(gate)?.matrix.0 == 1
            && match (&gate.rows, &up.rows) {
                (None, None) => true,
                (Some(a), Some(b)) => gate.name == up.name && a.len() == b.len(),
                _ => false,
            }
        {
            return Ok(());
        }
        Err(coded!(
            NO_FUSED_KERNEL,
            "gates and values come as a pair: matrices of one shape, one behind the other, and no others"
        )
        .tensor(plan(&items[0])?.name())
        .advice("prepare them apart"))
    }

    /// The reason why no kernel multiplies vectors with a tensor as it is stored; none if one does.
    pub fn can_fuse(&self, name: &str) -> Result<Option<String>> {
        Ok(can_fuse(&self.plans[self.find(name)?]))
    }

    /// The most vectors of a launch of products with a tensor; 0 if no kernel multiplies with it.
    pub fn most_vectors(&self, name: &str, limits: Limits) -> Result<usize> {
        Ok(most_vectors(&self.plans[self.find(name)?], limits))
    }

    /// The reason why no kernel gathers rows of a tensor by indices on the device; none if one does.
    pub fn can_look_up(&self, name: &str) -> Result<Option<String>> {
        Ok(can_look_up(&self.plans[self.find(name)?]))
    }

    /// The work items of gathering rows of a tensor, to be written as `dtype`; `addresses` gives those of its planes by its number.
    ///
    /// # Errors
    /// No kernel looks rows of it up, or not as that dtype.
    pub fn lookup_items(
        &self,
        name: &str,
        dtype: Dtype,
        addresses: impl Fn(usize) -> Vec<PlaneAddresses>,
    ) -> Result<Vec<WorkItem<'_>>> {
        if let Some(why) = self.can_look_up(name)? {
            return Err(coded!(NO_LOOKUP, "no kernel gathers rows of it as it is stored: {why}")
                .tensor(name)
                .advice("decode it, and look them up in what that gives"));
        }
        self.items(&DecodeItem { name: name.to_owned(), out: 0, dtype, rows: None }, addresses)
    }

    pub fn output_bytes(&self, name: &str, dtype: Dtype) -> Result<usize> {
        let plan = &self.plans[self.find(name)?];
        Ok(plan.output_bytes(plan.output(dtype)?))
    }

    pub fn rows_of(&self, name: &str, first: Range<usize>) -> Result<Range<usize>> {
        self.plans[self.find(name)?].rows_of(first)
    }

    /// The damage that statuses tell of: the first damaged chunk, and how many tensors have some.
    pub fn damage(&self, statuses: &[u32]) -> Option<Error> {
        let bad = statuses.iter().position(|&s| s != abi::STATUS_GOOD)?;
        let of = |places: &[usize]| statuses[places[0]..places[1]].iter().any(|&s| s != abi::STATUS_GOOD);
        let damaged: Vec<usize> =
            self.first_plane.windows(2).enumerate().filter(|(_, p)| of(p)).map(|(i, _)| i).collect();
        let plan = &self.plans[damaged[0]];
        let others = damaged.len() - 1;
        let more = if others > 0 { format!("; {others} other tensors are damaged too") } else { String::new() };
        let plane = &plan.tensor.planes[bad - self.first_plane[damaged[0]]];
        Some(
            coded!(GPU_CHUNK, "chunk {} does not decode on the GPU{more}", statuses[bad])
                .tensor(plan.name())
                .offset(plane.data.offset)
                .advice("restore the file, or encode the model again"),
        )
    }
}
