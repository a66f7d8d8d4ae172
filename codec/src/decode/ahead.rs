//! Read-ahead of tensors: the bytes of the file that decoding them needs.

use std::ops::Range;

use super::container::Container;
use super::rows::elements_of;
use crate::coder::TILE_ROWS;
use crate::coder::plane::Coding;
use crate::coder::tile::OFFSET_UNIT;
use crate::coder::zstd::frame_place;
use crate::container::{AheadFacts, ReadAhead, Segment, Span};
use crate::error::Result;
use crate::stored::{StoredPlane, StoredTensor};

/// Options for reading tensors ahead.
#[derive(Clone, Debug)]
pub struct AheadOptions {
    /// Memory, in bytes, for data that was read and is not decoded yet.
    pub ring: usize,
    /// Whether to bypass the system's page cache, where file and system allow it.
    pub direct: bool,
    /// Threads that read; 16 if absent.
    pub threads: Option<usize>,
}

impl Default for AheadOptions {
    fn default() -> Self {
        Self { ring: 96 << 20, direct: true, threads: None }
    }
}

/// The parts of a file that decoding a tensor, or some of its rows, reads.
#[derive(Clone, Debug)]
pub struct Reads(Vec<Span>);

impl Reads {
    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, length)| length).sum()
    }
}

impl Container {
    /// Makes threads read the tensors `names` from the file whenever they are decoded, and ahead of that once
    /// [`want`](Self::want) announces them. Without names, read-ahead ends. Compressed bytes are held in `options.ring`
    /// bytes of memory, and while a tensor is decoded. Other tensors are read as before.
    ///
    /// # Errors
    /// There is no such tensor, or the container is in memory.
    ///
    /// ```
    /// # fn main() -> wcodec::Result<()> {
    /// use wcodec::{AheadOptions, Checkpoint, Container, DecodeOptions, EncodeOptions, encode};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let out = dir.path().join("model.wcodec");
    /// # let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
    /// # encode(&Checkpoint::open(&model)?, &out, &EncodeOptions::default(), &mut |_| Ok(()))?;
    /// let container = Container::open(&out)?;
    /// let names: Vec<String> = (0..3).map(|i| format!("model.layers.{i}.mlp.up_proj.weight")).collect();
    /// container.read_ahead(&names, &AheadOptions { ring: 1 << 20, ..AheadOptions::default() })?;
    /// let reads = names.iter().map(|name| container.reads(name, None)).collect::<Result<Vec<_>, _>>()?;
    /// for (i, name) in names.iter().enumerate() {
    ///     container.want(reads[i..].iter().take(2));
    ///     container.read(name, &DecodeOptions::default())?;
    /// }
    /// assert_eq!(container.ahead_facts().unwrap().late, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_ahead(&self, names: &[String], options: &AheadOptions) -> Result<()> {
        if names.is_empty() {
            self.reader.set_ahead(None);
            return Ok(());
        }
        let file = self.reader.file().ok_or_else(|| {
            coded!(DISK_NEEDS_A_FILE, "a container in memory cannot be read from disk")
                .advice("save it, and open the file")
        })?;
        let mut covers = Vec::new();
        for name in self.stored_names(names)? {
            let tensor = self.stored(&name)?;
            covers.extend(segments(&tensor).filter(|s| s.length > 0).map(|s| s.offset..s.end()));
        }
        let ahead = ReadAhead::new(file.clone(), covers, options.ring, options.direct, options.threads)?;
        self.reader.set_ahead(Some(ahead.into()));
        Ok(())
    }

    /// The bytes that decoding a tensor, or some of its rows with [`read_rows`](Self::read_rows), reads.
    ///
    /// # Errors
    /// There is no such tensor, it has no such rows, or the offsets of its chunks are damaged.
    pub fn reads(&self, name: &str, rows: Option<Range<usize>>) -> Result<Reads> {
        let tensor = self.stored(name)?;
        let spans = match rows {
            Some(rows) if !tensor.transposed() && rows != (0..tensor.entries()) => self.reads_of_rows(&tensor, &rows),
            _ => Ok(segments(&tensor).map(|s| (s.offset, s.length)).collect()),
        };
        spans.map(Reads).map_err(|e| self.reader.name(e.tensor(name)))
    }

    /// Announces the next reads, in this order, as far as there is memory for them; reads announced earlier but not now
    /// are dropped. Does nothing if nothing is [read ahead](Self::read_ahead).
    pub fn want<'a>(&self, reads: impl IntoIterator<Item = &'a Reads>) {
        if let Some(ahead) = self.reader.ahead() {
            let spans = reads.into_iter().flat_map(|r| &r.0).filter(|s| ahead.covers(s.0));
            ahead.want(spans.copied());
        }
    }

    /// Counters of read-ahead, if there is any.
    pub fn ahead_facts(&self) -> Option<AheadFacts> {
        self.reader.ahead().map(|ahead| ahead.facts())
    }

    /// The bytes that [`read_rows`](Self::read_rows) reads.
    fn reads_of_rows(&self, tensor: &StoredTensor, rows: &Range<usize>) -> Result<Vec<Span>> {
        let elements = elements_of(&tensor.shape, rows)?;
        let mut spans = Vec::new();
        if elements.is_empty() {
            return Ok(spans);
        }
        for plane in &tensor.planes {
            let size = if tensor.is_joined() || tensor.symbol_scales().is_some() { 1 } else { tensor.dtype.size() };
            spans.extend(self.reads_of_part(plane, elements.start * size..elements.end * size)?);
        }
        if let Some(scales) = tensor.symbol_scales() {
            let cols = tensor.plane().form.matrix.2;
            let (held, factors) = scales.held(&(elements.start / cols..elements.end.div_ceil(cols)));
            let bytes = |held: Range<u64>| part(&scales.segment, held.start as usize..held.end as usize);
            spans.extend([bytes(held)].into_iter().chain((!factors.is_empty()).then(|| bytes(factors))));
        }
        Ok(spans)
    }

    fn reads_of_part(&self, plane: &StoredPlane, range: Range<usize>) -> Result<Vec<Span>> {
        let offsets = || plane.offsets.as_ref().ok_or_else(|| coded!(BAD_PLANE, "a plane without 'offsets'"));
        match plane.form.coding {
            Coding::Raw => Ok(vec![part(&plane.data, range)]),
            Coding::Zstd { chunk, .. } => {
                let frames = range.start / chunk..range.end.div_ceil(chunk);
                let places = self.entries::<8>(plane, frames.clone(), plane.chunks, false)?;
                let ends = places.first().zip(places.last()).map(|(a, b)| (frame_place(*a), frame_place(*b)));
                let ((begin, _), (last, length)) = ends.unwrap_or_default();
                Ok(vec![part(offsets()?, frames.start * 8..frames.end * 8), part(&plane.data, begin..last + length)])
            }
            Coding::Tiles(tiling) => {
                let (_, rows, cols) = plane.form.matrix;
                let g = tiling.geometry(plane.form.matrix)?;
                let strip = |row: usize| row / rows * g.strips_per_matrix() + row % rows / TILE_ROWS;
                let strips = strip(range.start / cols)..strip((range.end - 1) / cols) + 1;
                let chunks = strips.start * g.tiles()..strips.end * g.tiles();
                let entries = self.entries::<4>(plane, chunks.start..chunks.end + 1, g.chunks() + 1, false)?;
                let at = |e: &[u8; 4]| u32::from_le_bytes(*e) as usize * OFFSET_UNIT;
                let (begin, end) = entries.first().zip(entries.last()).map_or((0, 0), |(a, b)| (at(a), at(b)));
                let per_strip: usize = (0..g.tiles()).map(|t| tiling.side_bytes(g.position(t).width)).sum();
                let side = plane.side.as_ref().map(|s| part(s, strips.start * per_strip..strips.end * per_strip));
                let others = [part(offsets()?, chunks.start * 4..(chunks.end + 1) * 4), part(&plane.data, begin..end)];
                Ok(others.into_iter().chain(side).collect())
            }
        }
    }
}

/// Some bytes of a segment; empty if the segment has no such bytes, which the later read reports.
fn part(segment: &Segment, range: Range<usize>) -> Span {
    let in_bounds = range.start <= range.end && range.end as u64 <= segment.length;
    if in_bounds { (segment.offset + range.start as u64, range.len() as u64) } else { (segment.offset, 0) }
}

/// The segments of a tensor, in the order in which decoding reads them.
fn segments(tensor: &StoredTensor) -> impl Iterator<Item = &Segment> {
    let planes = tensor.planes.iter().flat_map(|p| [Some(&p.data), p.offsets.as_ref(), p.side.as_ref()]);
    planes.flatten().chain(tensor.scales.as_ref().map(|s| &s.segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coder, DecodeOptions, Dtype, EncodeOptions, MemorySource, Scheme, encode_to_vec};

    fn container(dir: &std::path::Path, options: &EncodeOptions) -> Container {
        let mut source = MemorySource::new();
        for (i, shape) in [vec![700, 512], vec![333, 200], vec![5, 31, 64], vec![64]].into_iter().enumerate() {
            let n: usize = shape.iter().product();
            let values: Vec<u8> =
                (0..n).flat_map(|k| (((k * k * (i + 3)) % 997) as f32 - 300.0).to_le_bytes()).collect();
            source.push(format!("t{i}"), Dtype::F32, shape, values.into()).unwrap();
        }
        let path = dir.join("m.wcodec");
        std::fs::write(&path, encode_to_vec(&source, options, &mut |_| Ok(())).unwrap().0).unwrap();
        Container::open(&path).unwrap()
    }

    /// Announced reads cover all that decoding reads, for every coder and scheme, and do not change the result.
    #[test]
    fn all_reads_are_foreseen() {
        let dir = tempfile::tempdir().unwrap();
        let schemes = [Scheme::Int8(crate::Granularity::Row), Scheme::Lossless, Scheme::Raw];
        let coders = [Coder::Rans, Coder::Huffman, Coder::Zstd, Coder::Raw];
        for (scheme, coder) in schemes.into_iter().flat_map(|s| coders.map(move |c| (s, c))) {
            let container = container(dir.path(), &EncodeOptions { scheme, coder, ..Default::default() });
            let plain = Container::open(container.path().unwrap()).unwrap();
            let names: Vec<String> = container.names().into_iter().map(str::to_owned).collect();
            let options = AheadOptions { ring: 8 << 20, threads: Some(2), ..Default::default() };
            let go = DecodeOptions::default();
            for name in &names {
                let whole = plain.read(name, &go).unwrap();
                let entries = plain.info(name).unwrap().shape[0];
                let per = whole.len() / entries;
                // Hashes are compared at the first read only, so that read happens here.
                container.read_rows(name, 0..1, None, &go).unwrap();
                container.read_ahead(&names, &options).unwrap();
                for (a, b) in [(0, entries), (0, 16.min(entries)), (entries / 2 / 16 * 16, entries), (3, 4), (5, 5)] {
                    let reads = container.reads(name, Some(a..b)).unwrap();
                    let before = container.ahead_facts().unwrap();
                    container.want([&reads]);
                    let got = container.read_rows(name, a..b, None, &go).unwrap();
                    assert!(got[..] == whole[a * per..b * per], "{name} {a}..{b}");
                    let after = container.ahead_facts().unwrap();
                    assert_eq!(after.late, before.late, "{name} {a}..{b}: {after:?}");
                    assert_eq!(after.ahead > before.ahead, a < b);
                }
                let reads = container.reads(name, None).unwrap();
                let before = container.ahead_facts().unwrap();
                container.want([&reads]);
                assert!(container.read(name, &go).unwrap()[..] == whole[..]);
                assert_eq!(container.ahead_facts().unwrap().late, before.late, "{name}");
                assert!(reads.bytes() > 0);
            }
            container.read_ahead(&[], &options).unwrap();
            assert!(container.ahead_facts().is_none());
        }
        let e = Container::from_bytes(std::fs::read(dir.path().join("m.wcodec")).unwrap()).unwrap();
        let e = e.read_ahead(&["t0".into()], &AheadOptions::default()).unwrap_err();
        assert!(e.to_string().contains("in memory cannot be read from disk"), "{e}");
    }

    #[cfg(unix)]
    #[test]
    fn damage_is_named_and_nothing_stale_is_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let container = container(dir.path(), &EncodeOptions::default());
        let (names, go) = (["t0".to_owned(), "t1".to_owned()], DecodeOptions::default());
        container.read_ahead(&names, &AheadOptions::default()).unwrap();
        let reads = names.iter().map(|n| container.reads(n, None).unwrap()).collect::<Vec<_>>();
        container.want(&reads);
        container.read("t0", &go).unwrap();
        let at = container.reader().tensor("t1").unwrap().planes[0].data.offset;
        let file = std::fs::OpenOptions::new().write(true).open(container.path().unwrap()).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::open(container.path().unwrap()).unwrap(),
            &mut byte,
            at,
        )
        .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte[0] ^ 1], at).unwrap();
        let e = container.read("t1", &go).unwrap_err().to_string();
        assert!(e.contains("t1") && e.contains("changed while it was open") && e.contains("m.wcodec"), "{e}");
        // As with a faulty disk: only the hash can tell.
        file.set_modified(modified).unwrap();
        container.want(&reads);
        let e = container.read("t1", &go).unwrap_err();
        assert_eq!((e.tensor_name(), e.byte_offset()), (Some("t1"), Some(at)), "{e}");
        container.want(&reads);
        container.read("t0", &go).unwrap();
    }
}
