//! Two files, tensor by tensor: worked out once from their indexes, nothing is decoded.

use wcodec::container::{Hash, Index, Segment, TensorEntry};
use wcodec::names::natural;
use wcodec::{SchemeKind, TensorInfo};

use super::FileModel;
use super::totals::Totals;

worded! {
    /// The relation of a tensor in two files, from the most alike to the least.
    Relation {
        Same = "same", "the stored bytes are the same";
        Recoded = "recoded, same values", "other bytes are stored, and they decode to the same";
        Differs = "differ", "they decode to something else";
        OnlyA = "only in A", "only the first file has it";
        OnlyB = "only in B", "only the second file has it";
    }
}

impl Relation {
    /// Whether the files do not hold the same values.
    pub fn differs(self) -> bool {
        !matches!(self, Self::Same | Self::Recoded)
    }
}

/// A name and what the files have under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The name.
    pub name: String,
    /// Its place in each file that has it, or that of the tensor it is tied to.
    pub places: [Option<usize>; 2],
    /// Whether it is tied there to another tensor, and stores nothing itself.
    pub tied: [bool; 2],
    /// Their relation.
    pub relation: Relation,
}

/// All names of two files.
#[derive(Debug, Default)]
pub struct Comparison {
    /// In natural order.
    pub rows: Vec<Compared>,
    /// Places of all rows by the size of the difference, the largest first: what is in one file alone or has other values, then what is
    /// stored otherwise, then the rest; each by how many more or fewer bytes are stored.
    pub by_size: Vec<usize>,
    /// The number of rows that have other values or are in one file alone: those come first by size.
    pub differing: usize,
    /// The number of rows of each relation, in the order of [`Relation`].
    pub counts: [usize; 5],
    /// Sums over the first file.
    pub a: Totals,
    /// Sums over the second one.
    pub b: Totals,
    /// The largest relative difference of stored sizes, at most 1: what the longest bar stands for.
    pub most: f64,
}

impl Comparison {
    /// Compares two files by the hashes in their indexes.
    pub fn new(a: &FileModel, b: &FileModel) -> Self {
        // Each list is sorted but for the aliases: sorting them together is little work.
        let mut names: Vec<(&str, usize, usize, bool)> = Vec::new();
        for (which, file) in [a, b].into_iter().enumerate() {
            names.extend(file.natural.iter().map(|&i| (file.tensors[i].name.as_str(), which, i, false)));
            for (alias, of) in &file.aliases {
                names.extend(file.find(of).map(|i| (alias.as_str(), which, i, true)));
            }
        }
        names.sort_by(|x, y| natural(x.0, y.0).then(x.1.cmp(&y.1)));
        let mut found = Self { a: a.totals, b: b.totals, ..Self::default() };
        // Only containers say what they hold.
        let (Ok(of_a), Ok(of_b)) = (a.container(), b.container()) else { return found };
        let (index_a, index_b) = (of_a.reader().index(), of_b.reader().index());
        for same in names.chunk_by(|x, y| x.0 == y.0) {
            let (mut places, mut tied) = ([None; 2], [false; 2]);
            for &(_, which, place, is_tied) in same.iter().rev() {
                (places[which], tied[which]) = (Some(place), is_tied);
            }
            let relation = match places {
                [Some(x), Some(y)] => relation(index_a, x, index_b, y),
                [Some(_), None] => Relation::OnlyA,
                _ => Relation::OnlyB,
            };
            let row = Compared { name: same[0].0.to_owned(), places, tied, relation };
            if let Some(change) = row.stored_ratio(a, b) {
                found.most = found.most.max((change - 1.0).abs().min(1.0));
            }
            found.counts[relation as usize] += 1;
            found.differing += usize::from(relation.differs());
            found.rows.push(row);
        }
        let rank = |r: Relation| if r.differs() { 0 } else { 1 + usize::from(r == Relation::Same) };
        found.by_size = (0..found.rows.len()).collect();
        let rows = &found.rows;
        found.by_size.sort_by_cached_key(|&i| (rank(rows[i].relation), std::cmp::Reverse(rows[i].bytes(a, b)), i));
        found
    }
}

impl Compared {
    /// The tensor in both files, the first one's first.
    pub fn infos<'a>(&self, a: &'a FileModel, b: &'a FileModel) -> [Option<&'a TensorInfo>; 2] {
        [a.tensors.get(self.places[0].unwrap_or(usize::MAX)), b.tensors.get(self.places[1].unwrap_or(usize::MAX))]
    }

    /// Stored bytes in the second file for each byte in the first one, where both store it.
    pub fn stored_ratio(&self, a: &FileModel, b: &FileModel) -> Option<f64> {
        match self.infos(a, b) {
            [Some(x), Some(y)] if x.stored_bytes > 0 && self.tied == [false; 2] => {
                Some(y.stored_bytes as f64 / x.stored_bytes as f64)
            }
            _ => None,
        }
    }

    /// The difference of stored bytes. A tied name stores none.
    pub fn bytes(&self, a: &FileModel, b: &FileModel) -> u64 {
        let infos = self.infos(a, b);
        let [x, y] = [0, 1].map(|i| infos[i].filter(|_| !self.tied[i]).map_or(0, |t| t.stored_bytes));
        x.abs_diff(y)
    }
}

fn relation(index_a: &Index, a: usize, index_b: &Index, b: usize) -> Relation {
    let (Some(x), Some(y)) = (index_a.tensors.get(a), index_b.tensors.get(b)) else { return Relation::Differs };
    if !same_values(x, y) {
        return Relation::Differs;
    }
    let same_way = x.planes.iter().zip(&y.planes).all(|(p, q)| {
        (&p.coder, &p.layout, p.shift, &p.filter, p.tile, p.chunk)
            == (&q.coder, &q.layout, q.shift, &q.filter, q.tile, q.chunk)
    });
    if same_way && stored(index_a, x).eq(stored(index_b, y)) { Relation::Same } else { Relation::Recoded }
}

/// Whether they decode to the same: what `wcodec::compare` looks at, without making texts of it.
fn same_values(x: &TensorEntry, y: &TensorEntry) -> bool {
    let scales = |t: &TensorEntry| t.scales.as_ref().map(|s| (s.per.clone(), s.block, s.data.hash));
    let planes = x.planes.iter().map(|p| p.hash).eq(y.planes.iter().map(|p| p.hash));
    let matrix = !SchemeKind::from_file(&x.scheme).is_ok_and(SchemeKind::makes_symbols) || x.matrix == y.matrix;
    planes && matrix && x.dtype == y.dtype && x.shape == y.shape && x.scheme == y.scheme && scales(x) == scales(y)
}

/// Lengths and hashes of everything that belongs to a tensor, its tables included.
fn stored<'a>(index: &'a Index, t: &'a TensorEntry) -> impl Iterator<Item = (u64, Hash)> + 'a {
    let own = |s: &Segment| (s.length, s.hash);
    let tables = t.planes.iter().filter_map(|p| index.tables.get(p.table?)).map(move |table| own(&table.data));
    t.segments().map(move |(_, s)| own(s)).chain(tables)
}
