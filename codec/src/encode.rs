//! Encodes the tensors of a source as a container.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use xxhash_rust::xxh3::xxh3_128;

use crate::cancel::Cancel;
use crate::checkpoint::{Dequantized, Quantization, Source, SourceBytes, SourceTensor};
use crate::coder::plane::{Filters, PlaneOptions};
use crate::coder::{Coder, Layout, tile};
use crate::container::{Index, MemoryFile, Reader, Sink, Writer};
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::file::{OutputFile, OutputKind};
use crate::info::{TensorInfo, TensorInfos};
use crate::names::near;
use crate::pool::Pool;
use crate::progress::{Progress, ProgressEvent};
use crate::scheme::int8::Granularity;
use crate::scheme::{Levels, Scheme};

mod check;
mod columns;
mod matrix;
mod naming;
mod optimize;
mod pipeline;
mod planes;
mod rate;
mod tensor;

use columns::Factors;
use pipeline::Pipeline;

pub(crate) use naming::Naming;
pub use optimize::Optimize;
pub(crate) use planes::matrices_of;
pub(crate) use tensor::{RateTask, Tables, TensorTask, Workers, scale_bytes, symbols_like, with_factors};

/// The most threads that read: writing to new memory is bound by one core, and so is copying from the page cache.
const READERS: usize = 8;
/// The number of quantized weights below which a file counts as having few.
pub(crate) const FEW: usize = 1 << 20;

/// Options for encoding the tensors of a source.
///
/// Scheme `int8` is for weights: tensors of two dimensions or more in f32, f16 or bf16. Others (norms, biases,
/// integers), and those that it would not make smaller, are stored `raw`.
#[derive(Clone, Debug)]
pub struct EncodeOptions {
    /// The purpose of the bytes, which decides the layout and the tables if these are absent.
    pub optimize: Optimize,
    /// Scheme of the weights.
    pub scheme: Scheme,
    /// Coder; a plane that it does not make smaller is stored raw.
    pub coder: Coder,
    /// The coder of quantized weights, in place of `coder`, if the file has fewer than 2^20 of them: codes of whole
    /// bits are too long for a small model at a low rate.
    pub coder_of_few: Option<Coder>,
    /// Layout of `rans` and `huffman`; [`Optimize::layout`] chooses if absent.
    pub layout: Option<Layout>,
    /// Level of `zstd`.
    pub zstd_level: i32,
    /// Decoded bytes of a `zstd` frame; chosen by shape if absent.
    pub zstd_chunk: Option<usize>,
    /// Width of tiles in columns; chosen by shape if absent.
    pub tile: Option<usize>,
    /// log2 of the slots of a table: 11 or 12, or 8 to 12 for coder `huffman`; [`Optimize::table_bits`] chooses if
    /// absent.
    pub table_bits: Option<u32>,
    /// Exceptions for some of the weights: the first rule whose pattern matches a name applies.
    pub rules: Vec<Rule>,
    /// Patterns (`*`, `?`, `[..]`, `{a,b}`) of names to encode; all if empty. Others are stored `raw`.
    pub include: Vec<String>,
    /// Patterns of names to store `raw`.
    pub exclude: Vec<String>,
    /// Patterns of names to leave out.
    pub skip: Vec<String>,
    /// Patterns of matrices that are stored `[in, out]`, such as those of GPT-2: their rows are the second axis.
    pub transpose: Vec<String>,
    /// Scheme `rate`: the step of a tensor, by name, relative to those of others. If absent it is 1, or derived from
    /// the known role of the tensor (`docs/schemes-and-coders.md`).
    pub steps: BTreeMap<String, f32>,
    /// Scheme `rate`: the step divided by the root mean square of a row, for all tensors, if it is known; else it is
    /// searched to meet the requested bits.
    pub step: Option<f32>,
    /// Scheme `rate`: a factor for each column of a tensor, by name, matrix by matrix. Weights are divided by them before
    /// they are quantized, and values multiplied again, so that columns with smaller factors have smaller errors. A
    /// column's factor should be near the root of the inverse of how much its error counts. Factors are divided by their
    /// geometric mean in each matrix and rounded to bf16. They are stored, and counted in the bits. Tensors of other
    /// schemes have no use for them, nor have those whose levels are given ([`Levels::columns`](crate::Levels)).
    pub columns: BTreeMap<String, Vec<f32>>,
    /// Scheme `rate`: whether every tensor is to have the requested bits, rather than all of them together.
    pub bits_per_tensor: bool,
    /// Threads; all cores if absent.
    pub threads: Option<usize>,
    /// Whether to replace an existing output.
    pub overwrite: bool,
    /// Stops the work, from another thread.
    pub cancel: Cancel,
    /// Text to add to the source's metadata.
    pub metadata: BTreeMap<String, String>,
}

/// The encoding of weights whose names match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A pattern of whole names, as in [`EncodeOptions::include`].
    pub pattern: String,
    /// Scheme of these weights.
    pub scheme: Scheme,
    /// Their coder.
    pub coder: Coder,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self::of(Optimize::Speed)
    }
}

impl EncodeOptions {
    /// The default options for a purpose, with scheme `int8`.
    ///
    /// ```
    /// use wcodec::{Coder, EncodeOptions, Optimize};
    /// assert_eq!(EncodeOptions::of(Optimize::Size).coder, Coder::Rans);
    /// ```
    pub fn of(optimize: Optimize) -> Self {
        Self {
            optimize,
            scheme: Scheme::Int8(Granularity::Row),
            coder: optimize.coder(),
            coder_of_few: None,
            layout: None,
            zstd_level: 3,
            zstd_chunk: None,
            tile: None,
            table_bits: None,
            rules: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            skip: Vec::new(),
            transpose: Vec::new(),
            steps: BTreeMap::new(),
            columns: BTreeMap::new(),
            step: None,
            bits_per_tensor: false,
            threads: None,
            overwrite: false,
            cancel: Cancel::new(),
            metadata: BTreeMap::new(),
        }
    }

    /// Columns of a tile of a matrix `(rows, columns)` of scheme `rate`, in a file with `weights` quantized weights.
    fn rate_tile(&self, coder: Coder, (rows, cols): (usize, usize), weights: usize, levels: Option<&Levels>) -> usize {
        let given = levels.and_then(|levels| levels.tile);
        self.tile.or(given).unwrap_or_else(|| tile::rate_tile(coder, rows, cols, weights))
    }

    /// Options for the planes of a tensor whose rows have `cols` columns, in a file with `weights` quantized weights.
    fn plane(&self, (scheme, coder): (Scheme, Coder), cols: usize, weights: usize) -> PlaneOptions {
        let layout = self.layout.unwrap_or_else(|| self.optimize.layout(scheme, coder, cols, weights));
        PlaneOptions {
            coder,
            layout,
            table_bits: self.table_bits.unwrap_or_else(|| self.optimize.table_bits(scheme, layout)),
            // Patches cost GPU time. Tables of few bits have them anyway.
            patch_rare: false,
            changes: false,
            tile: self.tile,
            zstd_level: self.zstd_level,
            zstd_chunk: self.zstd_chunk,
            filters: Filters::Tried,
        }
    }
}

/// The result of encoding.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EncodeReport {
    /// The tensors, in file order.
    pub tensors: Vec<TensorInfo>,
    /// Tied tensors, and the tensors that hold their data.
    pub aliases: BTreeMap<String, String>,
    /// Bytes of the source's tensors, tied ones counted once.
    pub original_bytes: u64,
    /// Length of the container in bytes, index and padding included.
    pub stored_bytes: u64,
    /// Elapsed seconds.
    pub seconds: f64,
}

impl EncodeReport {
    /// Original bytes / stored bytes: larger is better.
    pub fn ratio(&self) -> f64 {
        self.original_bytes as f64 / self.stored_bytes as f64
    }

    /// 8 x stored bytes / elements.
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.tensors.iter().map(|t| t.elements).sum();
        if elements == 0 { 0.0 } else { 8.0 * self.stored_bytes as f64 / elements as f64 }
    }
}

/// Encodes `source` into the file `dst`, which appears when it is complete.
///
/// Memory is bounded: the tensors in flight are the largest one and 32 MiB for each thread, and take about twice their
/// bytes, for their symbols and the coded form.
///
/// # Errors
/// A tensor that cannot be encoded (named), no tensors at all, options that contradict each other; an output that is
/// one of the source's files, has another format's extension, or is not a regular file; or the operating system.
/// Nothing is left behind.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use wcodec::{Container, DecodeOptions, Dtype, EncodeOptions, MemorySource, encode};
/// let weights: Vec<f32> = (0..64 * 256).map(|i| ((i * i % 101) as f32 - 50.0).powi(3)).collect();
/// let mut source = MemorySource::new();
/// source.push("w".into(), Dtype::F32, vec![64, 256], bytemuck::cast_slice(&weights).into())?;
/// let path = dir.path().join("model.wcodec");
/// let report = encode(&source, &path, &EncodeOptions::default(), &mut |_| Ok(()))?;
/// assert!(report.ratio() > 4.0);
/// let container = Container::open(&path)?;
/// assert_eq!(container.symbols("w", &DecodeOptions::default())?.len(), 64 * 256);
/// # Ok(())
/// # }
/// ```
pub fn encode(
    source: &dyn Source,
    dst: &Path,
    options: &EncodeOptions,
    progress: &mut Progress<'_>,
) -> Result<EncodeReport> {
    let out = OutputFile::create(dst, OutputKind::Container, &source.files(), options.overwrite)?;
    let report = encode_into(source, out.file()?, out.path(), options, progress)?.0;
    if report.tensors.is_empty() {
        let e =
            coded!(NO_TENSORS, "there are no tensors to encode").advice("name another source, or skip fewer tensors");
        return Err(match source.path() {
            Some(path) => e.file(path),
            None => e,
        });
    }
    out.finish()?;
    Ok(report)
}

/// Encodes `source` into memory.
///
/// # Errors
/// Those of [`encode`].
pub fn encode_to_vec(
    source: &dyn Source,
    options: &EncodeOptions,
    progress: &mut Progress<'_>,
) -> Result<(Vec<u8>, EncodeReport)> {
    let (report, out) = encode_into(source, MemoryFile::in_one(), Path::new(MEMORY), options, progress)?;
    Ok((out.into_bytes(), report))
}

/// Bits per weight that tensors of scheme `rate` would take, computed from samples of their rows: `source` has the
/// samples, and `shares` the ratio of all rows to sampled rows by name. Scales, tables, offsets and padding count, the
/// index does not; 0 without such tensors.
///
/// Levels are the source's ([`Source::levels_with`]), or those of [`EncodeOptions::step`] and [`EncodeOptions::steps`].
/// A caller that chooses levels elsewhere thus finds the steps that meet its target bits without choosing levels for
/// every row.
///
/// ```
/// use std::collections::BTreeMap;
/// use wcodec::{Bits, Dtype, EncodeOptions, MemorySource, Rate, Scheme, rate_bits};
///
/// let mut rows = MemorySource::new();
/// let weights: Vec<u8> = (0..64 * 256u32).flat_map(|i| ((i * 7919 % 1013) as f32 - 506.0).to_le_bytes()).collect();
/// rows.push("w".to_owned(), Dtype::F32, vec![64, 256], weights.into())?;
/// let options = EncodeOptions { scheme: Scheme::Rate(Rate { bits: Bits::new(4.0)?, trellis: false }), step: Some(0.5), ..EncodeOptions::default() };
/// // Of a matrix of 1,024 rows: its table weighs a sixteenth.
/// let of_all = rate_bits(&rows, &options, &BTreeMap::from([("w".to_owned(), 16.0)]))?;
/// assert!(of_all < rate_bits(&rows, &options, &BTreeMap::new())?);
/// # Ok::<(), wcodec::Error>(())
/// ```
///
/// # Errors
/// Invalid options, and tensors that cannot be read or encoded, as for [`encode`]; shares below 1.
pub fn rate_bits(source: &dyn Source, options: &EncodeOptions, shares: &BTreeMap<String, f64>) -> Result<f64> {
    if let Some((name, share)) = shares.iter().find(|(_, share)| !(share.is_finite() && **share >= 1.0)) {
        let what = format!("a share of {share} for '{name}'");
        return Err(coded!(BAD_STEPS, what).advice("give the rows of the tensor for each of the sample's"));
    }
    let tensors = source.tensors();
    check_source(tensors)?;
    let mut choices = Choices::new(options, tensors.iter().map(|t| t.name.as_str()))?;
    choices.count(options, tensors, shares);
    let pool = Pool::new(options.threads)?.unless_inside()?;
    let reading = Pool::on_demand(pool.threads()?.min(READERS));
    let cancel = options.cancel.part();
    let naming = Naming { source: source.path(), output: Path::new(MEMORY) };
    let (choices, columns) = (&choices, &Factors::new(tensors, options, &choices)?);
    let (pool, reading, cancel) = (&pool, &reading, &cancel);
    rate::Search { source, options, choices, columns, pool, reading, cancel, naming }.bits_of_samples(shares)
}

/// Encodes `source` into memory and opens the result. For immediate use this takes less time and memory than
/// [`encode_to_vec`] and [`Container::from_bytes`]: the encoded bytes are neither copied nor verified again.
///
/// # Errors
/// Those of [`encode`].
///
/// ```
/// use wcodec::{DecodeOptions, Dtype, EncodeOptions, MemorySource, encode_to_container};
/// let mut source = MemorySource::new();
/// source.push("w".into(), Dtype::I8, vec![64, 64], vec![5; 4096].into())?;
/// let (container, report) = encode_to_container(&source, &EncodeOptions::default(), &mut |_| Ok(()))?;
/// assert_eq!(container.symbols("w", &DecodeOptions::default())?, vec![5i8; 4096]);
/// assert!(report.ratio() > 2.0);
/// # Ok::<(), wcodec::Error>(())
/// ```
pub fn encode_to_container(
    source: &dyn Source,
    options: &EncodeOptions,
    progress: &mut Progress<'_>,
) -> Result<(Container, EncodeReport)> {
    let (report, out) = encode_into(source, MemoryFile::new(), Path::new(MEMORY), options, progress)?;
    Ok((Container::new(Reader::of(out)?), report))
}

/// The name of an output in memory in error messages.
const MEMORY: &str = "memory";

/// The longest pattern, bytes: longer than any name that a person writes.
const PATTERN: usize = 4096;
/// The deepest nesting of braces: the parser recurses for each level.
const NESTED: usize = 32;

fn glob(pattern: &str) -> Result<Glob> {
    if pattern.len() > PATTERN {
        let what = format!("a pattern of {} bytes; {PATTERN} are allowed", pattern.len());
        return Err(coded!(BAD_PATTERN, what).advice("give several shorter ones"));
    }
    if nesting(pattern.as_bytes()) > NESTED {
        return Err(not_valid(pattern, &format!("more than {NESTED} braces in one another")));
    }
    GlobBuilder::new(pattern).literal_separator(false).build().map_err(|e| not_valid(pattern, &e.to_string()))
}

/// The nesting depth of a pattern's braces; escaped ones and those in brackets are literal.
fn nesting(pattern: &[u8]) -> usize {
    let (mut depth, mut deepest, mut at) = (0usize, 0, 0);
    while let Some(c) = pattern.get(at) {
        match c {
            b'\\' => at += 1,
            b'[' => {
                at += 1 + usize::from(matches!(pattern.get(at + 1), Some(b'!' | b'^')));
                // The first character may be a literal bracket.
                at += pattern.get(at + 1..).and_then(|rest| rest.iter().position(|&c| c == b']')).map_or(0, |n| n + 1);
            }
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        at += 1;
    }
    deepest
}

fn not_valid(pattern: &str, why: &str) -> Error {
    coded!(BAD_PATTERN, "the pattern '{pattern}' is not valid: {why}")
        .advice("write [[] for a bracket and [{] for a brace that is meant itself")
}

/// Advice on a pattern that matches none of the tensors.
fn advice_on(pattern: &str, names: &[&str]) -> String {
    let text = pattern.trim_matches('*');
    let close = |text: &str| near(text, names.iter().copied());
    let meant = if text.is_empty() { None } else { close(text).or_else(|| close(&format!("{text}.weight"))) };
    let asked = meant.map_or_else(String::new, |name| format!("did you mean '{name}'? "));
    format!("{asked}patterns match whole names: '*' stands for any text, as in 'model.layers.*.weight'")
}

/// The decisions on tensors by name.
struct Choices {
    include: Option<GlobSet>,
    exclude: GlobSet,
    skip: GlobSet,
    transpose: GlobSet,
    /// Patterns, with the scheme and the coder of the tensors that match.
    rules: Vec<(GlobSet, (Scheme, Coder))>,
    otherwise: (Scheme, Coder),
    /// Maps the names of stored codes and of their scales to the name whose decision applies to both.
    owners: HashMap<String, String>,
    /// The number of weights that are quantized.
    weights: usize,
}

impl Choices {
    fn new<'a>(options: &EncodeOptions, names: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let names: Vec<&str> = names.into_iter().collect();
        let compile = |patterns: &[String]| -> Result<GlobSet> {
            let mut set = GlobSetBuilder::new();
            for p in patterns {
                let glob = glob(p)?;
                // Each pattern is first built alone, because such a set reports a pattern that is too large, where a
                // single matcher panics.
                let alone =
                    GlobSetBuilder::new().add(glob.clone()).build().map_err(|e| not_valid(p, &e.to_string()))?;
                if !names.iter().any(|name| alone.is_match(name)) {
                    return Err(coded!(NO_MATCH, "the pattern '{p}' matches no tensor").advice(advice_on(p, &names)));
                }
                set.add(glob);
            }
            set.build().map_err(|e| {
                coded!(BAD_PATTERN, "the patterns are too large: {e}").advice("give fewer or shorter ones")
            })
        };
        Ok(Self {
            include: if options.include.is_empty() { None } else { Some(compile(&options.include)?) },
            exclude: compile(&options.exclude)?,
            skip: compile(&options.skip)?,
            transpose: compile(&options.transpose)?,
            rules: options
                .rules
                .iter()
                .map(|rule| Ok((compile(std::slice::from_ref(&rule.pattern))?, (rule.scheme, rule.coder))))
                .collect::<Result<_>>()?,
            otherwise: (options.scheme, options.coder),
            owners: HashMap::new(),
            weights: 0,
        })
    }

    /// Counts the weights of tensors that are quantized, tied ones once; a sample counts as the weights that it stands
    /// for. If there are few, they get the coder for that case.
    fn count(&mut self, options: &EncodeOptions, tensors: &[SourceTensor], shares: &BTreeMap<String, f64>) {
        let quantized = |t: &&SourceTensor| {
            let (scheme, _) = self.way(&t.name);
            matches!(scheme, Scheme::Int8(_) | Scheme::Rate(_))
                && t.alias_of.is_none()
                && !self.skips(&t.name)
                && scheme.takes(t.dtype, &t.shape)
        };
        let size =
            |t: &SourceTensor| t.shape.iter().product::<usize>() as f64 * shares.get(&t.name).copied().unwrap_or(1.0);
        self.weights = tensors.iter().filter(quantized).map(size).sum::<f64>() as usize;
        if self.weights < FEW {
            let ways = self.rules.iter_mut().map(|(_, way)| way).chain(std::iter::once(&mut self.otherwise));
            for (scheme, coder) in ways {
                if matches!(scheme, Scheme::Int8(_) | Scheme::Rate(_)) && *coder == options.coder {
                    *coder = options.coder_of_few.unwrap_or(*coder);
                }
            }
        }
    }

    /// The scheme and the coder of a tensor.
    fn way(&self, name: &str) -> (Scheme, Coder) {
        let name = self.owners.get(name).map_or(name, String::as_str);
        if !self.is_encoded(name) {
            return (Scheme::Raw, Coder::Raw);
        }
        self.rules.iter().find(|(names, _)| names.is_match(name)).map_or(self.otherwise, |(_, way)| *way)
    }

    fn is_encoded(&self, name: &str) -> bool {
        self.include.as_ref().is_none_or(|i| i.is_match(name)) && !self.exclude.is_match(name)
    }

    /// Whether a tensor is left out.
    fn skips(&self, name: &str) -> bool {
        self.skip.is_match(name) || self.owners.get(name).is_some_and(|owner| self.skip.is_match(owner))
    }

    /// Whether two tensors are to be stored in the same way, so that one can be an alias of the other.
    fn treats_alike(&self, a: &str, b: &str) -> bool {
        self.way(a) == self.way(b) && self.transpose.is_match(a) == self.transpose.is_match(b)
    }
}

fn encode_into<W: Sink + Send>(
    source: &dyn Source,
    out: W,
    path: &Path,
    options: &EncodeOptions,
    progress: &mut Progress<'_>,
) -> Result<(EncodeReport, W)> {
    let begin = Instant::now();
    options.check()?;
    let (dequantized, mut choices) = dequantized(source, options)?;
    let source: &dyn Source = dequantized.as_ref().map_or(source, |made| made);
    let tensors = source.tensors();
    check_source(tensors)?;
    choices.count(options, tensors, &BTreeMap::new());
    let choices = choices;
    let kept: Vec<usize> = (0..tensors.len()).filter(|&i| !choices.skips(&tensors[i].name)).collect();
    let total = kept.iter().fold(0u64, |sum, &i| sum.saturating_add(bytes_of(&tensors[i])));
    let largest = kept.iter().map(|&i| bytes_of(&tensors[i])).max().unwrap_or(0);
    let pool = Pool::new(options.threads)?.unless_inside()?;
    // A pool of its own, so that reads do not queue behind the work.
    let reading = Pool::on_demand(pool.threads()?.min(READERS));
    let cancel = options.cancel.part();
    let naming = Naming { source: source.path(), output: path };
    let columns = Factors::new(tensors, options, &choices)?;
    let search = rate::Search {
        source,
        options,
        choices: &choices,
        columns: &columns,
        pool: &pool,
        reading: &reading,
        cancel: &cancel,
        naming,
    };
    let factors =
        search.factors(&kept, &mut |i| progress(&ProgressEvent { tensor: &tensors[i].name, done: 0, total }))?;
    let mut aliases = BTreeMap::new();
    let mut original_bytes = 0;
    let writer = std::thread::scope(|scope| {
        let workers = Workers { pool: &pool, cancel: &cancel };
        let writer = Box::new(Writer::new(out, path)?);
        let mut pipeline = Pipeline::start(scope, workers, naming, writer, kept.len(), largest)?;
        let mut last = kept.first().copied();
        let mut tell = |pipeline: &Pipeline<'_, '_, W>| {
            let (at, done) = pipeline.progress();
            last = at.or(last);
            let tensor = last.map_or("", |i| tensors[i].name.as_str());
            progress(&ProgressEvent { tensor, done, total })
        };
        let mut feed = || {
            let mut twins = Twins::default();
            let read = |i| source.read_with(i, &reading, &cancel);
            let look = |bytes: &[u8]| fingerprint(bytes, &reading, &cancel);
            for &i in &kept {
                let tensor = &tensors[i];
                let length = bytes_of(tensor);
                tell(&pipeline)?;
                if let Some(target) = tied_to(tensor, &choices).map_err(|e| naming.of(&tensor.name, e))? {
                    aliases.insert(tensor.name.clone(), target);
                    pipeline.skip(length);
                    continue;
                }
                if pipeline.make_room(length, &mut tell)?.is_err() {
                    break;
                }
                // `None` if the tensor equals an earlier one.
                let mut take = || {
                    let bytes = read(i)?;
                    if bytes.len() as u64 != length {
                        let (got, shape) = (bytes.len(), &tensor.shape);
                        return Err(coded!(INPUT_BUG, "the source gives {got} bytes for {shape:?}"));
                    }
                    if let Some(twin) = twins.find(source, i, &bytes, &choices, &read, &look)? {
                        aliases.insert(tensor.name.clone(), twin);
                        return Ok(None);
                    }
                    let (scheme, coder) = choices.way(&tensor.name);
                    let levels = match scheme {
                        Scheme::Rate(_) => source.levels_with(i, &reading, &cancel)?,
                        _ => None,
                    };
                    let transposed = choices.transpose.is_match(&tensor.name);
                    // A tensor that is not a matrix is stored raw, whatever its columns.
                    let (count, rows, cols) = matrix::matrix_of(&tensor.shape, transposed)
                        .map_or((0, 0, 0), |matrix| (matrix.count, matrix.rows, matrix.cols));
                    let factor = factors.get(&i).copied().unwrap_or(1.0);
                    let task = TensorTask {
                        tensor,
                        scheme,
                        rate: RateTask {
                            factor,
                            columns: columns.of(i, rows, cols),
                            tile: options.rate_tile(coder, (count * rows, cols), choices.weights, levels.as_ref()),
                            levels,
                        },
                        transposed,
                        plane: options.plane((scheme, coder), cols, choices.weights),
                    };
                    Ok(Some((task, bytes)))
                };
                // An error here is reported in turn, after the errors of earlier tensors.
                let Some(taken) = take().map_err(|e| naming.of(&tensor.name, e)).transpose() else {
                    pipeline.skip(length);
                    continue;
                };
                original_bytes += length;
                if pipeline.push(i, taken).is_err() {
                    break;
                }
            }
            Ok(())
        };
        let fed = feed();
        pipeline.finish(&mut tell, fed)
    });
    let mut writer = writer?;
    if let Some(&i) = kept.last() {
        progress(&ProgressEvent { tensor: &tensors[i].name, done: total, total })?;
    }

    let index = writer.index();
    index.aliases = aliases;
    index.metadata = source.metadata();
    index.metadata.extend(options.metadata.clone());
    index.set_model(source.model().as_ref())?;
    let (mut index, stored_bytes, out): (Index, u64, W) = writer.finish()?;
    let aliases = std::mem::take(&mut index.aliases);
    let report = EncodeReport {
        tensors: TensorInfos::new(Arc::new(index)).all()?,
        aliases,
        original_bytes,
        stored_bytes,
        seconds: begin.elapsed().as_secs_f64(),
    };
    Ok((report, out))
}

/// Wraps a quantized source whose values are to be encoded other than bit for bit. Also returns the choices, made for
/// the names that the source then has.
fn dequantized<'a>(source: &'a dyn Source, options: &EncodeOptions) -> Result<(Option<Dequantized<'a>>, Choices)> {
    let all = source.tensors();
    let names = all.iter().map(|t| t.name.as_str());
    let Some(found) = Quantization::of(source) else { return Ok((None, Choices::new(options, names)?)) };
    let mut choices = Choices::new(options, names.chain(found.names()))?;
    let exact = |name: &str| matches!(choices.way(name).0, Scheme::Lossless | Scheme::Raw);
    let changes = |t: &SourceTensor| {
        !choices.skips(&t.name) && !exact(&t.name) && choices.way(&t.name).0.takes(t.dtype, &t.shape)
    };
    if all.iter().any(changes) {
        found.check(true).map_err(|e| match source.path() {
            Some(path) => e.file(path),
            None => e,
        })?;
    }
    let skips = |name: &str, codes: &SourceTensor| choices.skip.is_match(name) || choices.skip.is_match(&codes.name);
    let keeps = |name: &str, codes: &SourceTensor| exact(name) || choices.exclude.is_match(&codes.name);
    let made = Dequantized::new(source, &found, &skips, &keeps)?;
    choices.owners = made.owners().clone();
    if let Some((name, owner)) = choices.owners.iter().find(|(name, _)| choices.skip.is_match(name)) {
        let what = format!("it belongs to '{owner}', which is not skipped");
        return Err(coded!(SKIPPED_PARTNER, what).tensor(name).advice("skip both or none"));
    }
    Ok((Some(made), choices))
}

fn bytes_of(tensor: &SourceTensor) -> u64 {
    (crate::tensor::element_count(&tensor.shape).unwrap_or(0) as u64).saturating_mul(tensor.dtype.size() as u64)
}

/// The target of an alias, if both are to be stored in the same way; else the alias is stored as a tensor.
fn tied_to(tensor: &SourceTensor, choices: &Choices) -> Result<Option<String>> {
    match &tensor.alias_of {
        Some(target) if choices.skips(target) => {
            Err(coded!(SKIPPED_PARTNER, "it is tied to '{target}', which is skipped").advice("skip both or none"))
        }
        Some(target) if choices.treats_alike(&tensor.name, target) => Ok(Some(target.clone())),
        _ => Ok(None),
    }
}

/// Refuses sources whose tensors would make a container that cannot be read.
fn check_source(tensors: &[SourceTensor]) -> Result<()> {
    let mut stored = HashMap::new();
    for t in tensors {
        let bad = |what: &str| Err(coded!(INPUT_BUG, what.to_owned()).tensor(&t.name));
        if t.name.is_empty() || stored.insert(t.name.as_str(), t).is_some() {
            return bad("the name of a tensor is empty or not unique");
        }
        crate::tensor::check_bytes(&t.shape, t.dtype).map_err(|e| e.tensor(&t.name))?;
    }
    for t in tensors {
        let Some(target) = &t.alias_of else { continue };
        match stored.get(target.as_str()) {
            Some(other) if other.alias_of.is_none() && (other.dtype, &other.shape) == (t.dtype, &t.shape) => {}
            _ => {
                let what = format!("tied to '{target}', which is not there, tied itself, or of another shape");
                return Err(coded!(INPUT_BUG, what).tensor(&t.name));
            }
        }
    }
    Ok(())
}

/// Finds matrices that a checkpoint stores twice, such as tied weights saved under both names.
#[derive(Default)]
struct Twins {
    seen: HashMap<u128, usize>,
}

impl Twins {
    /// The fewest elements of a matrix that is compared: small norms and biases are equal by chance, not because they
    /// are tied.
    const LEAST: usize = 1 << 16;

    fn find<'a>(
        &mut self,
        source: &dyn Source,
        i: usize,
        bytes: &[u8],
        choices: &Choices,
        read: &dyn Fn(usize) -> Result<SourceBytes<'a>>,
        fingerprint: &dyn Fn(&[u8]) -> Result<u128>,
    ) -> Result<Option<String>> {
        let tensor = &source.tensors()[i];
        let size = tensor.dtype.size();
        let is_constant = || bytes.chunks(size).all(|e| e == &bytes[..size]);
        if tensor.shape.len() < 2 || bytes.len() / size < Self::LEAST || is_constant() {
            return Ok(None);
        }
        let hash = fingerprint(bytes)?;
        let Some(&twin) = self.seen.get(&hash) else {
            self.seen.insert(hash, i);
            return Ok(None);
        };
        let other = &source.tensors()[twin];
        let same = (other.dtype, &other.shape) == (tensor.dtype, &tensor.shape)
            && choices.treats_alike(&other.name, &tensor.name)
            && read(twin)?[..] == *bytes;
        Ok(same.then(|| other.name.clone()))
    }
}

/// A fingerprint that equal tensors share and others hardly ever do, computed by the threads of a pool.
fn fingerprint(bytes: &[u8], pool: &Pool, cancel: &Cancel) -> Result<u128> {
    /// Bytes that one thread processes at once.
    const PIECE: usize = 4 << 20;
    let of_pieces = pool.each(bytes.chunks(PIECE), cancel, |piece| Ok(xxh3_128(piece)))?;
    Ok(xxh3_128(bytemuck::cast_slice(&of_pieces)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, ErrorKind, MemorySource};

    fn excluded(pattern: &str) -> Result<bool> {
        let options = EncodeOptions { exclude: vec![pattern.to_owned()], ..Default::default() };
        Choices::new(&options, ["a.{b}.weight"]).map(|choices| !choices.is_encoded("a.{b}.weight"))
    }

    #[test]
    fn rules_choose_for_some_names() {
        let weights: Vec<f32> = (0..64 * 256).map(|i| ((i * i % 101) as f32 - 50.0).powi(3)).collect();
        let mut source = MemorySource::new();
        for name in ["up", "down", "head"] {
            source.push(name.into(), Dtype::F32, vec![64, 256], bytemuck::cast_slice(&weights).into()).unwrap();
        }
        let rule = |pattern: &str, scheme, coder| Rule { pattern: pattern.into(), scheme, coder };
        let block = Scheme::Int8(Granularity::Block(32));
        let rules = vec![rule("d*", block, Coder::Huffman), rule("{head,down}", Scheme::Raw, Coder::Zstd)];
        let options = EncodeOptions { rules, ..EncodeOptions::of(Optimize::Size) };
        let report = encode_to_vec(&source, &options, &mut |_| Ok(())).unwrap().1;
        let matched: Vec<_> =
            report.tensors.iter().map(|t| (t.scheme.as_str(), t.scales.as_deref(), t.coder())).collect();
        let want = [("int8", Some("row"), "rans"), ("int8", Some("block 32"), "huffman"), ("raw", None, "zstd")];
        assert_eq!(matched, want);
        let refused = |rule| {
            let options = EncodeOptions { rules: vec![rule], ..Default::default() };
            encode_to_vec(&source, &options, &mut |_| Ok(())).expect_err("refused").to_string()
        };
        assert!(refused(rule("nothing", Scheme::Raw, Coder::Raw)).contains("matches no tensor"));
        assert!(refused(rule("*", Scheme::Int8(Granularity::Block(7)), Coder::Rans)).contains("multiple of 16"));
    }

    /// Each of these patterns used to end the process, by a panic or a stack overflow.
    #[test]
    fn patterns_of_any_kind_give_errors() {
        let nested = |n: usize| "{".repeat(n) + "a*" + &"}".repeat(n);
        for bad in [nested(5000), nested(200), nested(33), "{".repeat(5000), "*".repeat(1 << 20), "a[".to_owned()] {
            let e = excluded(&bad).expect_err("refused");
            assert_eq!(e.kind(), ErrorKind::Input, "{e}");
        }
        for good in [nested(32), "a.[{]b[}].weight".to_owned(), r"a.\{b\}.weight".to_owned(), "?".repeat(12)] {
            assert!(excluded(&good).unwrap(), "{good}");
        }
        // Patterns of the greatest length, of elements that make them large.
        for text in ["?", "*", "[a-zA-Z]", "*a"] {
            let e = excluded(&text.repeat(PATTERN / text.len())).err();
            assert!(e.is_none_or(|e| e.kind() == ErrorKind::Input));
        }
        assert_eq!(nesting(b"{[{]{[]{]}}[!{]{[^]{]{"), 2);
        assert_eq!(nesting(b"{{[{{{"), 4);
    }
}
