//! Options as dictionaries of plain values; `wcodec._core.options` fills in every key.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use wcodec::coder::tile;
use wcodec::scheme::SchemeKind;
use wcodec::scheme::int8::DEFAULT_BLOCK;
use wcodec::{
    Bits, Cancel, Coder, DecodeOptions, EncodeOptions, Granularity, Isa, Layout, OpenOptions, Optimize, Rate, Result,
    Rule, Scheme,
};

use crate::arrays::Array;
use crate::errors::to_py;

/// The encoding of some weights; the keys of the dictionary are the fields.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Way {
    scheme: String,
    scale: String,
    block: usize,
    bits: Option<f64>,
    trellis: bool,
    coder: String,
}

impl Way {
    fn build(&self) -> Result<(Scheme, Coder)> {
        let granularity = match self.scale.as_str() {
            "row" => Granularity::Row,
            "tensor" => Granularity::Tensor,
            "block" => Granularity::Block(self.block),
            other => return Err(unknown("scale", other, "row, tensor or block")),
        };
        let scheme = match self.scheme.as_str() {
            "int8" => Scheme::Int8(granularity),
            "rate" => {
                Scheme::Rate(Rate { bits: Bits::new(self.bits.unwrap_or(Bits::DEFAULT))?, trellis: self.trellis })
            }
            "lossless" => Scheme::Lossless,
            "raw" => Scheme::Raw,
            other => return Err(unknown("scheme", other, "int8, rate, lossless or raw")),
        };
        Ok((scheme, Coder::from_name(&self.coder)?))
    }
}

/// The elements of an array of `numpy.float32`.
pub struct Elements(Vec<f32>);

impl<'a, 'py> FromPyObject<'a, 'py> for Elements {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(object.extract::<Array<'_, f32>>()?.elements()?.to_vec()))
    }
}

/// Options for encoding; the keys of the dictionary are the fields.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Encode {
    way: Way,
    rules: Vec<(String, Way)>,
    step: Option<f32>,
    steps: BTreeMap<String, f32>,
    columns: BTreeMap<String, Elements>,
    bits_per_tensor: bool,
    optimize: String,
    coder_of_few: Option<String>,
    layout: Option<String>,
    level: i32,
    frame: Option<usize>,
    tile: Option<usize>,
    table_bits: Option<u32>,
    include: Vec<String>,
    exclude: Vec<String>,
    skip: Vec<String>,
    transpose: Vec<String>,
    threads: Option<usize>,
    overwrite: bool,
    metadata: BTreeMap<String, String>,
}

impl Encode {
    /// The crate's options.
    pub fn build(self, cancel: Cancel) -> Result<EncodeOptions> {
        let (scheme, coder) = self.way.build()?;
        let rule = |(pattern, way): (String, Way)| {
            let (scheme, coder) = way.build()?;
            Ok(Rule { pattern, scheme, coder })
        };
        Ok(EncodeOptions {
            optimize: Optimize::from_name(&self.optimize)?,
            scheme,
            coder,
            coder_of_few: self.coder_of_few.as_deref().map(Coder::from_name).transpose()?,
            layout: self.layout.as_deref().map(Layout::from_name).transpose()?,
            zstd_level: self.level,
            zstd_chunk: self.frame,
            tile: self.tile,
            table_bits: self.table_bits,
            rules: self.rules.into_iter().map(rule).collect::<Result<_>>()?,
            step: self.step,
            steps: self.steps,
            columns: self.columns.into_iter().map(|(name, factors)| (name, factors.0)).collect(),
            bits_per_tensor: self.bits_per_tensor,
            include: self.include,
            exclude: self.exclude,
            skip: self.skip,
            transpose: self.transpose,
            threads: self.threads,
            overwrite: self.overwrite,
            cancel,
            metadata: self.metadata,
        })
    }
}

/// The options that encoding accepts, and their defaults: a dictionary.
#[derive(IntoPyObject)]
pub struct EncodingFacts {
    schemes: Vec<&'static str>,
    coders: Vec<&'static str>,
    tiled_coders: Vec<&'static str>,
    layouts: Vec<&'static str>,
    /// Maps the name of a purpose to its coder, and to whether it uses a trellis if that coder supports one.
    purposes: BTreeMap<&'static str, (&'static str, bool)>,
    /// Bits per weight: the fewest, those of scheme `rate` if none are given, and the most.
    bits: (f64, f64, f64),
    block: usize,
    level: i32,
}

/// The crate's names and figures, so that Python does not duplicate them.
#[pyfunction]
pub fn encoding_facts() -> EncodingFacts {
    EncodingFacts {
        schemes: SchemeKind::ALL.iter().map(|s| s.name()).collect(),
        coders: Coder::ALL.iter().map(|c| c.name()).collect(),
        tiled_coders: Coder::ALL.iter().filter(|c| c.is_tiled()).map(|c| c.name()).collect(),
        layouts: Layout::CHOICES.iter().map(|l| l.name()).collect(),
        purposes: Optimize::ALL.iter().map(|o| (o.name(), (o.coder().name(), o.trellis(o.coder())))).collect(),
        bits: (Bits::LEAST, Bits::DEFAULT, Bits::MOST),
        block: DEFAULT_BLOCK,
        level: EncodeOptions::default().zstd_level,
    }
}

/// Refuses options that no tensor can be encoded with.
#[pyfunction]
pub fn check_encode_options(py: Python<'_>, options: Encode) -> PyResult<()> {
    options.build(Cancel::new()).and_then(|options| options.check()).map_err(|e| to_py(py, &e))
}

/// The default tile width of scheme `rate`, columns, for a matrix of the given size that a coder codes, in a file with so
/// many quantized weights.
#[pyfunction]
pub fn rate_tile(py: Python<'_>, coder: &str, rows: usize, cols: usize, weights: usize) -> PyResult<usize> {
    let coder = Coder::from_name(coder).map_err(|e| to_py(py, &e))?;
    Ok(tile::rate_tile(coder, rows, cols, weights))
}

/// Options for decoding; the keys of the dictionary are the fields.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Decode {
    threads: Option<usize>,
    isa: Option<String>,
    verify: bool,
}

impl Decode {
    /// The crate's options.
    pub fn build(self, cancel: &Cancel) -> Result<DecodeOptions> {
        Ok(DecodeOptions {
            threads: self.threads,
            isa: self.isa.as_deref().map(Isa::from_name).transpose()?,
            verify: self.verify,
            cancel: cancel.clone(),
        })
    }
}

/// Options for opening a container.
pub fn open_options(trusted: bool) -> OpenOptions {
    OpenOptions { trusted, ..OpenOptions::default() }
}

fn unknown(what: &str, got: &str, want: &str) -> wcodec::Error {
    wcodec::Code::UNKNOWN_CHOICE.error(format!("unknown {what} '{got}'")).advice(format!("use {want}"))
}
