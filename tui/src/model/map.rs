//! Which bytes of a file are what.

use wcodec::container::HEADER_BYTES;

use super::rates::{Group, by_size, groups};
use super::{Content, FileModel};
use crate::draw::text;

worded! {
    /// The contents of bytes of a file.
    Kind {
        Header = "header", "where the index is";
        Data = "data", "coded symbols";
        Side = "side", "signs and low bits, stored as they are";
        Scales = "scales", "what symbols are multiplied with";
        Offsets = "offsets", "where chunks begin";
        Tables = "tables", "frequencies of symbols";
        Index = "index", "names, shapes, and where everything is";
        Padding = "padding", "zeros between segments";
    }
}

impl Kind {
    fn of_role(role: &str) -> Self {
        let other = if role == "table" { Self::Tables } else { Self::Data };
        [Self::Side, Self::Scales, Self::Offsets].into_iter().find(|kind| kind.name() == role).unwrap_or(other)
    }
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its beginning, bytes from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Its contents.
    pub kind: Kind,
    /// Whose it is, by its place in the file.
    pub tensor: Option<usize>,
}

impl Region {
    /// One behind its last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Ranges and sums of a file.
#[derive(Debug, Default)]
pub struct FileMap {
    /// All of the file but padding, by offset.
    pub regions: Vec<Region>,
    /// Bytes of each kind, in the order of [`Kind::ALL`]. Together they are the file.
    pub bytes: [u64; 8],
    /// Bytes of the file.
    pub length: u64,
    /// Sums by scheme, the largest first.
    pub schemes: Vec<Group>,
    /// Sums by coder, the largest first.
    pub coders: Vec<Group>,
    /// Sums by dtype of the source, the largest first.
    pub dtypes: Vec<Group>,
}

impl FileMap {
    /// The map of a file.
    pub fn new(file: &FileModel) -> Self {
        let region = |offset, length, kind, tensor| Region { offset, length, kind, tensor };
        let header = match &file.content {
            Content::Original(_) => {
                file.tensors.iter().map(|t| t.segments[0].offset).min().unwrap_or(file.file_bytes())
            }
            _ => HEADER_BYTES as u64,
        };
        let mut regions = vec![region(0, header, Kind::Header, None)];
        let mut tables = 0;
        for (i, t) in file.tensors.iter().enumerate() {
            for s in &t.segments {
                let kind = Kind::of_role(s.role);
                tables += usize::from(kind == Kind::Tables);
                regions.push(region(s.offset, s.length, kind, Some(i)));
            }
        }
        let index = file.container().ok().map(|c| (c.reader().header(), c.reader().index()));
        if let Some((_, index)) = index.filter(|(_, index)| tables < index.tables.len()) {
            // Some table is no tensor's: all of them anew, with or without an owner.
            let owned: std::collections::HashSet<u64> =
                regions.iter().filter(|r| r.kind == Kind::Tables).map(|r| r.offset).collect();
            let others = index.tables.iter().filter(|t| !owned.contains(&t.data.offset));
            regions.extend(others.map(|t| region(t.data.offset, t.data.length, Kind::Tables, None)));
        }
        regions.extend(index.map(|(header, _)| region(header.index_offset, header.index_length, Kind::Index, None)));
        // A part that was cut off is not there.
        let length = file.file_bytes();
        regions.iter_mut().for_each(|r| r.length = r.length.min(length.saturating_sub(r.offset)));
        regions.retain(|r| r.length > 0);
        regions.sort_unstable_by_key(|r| r.offset);
        let mut map = Self { length, ..Self::default() };
        let mut end = 0;
        for r in &regions {
            map.bytes[r.kind as usize] += r.length;
            map.bytes[Kind::Padding as usize] += r.offset.saturating_sub(end);
            end = r.end();
        }
        map.regions = regions;
        map.schemes = by_size(groups(&file.tensors, text::scheme));
        map.coders = by_size(groups(&file.tensors, text::coder));
        map.dtypes = by_size(groups(&file.tensors, |t| t.dtype.name().to_owned()));
        map
    }

    /// The kind of most bytes of a range, and the place of the region that has most of them. Nothing where the range is
    /// empty or beyond the file.
    pub fn most(&self, begin: u64, end: u64) -> Option<(Kind, Option<usize>)> {
        let end = end.min(self.length);
        let first = self.regions.partition_point(|r| r.end() <= begin);
        let mut bytes = [0u64; 8];
        let mut largest: Option<(u64, usize)> = None;
        for (at, r) in self.regions.iter().enumerate().skip(first).take_while(|(_, r)| r.offset < end) {
            let part = r.end().min(end) - r.offset.max(begin);
            bytes[r.kind as usize] += part;
            if largest.is_none_or(|(most, _)| part > most) {
                largest = Some((part, at));
            }
        }
        let known: u64 = bytes.iter().sum();
        bytes[Kind::Padding as usize] = end.checked_sub(begin).filter(|&n| n > 0)?.saturating_sub(known);
        let kind = Kind::ALL.into_iter().max_by_key(|&k| bytes[k as usize])?;
        Some((kind, largest.map(|(_, at)| at)))
    }
}
