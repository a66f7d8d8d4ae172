//! Checkpoints that are already quantized: FP8 and MXFP4 are dequantized on reading, as transformers does it; other
//! methods are only recognized and named.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Source, SourceBytes, SourceTensor};
use crate::cancel::Cancel;
use crate::container::metadata::QUANTIZED_KEY;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::scheme::Levels;
use crate::tensor::Dtype;

mod method;
mod pair;
mod values;

use method::Foreign;
use pair::{Form, Known, Pair};

/// The quantization of a checkpoint's weights, found from its tensors and configuration.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// A method whose weights are not dequantized here.
    foreign: Option<Foreign>,
    pairs: Vec<Pair>,
    /// The dtype of dequantized values.
    dtype: Dtype,
    /// For each tensor, whether it concerns activations rather than being a weight or scales.
    beside: Vec<bool>,
    /// The part of the configuration that a container keeps.
    record: Value,
}

/// Codes with their scales, as returned by [`Quantization::pairs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedTensor<'a> {
    /// The name of the dequantized values.
    pub name: &'a str,
    /// The shape of the values.
    pub shape: &'a [usize],
    /// Index of the codes among the tensors.
    pub codes: usize,
    /// Index of the scales among the tensors.
    pub scales: usize,
    /// For FP8: the number of matrices, their rows and columns, rows and columns of a block, and for each matrix the
    /// columns of its scales and the number of its scales (0 if all matrices share them). `None` for MXFP4.
    pub grid: Option<[usize; 7]>,
}

impl Quantization {
    /// Inspects names, dtypes and shapes, and `config.json` if there is one. `None` if no weight is quantized.
    pub fn find(tensors: &[SourceTensor], config: Option<&Value>) -> Option<Self> {
        let record = config.and_then(method::record);
        let places: HashMap<&str, usize> = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        let names = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let foreign = method::foreign(record, &names);
        let block = record.and_then(block_of);
        let scaled = record.is_some_and(method::is_scaled);
        let pairs = pair::find(tensors, &places, Known { scaled, block });
        if foreign.is_none() && pairs.is_empty() {
            return None;
        }
        let codes: std::collections::HashSet<&str> = pairs.iter().map(|p| p.name.as_str()).collect();
        let beside = tensors.iter().map(|t| pair::is_beside(t, |name| codes.contains(name))).collect();
        let (word, dtype) = dtype_of(config);
        let mut kept = json!({ "quant_method": "fp8" });
        if let Some((rows, cols)) = block {
            kept["weight_block_size"] = json!([rows, cols]);
        }
        let record = json!({ "dtype": word, "quantization_config": kept });
        Some(Self { foreign, pairs, dtype, beside, record })
    }

    /// The quantization of a source, according to its model's configuration or the record that a container kept of it.
    pub fn of(source: &dyn Source) -> Option<Self> {
        let model = source.model();
        let kept = || serde_json::from_str(source.metadata().get(QUANTIZED_KEY)?).ok();
        let config = model.as_ref().and_then(|m| m.get("config")).cloned().or_else(kept);
        Self::find(source.tensors(), config.as_ref())
    }

    /// The error for a caller that needs values, if weights use a method that is not dequantized here. `stores`:
    /// whether the caller could store the tensors unchanged instead.
    ///
    /// # Errors
    /// The method is one of those.
    pub fn check(&self, stores: bool) -> Result<()> {
        self.foreign.as_ref().map_or(Ok(()), |foreign| Err(foreign.refused(stores)))
    }

    /// The dtype of dequantized values: the model's compute dtype in the configuration, or `BF16`.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The record of such codes in a container's metadata ([`QUANTIZED_KEY`]).
    pub fn record(&self) -> String {
        self.record.to_string()
    }

    /// The names that dequantized values would have.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| pair.name.as_str())
    }

    /// The codes that can be dequantized.
    ///
    /// # Errors
    /// Scales are missing, or do not fit their codes.
    pub fn pairs<'a>(&'a self, tensors: &[SourceTensor]) -> Result<Vec<QuantizedTensor<'a>>> {
        let of = |pair: &'a Pair| {
            let (scales, form) = scales_of(pair, tensors)?;
            let grid = match form {
                Form::Fp8(g) => Some([g.count, g.rows, g.cols, g.block.0, g.block.1, g.scale_cols, g.scales]),
                Form::Mxfp4 { .. } => None,
            };
            Ok(QuantizedTensor { name: &pair.name, shape: &pair.shape, codes: pair.codes, scales, grid })
        };
        self.pairs.iter().map(of).collect()
    }

    /// Indices of tensors that concern activations, rather than being weights or their scales.
    pub fn beside(&self) -> impl Iterator<Item = usize> {
        self.beside.iter().enumerate().filter(|(_, beside)| **beside).map(|(i, _)| i)
    }
}

fn scales_of(pair: &Pair, tensors: &[SourceTensor]) -> Result<(usize, Form)> {
    pair.scales.clone().map_err(|fault| fault.error(&tensors[pair.codes].name))
}

/// Rows and columns of the blocks that share a scale, if the configuration defines them.
fn block_of(record: &Value) -> Option<(usize, usize)> {
    let groups = record.get("config_groups").and_then(Value::as_object);
    let mut of_groups =
        groups.into_iter().flat_map(|g| g.values()).filter_map(|g| g.get("weights")?.get("block_structure"));
    let sizes =
        record.get("weight_block_size").filter(|v| !v.is_null()).or_else(|| of_groups.find(|v| !v.is_null()))?;
    let [rows, cols] = &sizes.as_array()?[..] else { return None };
    let size = |v: &Value| usize::try_from(v.as_u64()?).ok().filter(|&n| n > 0);
    Some((size(rows)?, size(cols)?))
}

/// The model's compute dtype from its configuration: the word used there, and the dtype.
fn dtype_of(config: Option<&Value>) -> (&'static str, Dtype) {
    let of = |config: &Value| {
        let word = config
            .get("dtype")
            .or_else(|| config.get("torch_dtype"))?
            .as_str()?
            .trim_start_matches("torch.")
            .to_owned();
        [("bfloat16", Dtype::BF16), ("float16", Dtype::F16), ("float32", Dtype::F32)]
            .into_iter()
            .find(|(w, _)| *w == word)
    };
    let method = config.and_then(|config| of(config).or_else(|| of(config.get("text_config")?)));
    method.unwrap_or(("bfloat16", Dtype::BF16))
}

/// A source that replaces codes by their values, except those that are kept.
pub struct Dequantized<'a> {
    source: &'a dyn Source,
    tensors: Vec<SourceTensor>,
    places: Vec<Place>,
    dtype: Dtype,
    /// Maps the names of kept codes and scales to the name that their values would have.
    owners: HashMap<String, String>,
    /// The metadata record of the codes that are kept.
    record: Option<String>,
}

/// A decision on codes, given the name of their values and the codes.
type Choice<'a> = &'a dyn Fn(&str, &SourceTensor) -> bool;

/// The origin of a tensor in the wrapped source.
enum Place {
    /// An unchanged tensor.
    Plain(usize),
    /// Values computed from codes and scales.
    Value { codes: usize, scales: usize, form: Form },
}

impl<'a> Dequantized<'a> {
    /// Wraps a source, replacing codes and their scales by values. Given the name of the values and the codes, `skips`
    /// decides whether all of them are left out, and `keeps` whether codes and scales are kept unchanged.
    ///
    /// # Errors
    /// Scales are missing, or do not fit their codes; two tensors end up with the same name.
    pub fn new(
        source: &'a dyn Source,
        quantization: &Quantization,
        skips: Choice<'_>,
        keeps: Choice<'_>,
    ) -> Result<Self> {
        let all = source.tensors();
        let name = |e: Error| match source.path() {
            Some(path) => e.file(path),
            None => e,
        };
        let mut made = HashMap::new();
        let mut taken = vec![false; all.len()];
        let mut owners = HashMap::new();
        for pair in &quantization.pairs {
            let codes = &all[pair.codes];
            let kept = keeps(&pair.name, codes);
            match scales_of(pair, all) {
                scaled if skips(&pair.name, codes) => {
                    taken[pair.codes] = true;
                    taken[scaled.map_or(pair.codes, |(scales, _)| scales)] = true;
                }
                // Codes without known scales are kept as plain tensors.
                Err(_) if kept => {}
                Ok((scales, _)) if kept => {
                    for place in [pair.codes, scales] {
                        owners.insert(all[place].name.clone(), pair.name.clone());
                    }
                }
                Ok((scales, form)) => {
                    taken[scales] = true;
                    made.insert(pair.codes, (pair, scales, form));
                }
                Err(e) => return Err(name(e)),
            }
        }
        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for (i, tensor) in all.iter().enumerate() {
            if let Some(&(pair, scales, form)) = made.get(&i) {
                let tied = tensor.alias_of.as_deref().and_then(|target| tied_to(target, scales, all, &made));
                let (name, shape) = (pair.name.clone(), pair.shape.clone());
                tensors.push(SourceTensor { name, dtype: quantization.dtype, shape, alias_of: tied, opaque: None });
                places.push(Place::Value { codes: i, scales, form });
            } else if !taken[i] && (made.is_empty() || !owners.is_empty() || !quantization.beside[i]) {
                tensors.push(tensor.clone());
                places.push(Place::Plain(i));
            }
        }
        let record = (!owners.is_empty()).then(|| quantization.record());
        Ok(Self { source, tensors, places, dtype: quantization.dtype, owners, record })
    }

    /// Maps the names of kept codes and scales to the name that their values would have, which decides how both are
    /// stored.
    pub fn owners(&self) -> &HashMap<String, String> {
        &self.owners
    }
}

/// The values that other values are tied to, given that both their codes and their scales are tied.
fn tied_to(
    target: &str,
    scales: usize,
    all: &[SourceTensor],
    made: &HashMap<usize, (&Pair, usize, Form)>,
) -> Option<String> {
    let (pair, others, _) = made.values().find(|(pair, ..)| all[pair.codes].name == target)?;
    let scale = &all[scales];
    (scale.alias_of.as_ref() == Some(&all[*others].name)).then(|| pair.name.clone())
}

impl Source for Dequantized<'_> {
    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<SourceBytes<'_>> {
        let (codes, at, form) = match self.places[index] {
            Place::Plain(at) => return self.source.read_with(at, pool, cancel),
            Place::Value { codes, scales, form } => (codes, scales, form),
        };
        let all = self.source.tensors();
        let bytes = |at: usize| {
            let bytes = self.source.read_with(at, pool, cancel)?;
            let want =
                crate::tensor::check_bytes(&all[at].shape, all[at].dtype).map_err(|e| e.tensor(&all[at].name))?;
            if bytes.len() as u64 != want {
                let what = format!("the source gives {} bytes for {:?}", bytes.len(), all[at].shape);
                return Err(coded!(INPUT_BUG, what).tensor(&all[at].name));
            }
            Ok(bytes)
        };
        let scales = values::scales(all[at].dtype, &bytes(at)?);
        let codes = (&bytes(codes)?[..], all[codes].dtype);
        Ok(SourceBytes::Owned(values::dequantize(codes, &scales, form, self.dtype, pool, cancel)?))
    }

    fn levels_with(&self, index: usize, pool: &Pool, cancel: &Cancel) -> Result<Option<Levels>> {
        let (Place::Plain(at) | Place::Value { codes: at, .. }) = self.places[index];
        self.source.levels_with(at, pool, cancel)
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = self.source.metadata();
        metadata.remove(QUANTIZED_KEY);
        metadata.extend(self.record.clone().map(|record| (QUANTIZED_KEY.to_owned(), record)));
        metadata
    }

    fn model(&self) -> Option<Value> {
        let mut model = self.source.model();
        if self.owners.is_empty()
            && let Some(config) = model.as_mut().and_then(|m| m.get_mut("config")).and_then(Value::as_object_mut)
        {
            // This part of the configuration describes codes, and there are none any more.
            forget(config);
            if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
                forget(text);
            }
        }
        model
    }

    fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }
}

fn forget(config: &mut serde_json::Map<String, Value>) {
    for key in ["quantization_config", "compression_config"] {
        config.remove(key);
    }
}
