//! Verifies a container against its own hashes, and against its source.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use half::{bf16, f16};
use rayon::prelude::*;
use serde::Serialize;

use crate::checkpoint::{Dequantized, Quantization, Source, SourceTensor};
use crate::decode::{Container, DecodeOptions, Pass};
use crate::error::{ErrorKind, Result};
use crate::pool::Pool;
use crate::progress::{Progress, ProgressEvent};
use crate::scheme::int8::{Scales, Weight};
use crate::scheme::{Equality, SchemeKind, SymbolPlanes};
use crate::tensor::Dtype;

/// The verdict on a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyStatus {
    /// Its hashes match, and it agrees with the source.
    Ok,
    /// It cannot be decoded, or a hash does not match.
    Damaged,
    /// This version cannot decode it; a newer one may.
    Unsupported,
    /// It decodes, but encoding the source would give something else.
    Differs,
    /// The source has it, the container does not.
    Missing,
    /// The container has it, the source does not.
    Extra,
}

/// A tensor, and the verdict on it.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedTensor {
    /// Name.
    pub name: String,
    /// Verdict.
    pub status: VerifyStatus,
    /// A description of the fault; empty if there is none.
    pub detail: String,
    /// Largest magnitude of decoded - source, for floats compared with a source.
    pub max_error: Option<f64>,
    /// RMS of decoded - source, for floats compared with a source.
    pub rms_error: Option<f64>,
}

/// The result of [`verify`].
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Every tensor of the container, and those of the source that it lacks.
    pub tensors: Vec<VerifiedTensor>,
    /// Damage that does not concern a single tensor: in tables, or in padding.
    pub file: Option<String>,
}

impl VerifyReport {
    /// Whether no fault was found.
    pub fn ok(&self) -> bool {
        self.file.is_none() && self.tensors.iter().all(|t| t.status == VerifyStatus::Ok)
    }
}

/// Decodes every tensor and compares all hashes; with `against`, also compares the values with the source.
///
/// For a model in two files, tensors that the container lacks are looked up in the file beside it ([`Container::rest`])
/// and compared with the source, bit for bit.
///
/// Symbols and scales must be exactly those that scheme `int8` gives for the source, `raw` bytes exactly the source's.
/// Values that are not finite are damage: scheme `int8` never encodes any.
///
/// Memory is bounded by the stored bytes of a tensor and some tens of MB, whatever they decode to; a source's tensor,
/// and its quantized form, are held as a whole.
///
/// # Errors
/// Only failures that prevent the work, such as a source that cannot be read. Damage is in the report.
pub fn verify(
    container: &Container,
    against: Option<&dyn Source>,
    options: &DecodeOptions,
    progress: &mut Progress<'_>,
) -> Result<VerifyReport> {
    let options = DecodeOptions { verify: true, ..options.clone() };
    let infos = container.infos()?;
    let total = infos.iter().fold(0u64, |sum, t| sum.saturating_add(t.original_bytes));
    let codes: HashSet<(&str, Dtype)> = infos.iter().map(|t| (t.name.as_str(), t.dtype)).collect();
    let values = match against.and_then(|source| Some((source, Quantization::of(source)?))) {
        // Codes that the container has are compared unchanged, others by the values that were encoded.
        Some((source, quantization)) => {
            let keeps = |_: &str, tensor: &SourceTensor| codes.contains(&(tensor.name.as_str(), tensor.dtype));
            Some(Dequantized::new(source, &quantization, &|_, _| false, &keeps)?)
        }
        None => None,
    };
    let against = values.as_ref().map(|values| values as &dyn Source).or(against);
    let places: Option<HashMap<&str, usize>> =
        against.map(|s| s.tensors().iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect());
    let pool = container.pool(options.threads)?;
    let mut tensors = Vec::new();
    let mut done = 0;
    for info in &infos {
        progress(&ProgressEvent { tensor: &info.name, done, total })?;
        let place = places.as_ref().map(|p| p.get(info.name.as_str()).copied());
        let verdict = match (against, place) {
            (Some(_), Some(None)) => verdict(&info.name, VerifyStatus::Extra, "not in the source"),
            (Some(source), Some(Some(i))) => {
                let tensor = &source.tensors()[i];
                if (tensor.dtype, &tensor.shape) != (info.dtype, &info.shape) {
                    let was = format!(
                        "{} {:?} in the source, {} {:?} here",
                        tensor.dtype, tensor.shape, info.dtype, info.shape
                    );
                    verdict(&info.name, VerifyStatus::Differs, &was)
                } else {
                    let original = source.read_with(i, &pool, &options.cancel)?;
                    judge(&info.name, compare_values(container, &info.name, &original, &options, &pool))?
                }
            }
            _ => judge(&info.name, container.check(&info.name, &options).map(|()| Comparison::default()))?,
        };
        tensors.push(verdict);
        done = u64::saturating_add(done, info.original_bytes);
        progress(&ProgressEvent { tensor: &info.name, done, total })?;
    }
    if let (Some(source), Some(places)) = (against, &places) {
        tensors.extend(check_names(container, source, places, &pool, &options)?);
    }
    let tables = (0..container.reader().index().tables.len()).try_for_each(|i| container.table(i, true).map(drop));
    let file = tables.and_then(|()| container.reader().check_padding()).err();
    let file = file.map(|e| container.reader().name(e).to_string());
    Ok(VerifyReport { tensors, file })
}

/// Tensors that are in the rest of the model or missing, and aliases whose source is another tensor.
fn check_names(
    container: &Container,
    source: &dyn Source,
    places: &HashMap<&str, usize>,
    pool: &Pool,
    options: &DecodeOptions,
) -> Result<Vec<VerifiedTensor>> {
    let read = |i| source.read_with(i, pool, &options.cancel);
    // If the rest cannot be opened, its tensors count as missing.
    let rest = container.open_rest().ok().flatten();
    let mut verdicts = Vec::new();
    for (i, tensor) in source.tensors().iter().enumerate() {
        if container.reader().find(&tensor.name).is_some() {
            continue;
        }
        let plain = rest.as_ref().and_then(|r| Some((r, r.tensors().iter().position(|t| t.name == tensor.name)?)));
        let Some((rest, at)) = plain else {
            verdicts.push(verdict(&tensor.name, VerifyStatus::Missing, "not in the container"));
            continue;
        };
        let same = (rest.tensors()[at].dtype, &rest.tensors()[at].shape) == (tensor.dtype, &tensor.shape)
            && rest.read_with(at, pool, &options.cancel)?[..] == read(i)?[..];
        if same {
            verdicts.push(verdict(&tensor.name, VerifyStatus::Ok, ""));
        } else {
            let place = rest.path().unwrap_or(Path::new("")).display();
            let detail = format!("in the rest of its model, {place}, it is not what the source has");
            verdicts.push(verdict(&tensor.name, VerifyStatus::Differs, &detail));
        }
    }
    for (alias, target) in container.aliases() {
        let status = match (places.get(alias.as_str()), places.get(target.as_str())) {
            (Some(&a), Some(&b)) if read(a)?[..] == read(b)?[..] => verdict(alias, VerifyStatus::Ok, ""),
            (None, _) => verdict(alias, VerifyStatus::Extra, "not in the source"),
            _ => verdict(
                alias,
                VerifyStatus::Differs,
                &format!("tied to '{target}', from which it differs in the source"),
            ),
        };
        verdicts.push(status);
    }
    Ok(verdicts)
}

fn verdict(name: &str, status: VerifyStatus, detail: &str) -> VerifiedTensor {
    VerifiedTensor { name: name.to_owned(), status, detail: detail.to_owned(), max_error: None, rms_error: None }
}

#[derive(Default)]
struct Comparison {
    difference: Option<String>,
    errors: Option<(f64, f64)>,
}

fn judge(name: &str, result: Result<Comparison>) -> Result<VerifiedTensor> {
    match result {
        Ok(Comparison { difference, errors }) => {
            let status = if difference.is_some() { VerifyStatus::Differs } else { VerifyStatus::Ok };
            let mut v = verdict(name, status, &difference.unwrap_or_default());
            (v.max_error, v.rms_error) = errors.unzip();
            Ok(v)
        }
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(verdict(name, VerifyStatus::Unsupported, &e.to_string())),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Format) => {
            Ok(verdict(name, VerifyStatus::Damaged, &e.to_string()))
        }
        Err(e) => Err(e),
    }
}

fn compare_values(
    container: &Container,
    name: &str,
    original: &[u8],
    options: &DecodeOptions,
    pool: &Pool,
) -> Result<Comparison> {
    let info = container.info(name)?;
    if original.len() as u64 != info.original_bytes {
        let got = original.len();
        return Err(coded!(INPUT_BUG, "the source gives {got} bytes for {:?}", info.shape).tensor(name));
    }
    container.pass(name, options, |pass| match pass.tensor().scheme.equality() {
        Equality::Bits => compare_bits(pass, original, options),
        Equality::Again => compare_with_encoding(pass, original, options, pool),
        Equality::Error => match pass.tensor().dtype {
            Dtype::F16 => compare_error::<f16>(pass, original, options),
            Dtype::BF16 => compare_error::<bf16>(pass, original, options),
            _ => compare_error::<f32>(pass, original, options),
        },
    })
}

/// Compares the decoded tensor with the source, bit for bit.
fn compare_bits(pass: &Pass<'_>, original: &[u8], options: &DecodeOptions) -> Result<Comparison> {
    let (mut differs, mut begin) = (None, 0);
    pass.bytes(options, &mut |bytes| {
        let here = bytes.iter().zip(&original[begin..]);
        differs = differs.or_else(|| here.into_iter().position(|(a, b)| a != b).map(|at| begin + at));
        begin += bytes.len();
        Ok(())
    })?;
    let difference = differs.map(|at| format!("byte {at} of the tensor differs from the source"));
    Ok(Comparison { difference, errors: pass.tensor().dtype.is_quantizable().then_some((0.0, 0.0)) })
}

/// Compares the stored symbols with those that encoding the source gives, by the only definition of the scheme.
fn compare_with_encoding(pass: &Pass<'_>, original: &[u8], options: &DecodeOptions, pool: &Pool) -> Result<Comparison> {
    let expected = match crate::encode::symbols_like(pass.tensor(), original, pool, &options.cancel) {
        Ok(expected) => expected,
        // The container cannot be from a source that cannot be encoded; but it may be damaged as well.
        Err(e) if e.kind() == ErrorKind::Input => {
            pass.check(options)?;
            return Ok(Comparison { difference: Some(format!("in the source: {}", e.message())), errors: None });
        }
        Err(e) => return Err(e),
    };
    match pass.tensor().dtype {
        Dtype::F16 => compare_symbols::<f16>(pass, original, &expected, options),
        Dtype::BF16 => compare_symbols::<bf16>(pass, original, &expected, options),
        _ => compare_symbols::<f32>(pass, original, &expected, options),
    }
}

/// Compares symbols and scales with those that the source gives, and values with the source's.
fn compare_symbols<T: Weight>(
    pass: &Pass<'_>,
    original: &[u8],
    expected: &SymbolPlanes,
    options: &DecodeOptions,
) -> Result<Comparison> {
    let scales = scales_of(pass)?;
    let cols = pass.tensor().plane().form.matrix.2;
    let wanted = expected.planes.first().map_or(&[][..], Vec::as_slice);
    let suspects = pass.suspects::<T>(&scales)?;
    let mut difference = None;
    let mut errors = Errors::default();
    pass.symbols(options, &mut |begin, symbols| {
        suspects.check(begin, symbols)?;
        let first = || symbols.iter().zip(&wanted[begin..]).position(|(a, b)| a != b);
        difference = difference.take().or_else(|| first().map(|at| (begin + at, symbols[at])));
        errors.add(&scales, begin, symbols, |at| element_of::<T>(pass, original, at));
        Ok(())
    })?;
    let difference = match difference {
        Some((at, symbol)) => {
            let (row, col, source) = (at / cols, at % cols, wanted[at]);
            Some(format!("the symbol at row {row}, column {col} is {symbol}, and the source gives {source}"))
        }
        None => {
            let factors = expected.scales.as_ref().map_or(&[][..], |(_, factors)| factors);
            let pairs = || scales.values().iter().zip(factors);
            let at = pairs().position(|(a, b)| a.to_bits() != b.to_bits());
            at.and_then(|at| pairs().nth(at).map(|(a, b)| format!("scale {at} is {a}, and the source gives {b}")))
        }
    };
    Ok(Comparison { difference, errors: Some(errors.figures()) })
}

fn scales_of<'a>(pass: &'a Pass<'_>) -> Result<Scales<'a>> {
    let none = || coded!(BAD_COMBINATION, "a tensor of symbols without scales").advice("encode the model again");
    pass.scales().ok_or_else(none)
}

/// Element `at` of the matrices, in the source.
fn element_of<T: Weight>(pass: &Pass<'_>, original: &[u8], at: usize) -> T {
    let (_, rows, cols) = pass.tensor().plane().form.matrix;
    let place = if pass.tensor().transposed() { at % cols * rows + at / cols } else { at };
    bytemuck::pod_read_unaligned(&original[place * size_of::<T>()..][..size_of::<T>()])
}

/// Compares the error of the decoded values with the one that the file states: writers are free to choose symbols.
fn compare_error<T: Weight>(pass: &Pass<'_>, original: &[u8], options: &DecodeOptions) -> Result<Comparison> {
    let scales = scales_of(pass)?;
    let suspects = pass.suspects::<T>(&scales)?;
    let mut errors = Errors::default();
    pass.symbols(options, &mut |begin, symbols| {
        suspects.check(begin, symbols)?;
        errors.add(&scales, begin, symbols, |at| element_of::<T>(pass, original, at));
        Ok(())
    })?;
    let (measured, stated) = (errors.relative(), pass.tensor().error);
    let difference = stated.filter(|&stated| !error_fits(measured, stated)).map(|stated| {
        format!("the error is {measured:.4e} of the source's root mean square, and the file says {stated:.4e} at most")
    });
    Ok(Comparison { difference, errors: Some(errors.figures()) })
}

/// The tolerance for sums in another order.
const ROUNDING: f64 = 1e-9;

/// Whether the error of the decoded values, their RMS error relative to the RMS of the source, is at most the one that
/// the file states: [`verify`] then accepts a tensor of scheme `rate`. A NaN, as from a source with non-finite values,
/// does not fit.
pub fn error_fits(measured: f64, stated: f64) -> bool {
    measured <= stated * (1.0 + ROUNDING)
}

/// Elements that one task compares.
const TASK: usize = 1 << 16;

/// Sums over the differences between decoded values and the source's.
#[derive(Default)]
struct Errors {
    count: usize,
    largest: f64,
    squares: f64,
    /// The sum of the source's squares.
    source_squares: f64,
}

impl Errors {
    /// Adds the values of `symbols`, the first of which is element `begin`; `original` gives an element of the source.
    fn add<T: Weight>(
        &mut self,
        scales: &Scales<'_>,
        begin: usize,
        symbols: &[i8],
        original: impl Fn(usize) -> T + Sync,
    ) {
        let part = |values: &mut Vec<T>, (i, symbols): (usize, &[i8])| {
            let begin = begin + i * TASK;
            values.resize(symbols.len(), T::from_f32(0.0));
            scales.apply(begin, symbols, values);
            values.iter().enumerate().fold((0f64, 0f64, 0f64), |(largest, squares, sources), (at, value)| {
                let source = f64::from(original(begin + at).to_f32());
                let d = f64::from(value.to_f32()) - source;
                (largest.max(d.abs()), squares + d * d, sources + source * source)
            })
        };
        // Summed in the order of the tasks, so that the result is reproducible.
        let parts: Vec<(f64, f64, f64)> = symbols.par_chunks(TASK).enumerate().map_init(Vec::new, part).collect();
        for (largest, squares, sources) in parts {
            self.largest = self.largest.max(largest);
            self.squares += squares;
            self.source_squares += sources;
        }
        self.count += symbols.len();
    }

    /// RMS of the differences, divided by the RMS of the source; 0 if nothing differs.
    fn relative(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.squares / self.source_squares).sqrt() }
    }

    /// Largest magnitude and RMS.
    fn figures(&self) -> (f64, f64) {
        (self.largest, (self.squares / self.count.max(1) as f64).sqrt())
    }
}

/// The relation of a tensor in two containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CompareStatus {
    /// Both hold the same symbols, scales and bytes, in the same arrangement.
    Same,
    /// They differ.
    Differs,
    /// Only the first one has it.
    #[serde(rename = "only_a")]
    OnlyA,
    /// Only the second one has it.
    #[serde(rename = "only_b")]
    OnlyB,
}

impl CompareStatus {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs => "differs",
            Self::OnlyA => "only_a",
            Self::OnlyB => "only_b",
        }
    }
}

/// A tensor in two containers.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedTensor {
    /// Name.
    pub name: String,
    /// Verdict.
    pub status: CompareStatus,
    /// Its description in the first container.
    pub a: Option<crate::TensorInfo>,
    /// Its description in the second container.
    pub b: Option<crate::TensorInfo>,
    /// A description of the difference; empty if there is none.
    pub detail: String,
}

/// The result of [`compare`].
#[derive(Clone, Debug, Serialize)]
pub struct Comparisons {
    /// Tensors of the first container, then those that only the second one has; aliases count as tensors.
    pub tensors: Vec<ComparedTensor>,
}

impl Comparisons {
    /// Whether both hold the same tensors.
    pub fn same(&self) -> bool {
        self.tensors.iter().all(|t| t.status == CompareStatus::Same)
    }
}

/// Compares the decoded content of two containers by the hashes in their indexes: nothing is decoded, whatever schemes
/// and coders they use. The same symbols coded by different coders are equal; a different scheme or scale is a
/// difference.
pub fn compare(a: &Container, b: &Container) -> Result<Comparisons> {
    let names = |c: &Container| -> Vec<String> {
        c.names().into_iter().map(str::to_owned).chain(c.aliases().keys().cloned()).collect()
    };
    let mut tensors = Vec::new();
    for name in names(a) {
        let info = a.info(&name)?;
        if b.reader().find(&name).is_none() {
            tensors.push(ComparedTensor {
                name,
                status: CompareStatus::OnlyA,
                a: Some(info),
                b: None,
                detail: String::new(),
            });
            continue;
        }
        let other = b.info(&name)?;
        let (facts_a, facts_b) = (facts(a, &name)?, facts(b, &name)?);
        let differing: Vec<String> = facts_a
            .iter()
            .filter(|(key, value)| facts_b.get(*key) != Some(value))
            .map(|(key, value)| match facts_b.get(key) {
                Some(other) if !key.ends_with("values") => format!("{key} {value} / {other}"),
                _ => format!("{key} differ"),
            })
            .chain(facts_b.keys().filter(|k| !facts_a.contains_key(*k)).map(|k| format!("{k} differ")))
            .collect();
        let status = if differing.is_empty() { CompareStatus::Same } else { CompareStatus::Differs };
        tensors.push(ComparedTensor { name, status, a: Some(info), b: Some(other), detail: differing.join(", ") });
    }
    for name in names(b) {
        if a.reader().find(&name).is_none() {
            let info = b.info(&name)?;
            tensors.push(ComparedTensor {
                name,
                status: CompareStatus::OnlyB,
                a: None,
                b: Some(info),
                detail: String::new(),
            });
        }
    }
    Ok(Comparisons { tensors })
}

/// The facts that determine the decoded bytes of a tensor.
fn facts(container: &Container, name: &str) -> Result<BTreeMap<&'static str, String>> {
    let t = container.reader().tensor(name)?;
    let mut facts = BTreeMap::from([
        ("dtype", t.dtype.to_string()),
        ("shape", format!("{:?}", t.shape)),
        ("scheme", t.scheme.to_string()),
    ]);
    if let Some(s) = &t.scales {
        facts.insert("scales", format!("{}{}", s.per, s.block.map_or_else(String::new, |n| format!(" {n}"))));
        facts.insert("scale values", s.data.hash.to_string());
    }
    if SchemeKind::from_file(&t.scheme).is_ok_and(SchemeKind::makes_symbols) {
        facts.insert("matrix", format!("{:?}", t.matrix));
    }
    facts.insert("values", t.planes.iter().map(|p| p.hash.to_string()).collect::<Vec<_>>().join(" "));
    Ok(facts)
}
