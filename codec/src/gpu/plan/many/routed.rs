//! Launches of products with routed experts: which experts these are, and how many vectors each has, only the device knows.
//!
//! A launch has blocks for as many experts as there can be; those of an expert that does not come end at once. All experts are of one shape, so that a
//! block knows its expert and its strips by its number.
//!
//! One token has few experts, whose columns are divided so that a device has work for all of its multiprocessors. Many experts have work enough, and are
//! hardly divided: each warp of theirs begins once for all of its columns. So the order of sums is a fact of the matrices, of the number of experts, of the
//! vectors that a kernel is for, and of whether slots are few. Where a block has no room for what that asks for, it is that of a matrix by itself.

use wcodec_kernels::abi;
use wcodec_kernels::{Module, Variant};

use super::{Division, Memory, ProductTiles, aligned_factors, fits, shape_of, threads, work};
use crate::error::{Error, Result};
use crate::gpu::plan::Limits;

/// Vectors of an expert that there are launches for, at most.
const SIZES: [(usize, Variant); 2] = [(8, Variant::Routed8), (32, Variant::Routed32)];

/// Slots up to which these are few, and how many of them launches for few suit best.
const FEW_SLOTS: usize = 12;
const USUAL_FEW_SLOTS: usize = 8;

/// A launch for any routes, but for where these, vectors and results are.
#[derive(Clone, Debug)]
pub struct RoutedLaunch {
    pub module: Module,
    pub kernel: String,
    /// The most vectors of a slot.
    pub vectors: usize,
    /// The most slots.
    pub slots: usize,
    /// The division of the columns of all matrices.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare with launches of the same division"))]
    pub division: Division,
    /// The items of all experts, which lie in the device's memory.
    pub table: Vec<abi::ProductItem>,
    pub params: Box<abi::ProductBatch>,
    /// Thread blocks of an expert.
    pub blocks: u32,
    /// Thread blocks of a cluster.
    pub cluster: u32,
    pub threads: u32,
    pub shared: u32,
}

impl RoutedLaunch {
    /// Whether it multiplies with so many slots of up to so many vectors. The first launch that does is the one to take.
    pub fn takes(&self, vectors: usize, slots: usize) -> bool {
        vectors <= self.vectors && slots <= self.slots
    }
}

/// The launches for up to 8 and up to 32 vectors of a slot, in this order: first one for few slots, unless there are as few experts, and then one for any
/// number of them. The items of all experts have as many matrices each.
///
/// # Errors
/// Kernels of many vectors do not multiply with all of them, their shapes differ, or they are too large for a launch.
pub fn launches(experts: &[Vec<ProductTiles<'_>>], limits: Limits) -> Result<Vec<RoutedLaunch>> {
    check(experts, limits)?;
    let mut launches = Vec::new();
    for (vectors, variant) in SIZES {
        let any = launch(experts, vectors, variant, usize::MAX, limits)?;
        if experts.len() > USUAL_FEW_SLOTS {
            launches.push(launch(experts, vectors, variant, FEW_SLOTS, limits)?);
        }
        launches.push(any);
    }
    Ok(launches)
}

/// Why experts have no launch together.
fn refused(item: Option<&ProductTiles<'_>>, why: &str) -> Error {
    let error = coded!(NO_PRODUCT, "no kernel multiplies with routed experts: {why}").advice("decode them");
    match item {
        Some(item) => error.tensor(item.tiles.tensor.name()),
        None => error,
    }
}

fn check(experts: &[Vec<ProductTiles<'_>>], limits: Limits) -> Result<()> {
    if !limits.many {
        return Err(refused(None, "the device has none for many vectors"));
    }
    if experts.len() > abi::MOST_EXPERTS {
        return Err(refused(None, &format!("{} of them", experts.len())));
    }
    let Some(first) = experts.first().filter(|expert| !expert.is_empty()) else {
        return Err(refused(None, "none are given"));
    };
    let most = SIZES[SIZES.len() - 1].0;
    for expert in experts {
        if expert.len() != first.len() {
            return Err(refused(expert.first(), "some have other numbers of matrices"));
        }
        for (item, like) in expert.iter().zip(first) {
            if !fits(item.tiles.tensor, item.tiles.tiles, most, limits) {
                return Err(refused(Some(item), "those for many vectors do not take it, or have no room"));
            }
            if item.by_matrix().count() != 1 {
                return Err(refused(Some(item), "it is several matrices whose columns have factors"));
            }
            let same = form(item) == form(like) && item.key() == first[0].key();
            if !same || columns(item) != columns(&first[0]) || tile(item) != tile(&first[0]) {
                return Err(refused(Some(item), "it is stored otherwise than others, or has another shape"));
            }
        }
    }
    Ok(())
}

fn columns(item: &ProductTiles<'_>) -> usize {
    item.tiles.tiles.geometry.cols()
}

fn tile(item: &ProductTiles<'_>) -> usize {
    item.tiles.tiles.geometry.tile()
}

/// The facts of a matrix that have to be those of the same matrix of all experts: strips, tiles, and places of results.
fn form(item: &ProductTiles<'_>) -> (usize, usize, usize, u32, u32) {
    let geometry = &item.tiles.tiles.geometry;
    (item.strips(), geometry.tiles(), geometry.tile(), item.product.place, item.product.stride)
}

fn launch(
    experts: &[Vec<ProductTiles<'_>>],
    vectors: usize,
    variant: Variant,
    slots: usize,
    limits: Limits,
) -> Result<RoutedLaunch> {
    let (all, first) = (experts.concat(), &experts[0]);
    let (module, mode, kind, _) = first[0].key();
    let usual = if slots == FEW_SLOTS { USUAL_FEW_SLOTS } else { experts.len() };
    // Experts are of one shape.
    let some = &all[..all.len().min(usual * first.len())];
    let strips: Vec<usize> = some.iter().map(ProductTiles::strips).collect();
    let shape = shape_of(first[0].tiles.tensor, first[0].tiles.tiles);
    // `fits` knows of room for the second one, but not of the chunks of all experts together.
    let divisions = [shape.division_of_all(&strips, vectors), shape.division(vectors)];
    let found = divisions.into_iter().find_map(|division| {
        let memory = Memory::of_all(&all, vectors, division);
        let bytes = |strips| Memory { strips, ..memory }.bytes();
        work(some, vectors, division).strips_of_a_flowing_block(bytes, limits).map(|strips| (memory, strips))
    });
    let (memory, strips) =
        found.ok_or_else(|| refused(first.first(), "a block of threads has no room for its chunks"))?;
    let division = memory.division;
    let mut blocks = 0;
    let mut ranges = Vec::with_capacity(first.len());
    for item in first {
        let begin = blocks;
        blocks += item.strips().div_ceil(strips) * division.ranks;
        ranges.push(begin..blocks);
    }
    let table = all.iter().zip(ranges.iter().cycle()).map(|(item, range)| {
        // As many results as there can be positions.
        item.params(range.clone(), 0, abi::MOST_ROUTES)
    });
    let table = table.collect::<Result<Vec<_>>>()?;
    let memory = Memory { strips, ..memory }.placed(limits);
    let mut params = Box::new(abi::ProductBatch { count: first.len() as u32, ..Default::default() });
    params.vector = aligned_factors(&table);
    params.copies = blocks as u32;
    memory.place(&mut params);
    Ok(RoutedLaunch {
        module: Module::Huffmanmany,
        kernel: mode.multiplying_kernel(module, kind, variant).expect("`fits` was asked"),
        vectors,
        slots,
        division,
        table,
        params,
        blocks: blocks as u32,
        cluster: division.ranks as u32,
        threads: threads(strips, division.parts(), vectors) as u32,
        shared: memory.bytes() as u32,
    })
}
