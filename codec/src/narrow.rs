//! Extracts parts of tensors as a container that decodes to the very same weights: the share of a model that one of
//! several devices needs.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use crate::checkpoint::{SourceBytes, SourceTensor};
use crate::coder::plane::{Coding, Draft, EncodedPlane, Filters, PlaneOptions, Tiling};
use crate::coder::table::Table;
use crate::coder::{BLOCK_COLS, Coder, Filter, Layout};
use crate::container::metadata::OF_THE_WHOLE;
use crate::container::{Bytes, MatrixEntry, MemoryFile, PlaneEntry, Reader, Segment, TensorEntry, Writer, hash};
use crate::decode::{Container, DecodeOptions};
use crate::encode::{Naming, RateTask, Tables, TensorTask, Workers, matrices_of, scale_bytes, with_factors};
use crate::error::Result;
use crate::scheme::{Scheme, SchemeKind};
use crate::stored::{StoredPlane, StoredScales, StoredTensor};
use crate::tensor::AlignedBytes;
use crate::trust;

mod cut;
mod tiles;

pub use cut::Cut;
use cut::MatrixCut;

/// The path of a container in memory, in errors.
const MEMORY: &str = "memory";

/// A container in memory with parts of tensors, one for each of `cuts`, in their order.
///
/// A part decodes, bit for bit, to that part of the decoded tensor: it has the stored symbols and scales. If all ranges
/// begin and end at tile borders (16 rows, the width of a tile; any at the end of the tensor), their chunks are copied
/// unchanged; otherwise symbols are decoded and coded again, by the same coder. A [trellis](crate::Rate::trellis) that
/// is cut within a tile becomes levels without one, which takes about a bit per weight more.
///
/// Only the ranges of a tiled tensor are read. Hashes cover whole segments, so they are compared only with
/// [`verify`](DecodeOptions::verify), which reads all of each tensor. Metadata is kept, except entries about the whole
/// file.
///
/// ```
/// use wcodec::{Container, Cut, DecodeOptions, Dtype, EncodeOptions, MemorySource, encode_to_container, narrow};
/// # fn main() -> wcodec::Result<()> {
/// let mut source = MemorySource::new();
/// let weights: Vec<u8> = (0..64 * 128).flat_map(|i| ((i % 101) as f32).to_le_bytes()).collect();
/// source.push("w".into(), Dtype::F32, vec![64, 128], weights.into())?;
/// let (whole, _) = encode_to_container(&source, &EncodeOptions::default(), &mut |_| Ok(()))?;
/// let options = DecodeOptions::default();
/// let part = narrow(&whole, &[Cut { tensor: "w", name: "w", axis: 0, ranges: vec![32..64] }], &options)?;
/// assert_eq!(part.symbols("w", &options)?, whole.symbols("w", &options)?[32 * 128..]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no such tensor, axis or range; a range is empty; two parts have the same name; a range cuts a block that
/// shares a scale at a column that is not a multiple of 16; a tensor is damaged; the work was cancelled.
pub fn narrow(container: &Container, cuts: &[Cut<'_>], options: &DecodeOptions) -> Result<Container> {
    if cuts.is_empty() {
        return Err(coded!(PARTS, "no parts of tensors").advice("name at least one"));
    }
    let mut names: Vec<&str> = cuts.iter().map(|cut| cut.name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(coded!(PARTS, "two parts are called '{}'", twice[0]).advice("give each a name of its own"));
    }
    let mut work = Narrowing {
        container,
        options,
        writer: Writer::new(MemoryFile::new(), Path::new(MEMORY))?,
        copied: HashMap::new(),
        shared: Vec::new(),
        tables: Tables::default(),
    };
    for cut in cuts {
        options.cancel.check()?;
        work.add(cut).map_err(|e| container.reader().name(e.tensor(cut.tensor)))?;
    }
    work.finish()
}

/// The container that parts are written to.
struct Narrowing<'a> {
    container: &'a Container,
    options: &'a DecodeOptions,
    writer: Writer<MemoryFile>,
    /// New numbers of copied tables, by their old ones.
    copied: HashMap<usize, usize>,
    /// Tables of planes that are coded again, and their numbers.
    shared: Vec<Table>,
    tables: Tables,
}

impl Narrowing<'_> {
    fn add(&mut self, cut: &Cut<'_>) -> Result<()> {
        let tensor = self.container.stored(cut.tensor)?;
        let shape = cut.shape(&tensor.shape)?;
        if self.options.verify {
            let place = self.container.reader().place(cut.tensor)?;
            self.container.check_segments(place, self.options)?;
        }
        let Some(part) = MatrixCut::of(&tensor, cut) else {
            return self.encode_elements(&tensor, cut, shape);
        };
        if let Some(planes) = self.copy_planes(&tensor, &part)? {
            return self.entry(&tensor, cut, shape, &part, planes);
        }
        if !tensor.scheme.makes_symbols() {
            return self.encode_elements(&tensor, cut, shape);
        }
        let planes = vec![self.encode_symbols(&tensor, &part)?];
        self.entry(&tensor, cut, shape, &part, planes)
    }

    fn entry(
        &mut self,
        tensor: &StoredTensor,
        cut: &Cut<'_>,
        shape: Vec<usize>,
        part: &MatrixCut,
        planes: Vec<PlaneEntry>,
    ) -> Result<()> {
        let scales = match &tensor.scales {
            None => None,
            Some(stored) => {
                let all = self.container.read_scales(stored, self.options)?;
                let (granularity, scales) = part.scales(stored.granularity, &all.scales)?;
                let values = with_factors(all.columns.map(|factors| part.columns(&factors)), scales)?;
                let segment = self.writer.segment(&scale_bytes(stored.dtype, values)?)?;
                Some(StoredScales::entry(tensor.scheme, granularity, segment))
            }
        };
        self.writer.tensor(TensorEntry {
            name: cut.name.to_owned(),
            dtype: tensor.dtype.name().into(),
            shape,
            scheme: tensor.scheme.name_in_file(tensor.has_columns()).into(),
            matrix: Some(part.matrix()),
            scales,
            planes,
            // Measured figures describe the whole tensor.
            quality: None,
            source: None,
        });
        Ok(())
    }

    /// The planes of a part that consists of whole tiles; `None` if it does not.
    fn copy_planes(&mut self, tensor: &StoredTensor, part: &MatrixCut) -> Result<Option<Vec<PlaneEntry>>> {
        let tiles = |plane: &StoredPlane| match plane.form.coding {
            Coding::Tiles(tiling) => {
                let geometry = tiling.geometry(plane.form.matrix)?;
                // Sizes that the file states must not decide how much memory is allocated; the length of the stored
                // offsets is limited by the file.
                let stored = plane.offsets.map(|offsets| offsets.length);
                if stored != (geometry.chunks() as u64 + 1).checked_mul(4) {
                    return Err(coded!(CHUNK_PLACES, "its offsets are not those of its chunks")
                        .offset(plane.data.offset)
                        .advice("restore the file, or encode the model again"));
                }
                Ok(part.tiles(&geometry))
            }
            Coding::Raw => Ok(Some(Default::default())),
            Coding::Zstd { .. } => Ok(None),
        };
        let Some(chosen) = tensor.planes.iter().map(tiles).collect::<Result<Option<Vec<_>>>>()? else {
            return Ok(None);
        };
        let mut planes = Vec::with_capacity(chosen.len());
        for (plane, chosen) in tensor.planes.iter().zip(chosen) {
            let pool = self.container.pool(self.options.threads)?;
            let copied = pool.run(|| match plane.form.coding {
                Coding::Tiles(tiling) => tiles::copy(self.container, plane, tiling, part, &chosen, self.options),
                _ => tiles::copy_raw(self.container, plane, part, self.options),
            });
            planes.push(self.write_plane(copied.flatten()?, plane)?);
        }
        Ok(Some(planes))
    }

    /// Writes a plane that was copied.
    fn write_plane(&mut self, copied: tiles::Copied, of: &StoredPlane) -> Result<PlaneEntry> {
        let table = of.table.map(|number| self.table(number)).transpose()?;
        let offsets = copied.offsets.map(|offsets| self.writer.segment(&offsets)).transpose()?;
        let data = self.owned(copied.data)?;
        let side = of.side.map(|_| self.owned(copied.side)).transpose()?;
        let form = copied.form;
        let (elements, chunks, hash) = (form.elements()?, form.chunks()?, copied.hash);
        let fields = of.fields.clone();
        Ok(StoredPlane { form, fields, elements, chunks, table, offsets, data, side, hash }.entry())
    }

    fn owned(&mut self, bytes: AlignedBytes) -> Result<Segment> {
        let hash = hash(&bytes);
        self.writer.owned_segment(Bytes::Aligned(bytes), hash)
    }

    /// The new number of a table; the first call copies the table.
    fn table(&mut self, number: usize) -> Result<usize> {
        if let Some(&new) = self.copied.get(&number) {
            return Ok(new);
        }
        let table = self.container.table(number, true)?;
        let new = self.writer.table(
            table.coder().name(),
            table.layout().map(Layout::name),
            table.bits(),
            &table.to_bytes(),
        )?;
        self.copied.insert(number, new);
        Ok(new)
    }

    /// The plane of a part whose symbols are coded again.
    fn encode_symbols(&mut self, tensor: &StoredTensor, part: &MatrixCut) -> Result<PlaneEntry> {
        let plane = tensor.plane();
        let pool = self.container.pool(self.options.threads)?;
        let cancel = &self.options.cancel;
        self.container.check_decoded(tensor, part.elements(), trust::OR_TO_A_FILE)?;
        let symbols = pool.run(|| part.elements_of(self.container, plane, self.options)).flatten()?;
        let symbols: &[i8] = bytemuck::cast_slice(&symbols);
        let bits = plane.table.map(|number| self.container.table(number, true).map(|t| t.bits())).transpose()?;
        let options = like(&plane.form.coding, bits, part);
        let matrix = part.matrix();
        let matrices = matrices_of(&matrix, symbols, &[]);
        let mut draft = Draft::new(&matrices, &options, &pool, cancel)?;
        draft.choose(&mut self.shared);
        let encoded: EncodedPlane = draft.encode(&matrices, &pool, cancel, &AtomicUsize::new(0))?;
        let raw = encoded.coder() == Coder::Raw;
        let table = encoded.table.as_ref().map(|choice| self.tables.number(choice, &mut self.writer)).transpose()?;
        let form = encoded.form;
        let offsets = if raw { None } else { Some(self.writer.segment(&encoded.offsets)?) };
        let data = self.writer.segment(if raw { bytemuck::cast_slice(symbols) } else { &encoded.data })?;
        let has_side = matches!(form.coding, Coding::Tiles(t) if t.layout.has_side());
        let side = if has_side { Some(self.writer.segment(&encoded.side)?) } else { None };
        let hash = hash(bytemuck::cast_slice(symbols));
        let (elements, chunks) = (form.elements()?, form.chunks()?);
        Ok(StoredPlane { form, fields: None, elements, chunks, table, offsets, data, side, hash }.entry())
    }

    /// Encodes a part of a tensor whose scheme stores exact bits (`raw`, `lossless`), which any encoding preserves.
    fn encode_elements(&mut self, tensor: &StoredTensor, cut: &Cut<'_>, shape: Vec<usize>) -> Result<()> {
        if tensor.scheme.makes_symbols() {
            return Err(coded!(
                PARTS,
                "a tensor of shape {:?} and scheme {}, which is seen as matrices of another shape, has no parts",
                tensor.shape,
                tensor.scheme
            )
            .advice("take all of it"));
        }
        let bytes = cut.read(self.container, tensor, self.options)?;
        let coding = tensor.planes.iter().map(|plane| &plane.form.coding).find(|c| c.coder() != Coder::Raw);
        let coding = coding.unwrap_or(&Coding::Raw);
        let whole = MatrixCut::uncut(MatrixEntry { count: 1, rows: 1, cols: bytes.len(), row_axis: 0 });
        let mut plane = like(coding, None, &whole);
        // The tile width depends on the matrix view of the new elements, not on the old one.
        plane.tile = None;
        let transposed = tensor.matrix.is_some_and(|m| m.row_axis == 1);
        let scheme = if tensor.scheme == SchemeKind::Lossless { Scheme::Lossless } else { Scheme::Raw };
        let source =
            SourceTensor { name: cut.name.to_owned(), dtype: tensor.dtype, shape, alias_of: None, opaque: None };
        let pool = self.container.pool(self.options.threads)?;
        let workers = Workers { pool: &pool, cancel: &self.options.cancel };
        let task = TensorTask { tensor: &source, scheme, rate: RateTask::default(), transposed, plane };
        let mut prepared = task.prepare(SourceBytes::Owned(bytes), workers)?;
        prepared.choose(&mut self.shared);
        let encoded = prepared.encode(workers, &AtomicUsize::new(0))?;
        let naming = Naming { source: None, output: Path::new(MEMORY) };
        encoded.write(&mut self.writer, &mut self.tables, naming)
    }

    fn finish(mut self) -> Result<Container> {
        let kept = self.container.metadata().iter().filter(|(key, _)| !OF_THE_WHOLE.contains(&key.as_str()));
        self.writer.index().metadata = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        let (_, _, out) = self.writer.finish()?;
        Ok(Container::new(Reader::of(out)?))
    }
}

/// Options that encode a part as the whole was encoded; `bits` is the size of its table.
fn like(coding: &Coding, bits: Option<u32>, part: &MatrixCut) -> PlaneOptions {
    let mut options = PlaneOptions {
        coder: coding.coder(),
        layout: Layout::Byte,
        table_bits: bits.unwrap_or(12),
        patch_rare: false,
        changes: false,
        tile: None,
        zstd_level: 3,
        zstd_chunk: None,
        filters: Filters::None,
    };
    match *coding {
        Coding::Raw => {}
        Coding::Zstd { filter, .. } => options.filters = tried(filter),
        Coding::Tiles(Tiling { layout, tile, filter, changes, .. }) => {
            options.changes = changes;
            options.layout = if layout == Layout::Split { Layout::Byte } else { layout };
            options.tile = Some(tile.min(part.cols().next_multiple_of(BLOCK_COLS)));
            options.filters = tried(filter);
            if filter == Filter::Trellis && part.keeps_tiles(tile) {
                (options.tile, options.filters) = (Some(tile), Filters::Trellis);
            }
        }
    }
    options
}

fn tried(filter: Filter) -> Filters {
    if matches!(filter, Filter::Left | Filter::Up) { Filters::Tried } else { Filters::None }
}
