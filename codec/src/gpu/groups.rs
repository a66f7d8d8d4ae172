//! Work on tensors whose bytes are not on the device, cut into groups that fill a slot each. No device is touched here.

use std::ops::Range;

use super::disk::{self, Disk, Reads};
use super::packed_rows::PackedRows;
use super::plan::{PlaneAddresses, ProductOutput, TensorPlan};
use super::residency::Home;
use super::tensors::Tensors;
use super::work_item::{DecodeItem, WorkItem, checked_rows};
use crate::coder::TILE_ROWS;
use crate::error::Result;
use crate::tensor::AlignedBytes;

/// Rows of tensors that share a slot, and what to copy for them.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub pieces: Vec<GroupRows>,
    /// Ranges of the packed tensors in the host's memory, each with its place in the slot.
    pub copies: Vec<(Range<usize>, usize)>,
    /// The bytes that come from the file.
    pub reads: Reads,
    /// Bytes of the slot that it takes.
    pub bytes: usize,
}

/// Rows of an item, all or some.
#[derive(Debug)]
pub(super) struct GroupRows {
    item: DecodeItem,
    /// Its products' places, if it is to be multiplied with.
    product: Option<ProductOutput>,
    pub rows: Range<usize>,
    piece: PackedRows,
    /// Its place in the slot.
    at: usize,
}

/// An item, and where its rows' products go if it is to be multiplied with.
pub(super) type Wanted = (DecodeItem, Option<ProductOutput>);

/// The work items of those items whose bytes are on the device, where `addresses` gives them by the tensor's number; and the other items, all of
/// which can be done.
///
/// # Errors
/// One of the items cannot be done.
pub(super) fn split<'a>(
    tensors: &'a Tensors,
    homes: &[Home],
    wanted: Vec<Wanted>,
    addresses: impl Fn(usize) -> Vec<PlaneAddresses>,
) -> Result<(Vec<WorkItem<'a>>, Vec<Wanted>)> {
    let (mut items, mut others) = (Vec::new(), Vec::new());
    for (item, product) in wanted {
        match homes[tensors.checked(&item)?.0] {
            Home::Device(_) => {
                let all = tensors.items(&item, &addresses)?;
                items.extend(all.into_iter().map(|item| WorkItem { product, ..item }));
            }
            Home::Host(_) | Home::Disk => others.push((item, product)),
        }
    }
    Ok((items, others))
}

/// The sources of compressed bytes, and the space for them on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    /// The home of each tensor.
    pub homes: &'a [Home],
    /// All packed tensors in the host's memory.
    pub packed_tensors: &'a [u8],
    pub disk: Option<&'a Disk>,
    /// Bytes of a slot.
    pub slot: usize,
    /// Bytes of the host's memory beside each slot, for what comes from the file.
    pub pinned: usize,
}

impl Sources<'_> {
    /// Cuts items that are not on the device into groups, and joins what lies together to one copy.
    pub fn groups(&self, tensors: &Tensors, wanted: &[Wanted]) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        // Many items may be rows of one tensor.
        let mut head: Option<(usize, AlignedBytes)> = None;
        for (item, product) in wanted {
            let tensor = tensors.find(&item.name)?;
            let plan = &tensors.plans[tensor];
            let rows = checked_rows(plan, item.rows.as_ref())?;
            let uncut = rows.len() == plan.rows() && plan.packed.len <= self.slot;
            // A tensor that is copied as a whole is asked nothing.
            let packed = match (self.homes[tensor], self.disk) {
                (Home::Host(at), _) => &self.packed_tensors[at..at + plan.packed.len],
                (Home::Disk, Some(disk)) if !uncut => {
                    let read = match head.take() {
                        Some(read) if read.0 == tensor => read,
                        _ => (tensor, disk.head(plan)?),
                    };
                    &head.insert(read).1[..]
                }
                _ => &[],
            };
            self.add(&mut groups, plan, packed, (rows, uncut), (item, *product), self.homes[tensor]);
        }
        if let Some(disk) = self.disk {
            groups.iter().try_for_each(|group| disk.check_parts(&group.reads))?;
        }
        Ok(groups)
    }

    /// Adds rows of an item, all of the tensor if it is `uncut`. `packed` has at least the part of the packed tensor that says where chunks
    /// lie, unless it is whole.
    fn add(
        &self,
        groups: &mut Vec<Group>,
        plan: &TensorPlan,
        packed: &[u8],
        (mut left, uncut): (Range<usize>, bool),
        (item, product): (&DecodeItem, Option<ProductOutput>),
        home: Home,
    ) {
        let begin = left.start;
        loop {
            let capacity = self.slot - groups.last().map_or(self.slot, |g| g.bytes);
            // A tensor that is read as a whole can be compared with its hash.
            let fits = if uncut && home == Home::Disk && plan.packed.len > capacity {
                None
            } else {
                PackedRows::fitting(plan, packed, &left, capacity)
            };
            let Some((rows, piece)) = fits else {
                groups.push(Group::default());
                continue;
            };
            if groups.is_empty() {
                groups.push(Group::default());
            }
            let product = product.map(|p| p.starting_at((rows.start - begin) as u32));
            let last = groups.last_mut().expect("made above");
            let next = rows.end;
            match home {
                Home::Host(at) => last.copy(&piece, at),
                Home::Disk => {
                    let fetches = disk::fetches(plan, &piece, last.bytes);
                    if last.reads.add(fetches, self.pinned).is_err() {
                        groups.push(Group::default());
                        continue;
                    }
                }
                Home::Device(_) => unreachable!("what is on the device passes through no slot"),
            }
            last.add(item, product, rows, piece);
            left.start = next;
            if left.is_empty() {
                return;
            }
        }
    }
}

impl Group {
    /// Copies a piece of the item whose packed tensor begins at `packed` of all.
    fn copy(&mut self, piece: &PackedRows, packed: usize) {
        for (part, place) in &piece.copies {
            let (from, to) = (packed + part.start..packed + part.end, self.bytes + place);
            match self.copies.last_mut() {
                Some((last, place)) if last.end == from.start && *place + last.len() == to => last.end = from.end,
                _ => self.copies.push((from, to)),
            }
        }
    }

    /// Adds rows of an item, behind what is there.
    fn add(&mut self, item: &DecodeItem, product: Option<ProductOutput>, rows: Range<usize>, piece: PackedRows) {
        let at = self.bytes;
        self.bytes += piece.len;
        self.pieces.push(GroupRows { item: item.clone(), product, rows, piece, at });
    }

    /// The work items that decode the group, or multiply with it, from a slot at the address `base`.
    pub fn items<'a>(&self, tensors: &'a Tensors, base: u64) -> Result<Vec<WorkItem<'a>>> {
        let mut items = Vec::new();
        for p in &self.pieces {
            for mut item in tensors.items(&p.item, |_| p.places(base))? {
                item.out += ((p.rows.start - item.rows.start) * item.plan.row_bytes(item.kind)) as u64;
                item.rows = p.rows.clone();
                item.product = p.product;
                items.push(item);
            }
        }
        Ok(items)
    }
}

impl GroupRows {
    /// The places of the tensor's planes in a slot at the address `base`.
    pub fn places(&self, base: u64) -> Vec<PlaneAddresses> {
        self.piece.at(base + self.at as u64)
    }
}

/// Rows that are gathered from a tensor in the file: what of it is read, and which of the rows each part of that serves.
#[derive(Debug)]
pub(super) struct FileLookup {
    pub groups: Vec<Group>,
    /// Runs of the gathered rows, by group, each with the group's piece that has them.
    pub runs: Vec<Vec<(usize, Range<usize>)>>,
}

impl FileLookup {
    /// Plans the gathering of the rows `ids` of a matrix. Indices out of range stand for the first row, of which kernels read then.
    pub fn new(sources: &Sources<'_>, tensors: &Tensors, item: &DecodeItem, ids: &[i64]) -> Result<Self> {
        let plan = &tensors.plans[tensors.find(&item.name)?];
        let row = |id: &i64| usize::try_from(*id).ok().filter(|&row| row < plan.rows()).unwrap_or(0);
        let strip = |id: &i64| plan.strip_of(row(id) / TILE_ROWS * TILE_ROWS);
        let mut strips: Vec<usize> = ids.iter().map(strip).collect();
        strips.sort_unstable();
        strips.dedup();
        let rows_of = |strips: &[usize]| plan.first_row(strips[0])..plan.first_row(strips[strips.len() - 1] + 1);
        let together = strips.chunk_by(|a, b| a + 1 == *b);
        let wanted = together.map(|strips| (DecodeItem { rows: Some(rows_of(strips)), ..item.clone() }, None));
        let groups = sources.groups(tensors, &wanted.collect::<Vec<_>>())?;
        // Pieces come in the order of their rows.
        let pieces: Vec<(usize, usize, usize)> = groups
            .iter()
            .enumerate()
            .flat_map(|(g, group)| group.pieces.iter().enumerate().map(move |(p, piece)| (piece.rows.end, g, p)))
            .collect();
        let piece = |id: &i64| pieces.partition_point(|(end, ..)| *end <= row(id));
        let mut runs = vec![Vec::new(); groups.len()];
        let mut begin = 0;
        for ids in ids.chunk_by(|a, b| piece(a) == piece(b)) {
            let (_, group, of) = pieces[piece(&ids[0])];
            runs[group].push((of, begin..begin + ids.len()));
            begin += ids.len();
        }
        Ok(Self { groups, runs })
    }
}
