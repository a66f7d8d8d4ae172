//! Recognizes quantization methods whose weights are not dequantized here, and advises on them.

use std::collections::HashMap;

use serde_json::Value;

use super::pair;
use crate::checkpoint::SourceTensor;
use crate::error::Error;
use crate::tensor::Dtype;

/// A method whose weights are not dequantized here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its name, as in "quantized with …".
    what: String,
    /// A tool that dequantizes such a checkpoint.
    tool: &'static str,
    /// Whether only the configuration says so, and no tensor has the method's form.
    only_said: bool,
}

impl Foreign {
    fn new(what: impl Into<String>, tool: &'static str) -> Self {
        Self { what: what.into(), tool, only_said: false }
    }

    /// The error for a caller that needs values of its weights.
    ///
    /// `stores`: whether the caller could store the tensors unchanged instead.
    pub fn refused(&self, stores: bool) -> Error {
        let what = format!(
            "the weights are quantized already, with {}, and wcodec compresses only plain ones, FP8 and MXFP4",
            self.what
        );
        let mut advice = format!("use the original checkpoint, or dequantize this one with {}", self.tool);
        if self.only_said {
            advice.push_str("; if its weights are none, remove quantization_config from config.json");
        }
        if stores {
            advice.push_str("; scheme lossless or raw stores all tensors as they are");
        }
        coded!(QUANTIZED, what).advice(advice)
    }
}

const TRANSFORMERS: &str = "transformers' model.dequantize() and save_pretrained";
const ITS_TOOL: &str = "the tool that made it";

/// For each method: its name in configurations, its usual name, and a tool that dequantizes it.
const METHODS: [(&str, &str, &str); 23] = [
    ("gptq", "GPTQ", "GPTQModel"),
    ("gptqmodel", "GPTQ", "GPTQModel"),
    ("awq", "AWQ", "AutoAWQ"),
    ("auto-round", "AutoRound", "AutoRound"),
    ("intel/auto-round", "AutoRound", "AutoRound"),
    ("bitsandbytes", "bitsandbytes", TRANSFORMERS),
    ("bitsandbytes_4bit", "bitsandbytes", TRANSFORMERS),
    ("bitsandbytes_8bit", "bitsandbytes", TRANSFORMERS),
    ("exl2", "EXL2", "ExLlamaV2"),
    ("exl3", "EXL3", "ExLlamaV3"),
    ("hqq", "HQQ", "hqq"),
    ("aqlm", "AQLM", ITS_TOOL),
    ("vptq", "VPTQ", ITS_TOOL),
    ("spqr", "SpQR", ITS_TOOL),
    ("higgs", "HIGGS", TRANSFORMERS),
    ("torchao", "torchao", "torchao"),
    ("quanto", "quanto", "optimum-quanto"),
    ("eetq", "EETQ", ITS_TOOL),
    ("bitnet", "BitNet", ITS_TOOL),
    ("gguf", "GGUF", "transformers' from_pretrained(FOLDER, gguf_file=FILE) and save_pretrained"),
    ("nvfp4", "NVFP4", ITS_TOOL),
    ("fp_quant", "FP-Quant", TRANSFORMERS),
    ("quark", "Quark", ITS_TOOL),
];

const COMPRESSED_TENSORS: &str = "compressed-tensors";
const COMPRESSED_TOOL: &str = "llm-compressor's compressed-tensors";

/// The configuration's record of the model's quantization; `None` if it is this package's own.
pub fn record(config: &Value) -> Option<&Value> {
    let of = [Some(config), config.get("text_config")].into_iter().flatten();
    let mut configs = of.flat_map(|config| ["quantization_config", "compression_config"].map(|key| config.get(key)));
    let record = configs.find_map(|r| r.filter(|r| r.as_object().is_some_and(|fields| !fields.is_empty())))?;
    (method_of(record).as_deref() != Some("wcodec")).then_some(record)
}

/// The method named in the record, in lower case.
fn method_of(record: &Value) -> Option<String> {
    Some(record.get("quant_method")?.as_str()?.to_lowercase())
}

/// Whether the record says that weights are stored with scales, as FP8 or MXFP4.
pub fn is_scaled(record: &Value) -> bool {
    of_config(record).is_none()
}

/// The method that the record names, unless its weights are dequantized here.
pub fn of_config(record: &Value) -> Option<Foreign> {
    let Some(method) = method_of(record) else {
        return match record.get("config_groups") {
            Some(_) => compressed_tensors(record),
            None if is_true(record, "load_in_4bit") || is_true(record, "load_in_8bit") => Some(bitsandbytes(record)),
            None => Some(Foreign::new("a method that its config.json does not name", ITS_TOOL)),
        };
    };
    match method.as_str() {
        "fp8" | "mxfp8" | "mxfp4" | "fbgemm_fp8" => None,
        COMPRESSED_TENSORS | "compressed_tensors" | "sparseml" => compressed_tensors(record),
        "modelopt" => match record.get("quant_algo").and_then(Value::as_str) {
            Some("FP8") => None,
            Some(algorithm) => Some(Foreign::new(format!("ModelOpt ({})", short(algorithm)), ITS_TOOL)),
            None => Some(Foreign::new("ModelOpt", ITS_TOOL)),
        },
        _ => Some(match METHODS.iter().find(|(name, ..)| *name == method) {
            Some((_, "bitsandbytes", _)) => bitsandbytes(record),
            Some((_, what, tool)) => Foreign::new(format!("{what}{}", bits_of(record)), tool),
            None => Foreign::new(format!("'{}'", short(&method)), ITS_TOOL),
        }),
    }
}

fn is_true(record: &Value, key: &str) -> bool {
    record.get(key).and_then(Value::as_bool) == Some(true)
}

/// Text from a file, cut to the length of a word.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

fn bits_of(record: &Value) -> String {
    let keys = ["bits", "w_bit", "weight_bits", "num_bits", "nbits", "nbits_per_codebook"];
    let bits = keys.iter().find_map(|key| record.get(key)).and_then(Value::as_f64);
    bits.map_or_else(String::new, |bits| format!(" ({bits} bits)"))
}

fn bitsandbytes(record: &Value) -> Foreign {
    let kind = match record.get("bnb_4bit_quant_type").and_then(Value::as_str) {
        _ if is_true(record, "load_in_8bit") => " (int8)".to_owned(),
        Some(kind) => format!(" ({})", short(kind)),
        None if is_true(record, "load_in_4bit") => " (4 bits)".to_owned(),
        None => String::new(),
    };
    Foreign::new(format!("bitsandbytes{kind}"), TRANSFORMERS)
}

/// The method compressed-tensors, unless all weights that it quantizes are FP8.
fn compressed_tensors(record: &Value) -> Option<Foreign> {
    let format = record.get("format").and_then(Value::as_str);
    let groups = record.get("config_groups").and_then(Value::as_object);
    let weights = groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| group.get("weights"));
    let kinds = weights.filter(|weights| !weights.is_null()).map(|weights| {
        let bits = weights.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
        let kind = weights.get("type").and_then(Value::as_str).unwrap_or("int");
        (bits, kind)
    });
    let other = kinds.clone().find(|kind| *kind != (8, "float"));
    let packed = format.is_some_and(|format| format.contains("pack") || format.starts_with("int"));
    if other.is_none() && !packed {
        return None;
    }
    let of_format = |format: &str| format!(" ({})", short(format));
    let of_kind = |(bits, kind): (u64, &str)| format!(" ({bits}-bit {})", short(kind));
    let what = format.map(of_format).or_else(|| other.map(of_kind)).unwrap_or_default();
    Some(Foreign::new(format!("{COMPRESSED_TENSORS}{what}"), COMPRESSED_TOOL))
}

/// The method implied by names and dtypes of tensors, unless its weights are dequantized here.
pub fn of_tensors(names: &HashMap<&str, &SourceTensor>) -> Option<Foreign> {
    // The first match by name, so that the answer does not depend on the map's order.
    names.values().filter_map(|tensor| Some((&tensor.name, of_tensor(tensor, names)?))).min_by_key(|f| f.0).map(|f| f.1)
}

fn of_tensor(tensor: &SourceTensor, names: &HashMap<&str, &SourceTensor>) -> Option<Foreign> {
    let name = tensor.name.as_str();
    let (base, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let has = |leaf: &str| match base {
        "" => names.contains_key(leaf),
        _ => names.contains_key(format!("{base}.{leaf}").as_str()),
    };
    let foreign = |what: &str, tool| Some(Foreign::new(what, tool));
    match leaf {
        "qweight" if has("g_idx") => foreign("GPTQ", "GPTQModel"),
        "qweight" if has("qzeros") => foreign("GPTQ or AWQ", "GPTQModel or AutoAWQ"),
        "qweight" if has("scales") => foreign("integers and scales, as GPTQ and AWQ do", ITS_TOOL),
        "q_weight" if has("q_scale") => foreign("EXL2", "ExLlamaV2"),
        "trellis" if has("suh") || has("svh") => foreign("EXL3", "ExLlamaV3"),
        "W_q" if has("scale") || has("zero") || has("meta") => foreign("HQQ", "hqq"),
        "codes" if has("codebooks") => foreign("AQLM", ITS_TOOL),
        "weight_packed" if has("weight_global_scale") => {
            foreign("compressed-tensors (nvfp4-pack-quantized)", COMPRESSED_TOOL)
        }
        "weight_packed" if has("weight_scale") => foreign("compressed-tensors (pack-quantized)", COMPRESSED_TOOL),
        "weight" if has("weight_scale_2") => foreign("NVFP4", ITS_TOOL),
        "SCB" if has("weight") => foreign("bitsandbytes (int8)", TRANSFORMERS),
        "absmax" if names.contains_key(base) => foreign("bitsandbytes (4 bits)", TRANSFORMERS),
        "_data" if has("_scale") => foreign("quanto", "optimum-quanto"),
        _ if leaf.starts_with('_') && leaf.ends_with("qdata") => foreign("torchao", "torchao"),
        _ if is_integer(tensor.dtype) && tensor.shape.len() >= 2 && has_scales(name, names) => {
            Some(Foreign::new(format!("integers ({}) and scales", tensor.dtype), ITS_TOOL))
        }
        _ => None,
    }
}

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::I8 | Dtype::U8 | Dtype::I16 | Dtype::U16 | Dtype::I32 | Dtype::U32)
}

/// Whether a tensor of integers that is not part of MXFP4 has floating-point scales beside it.
fn has_scales(name: &str, names: &HashMap<&str, &SourceTensor>) -> bool {
    let others = [("", "_scales"), (".weight", ".scales"), (".weight", ".weight_scales")];
    pair::BESIDE.iter().chain(&others).any(|(codes, scales)| {
        let base = name.strip_suffix(codes);
        let beside = base.and_then(|base| names.get(format!("{base}{scales}").as_str()));
        beside.is_some_and(|scales| !is_integer(scales.dtype) && scales.dtype != Dtype::BOOL)
    })
}

/// The method, if weights are not dequantized here, according to the configuration and to the tensors.
pub fn foreign(record: Option<&Value>, names: &HashMap<&str, &SourceTensor>) -> Option<Foreign> {
    let seen = of_tensors(names);
    match record.and_then(of_config) {
        Some(said) => Some(Foreign { only_said: seen.is_none(), ..said }),
        None => seen,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(record: Value) -> Option<String> {
        of_config(&record).map(|f| f.what)
    }

    fn seen(tensors: &[(&str, Dtype)]) -> Option<String> {
        let made: Vec<SourceTensor> = tensors
            .iter()
            .map(|&(name, dtype)| SourceTensor {
                name: name.into(),
                dtype,
                shape: vec![32, 32],
                alias_of: None,
                opaque: None,
            })
            .collect();
        of_tensors(&made.iter().map(|t| (t.name.as_str(), t)).collect()).map(|f| f.what)
    }

    #[test]
    fn configurations_name_methods() {
        let float = json!({ "weights": { "num_bits": 8, "type": "float", "strategy": "channel" } });
        let int = json!({ "weights": { "num_bits": 4, "type": "int" } });
        let cases = [
            (json!({ "quant_method": "gptq", "bits": 4 }), Some("GPTQ (4 bits)")),
            (json!({ "quant_method": "AWQ", "bits": 4 }), Some("AWQ (4 bits)")),
            (
                json!({ "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4" }),
                Some("bitsandbytes (nf4)"),
            ),
            (json!({ "load_in_8bit": true }), Some("bitsandbytes (int8)")),
            (
                json!({ "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": { "a": int } }),
                Some("compressed-tensors (pack-quantized)"),
            ),
            (
                json!({ "quant_method": "compressed-tensors", "config_groups": { "a": float, "b": int } }),
                Some("compressed-tensors (4-bit int)"),
            ),
            (
                json!({ "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": { "a": float } }),
                None,
            ),
            (json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" }), Some("ModelOpt (NVFP4)")),
            (json!({ "quant_method": "modelopt", "quant_algo": "FP8" }), None),
            (json!({ "quant_method": "fp8", "weight_block_size": [128, 128] }), None),
            (json!({ "quant_method": "mxfp4" }), None),
            (json!({ "quant_method": "brand-new" }), Some("'brand-new'")),
            (json!({ "bits": 3 }), Some("a method that its config.json does not name")),
        ];
        for (config, want) in cases {
            assert_eq!(said(config.clone()).as_deref(), want, "{config}");
        }
        for (name, what, _) in METHODS {
            assert!(said(json!({ "quant_method": name })).is_some_and(|found| found.starts_with(what)), "{name}");
        }
    }

    #[test]
    fn configurations_have_it_in_several_places() {
        let inner = json!({ "quant_method": "gptq" });
        for config in [
            json!({ "quantization_config": inner }),
            json!({ "compression_config": inner }),
            json!({ "text_config": { "quantization_config": inner } }),
        ] {
            assert_eq!(record(&config), Some(&inner), "{config}");
        }
        for config in [
            json!({}),
            json!({ "quantization_config": {} }),
            json!({ "quantization_config": { "quant_method": "wcodec" } }),
            json!("text"),
        ] {
            assert_eq!(record(&config), None, "{config}");
        }
    }

    #[test]
    fn tensors_tell_methods() {
        use Dtype::{BF16, F8_E4M3, F16, F32, I8, I32, U8};
        let cases: [(&[(&str, Dtype)], &str); 11] = [
            (&[("a.qweight", I32), ("a.qzeros", I32), ("a.scales", F16), ("a.g_idx", I32)], "GPTQ"),
            (&[("a.qweight", I32), ("a.qzeros", I32), ("a.scales", F16)], "GPTQ or AWQ"),
            (&[("a.q_weight", I32), ("a.q_scale", I32)], "EXL2"),
            (&[("a.trellis", I32), ("a.suh", F16)], "EXL3"),
            (&[("a.W_q", U8), ("a.scale", F16)], "HQQ"),
            (&[("a.codes", I8), ("a.codebooks", F16)], "AQLM"),
            (&[("a.weight", U8), ("a.weight.absmax", F32)], "bitsandbytes"),
            (&[("a.weight", I8), ("a.SCB", F32)], "bitsandbytes (int8)"),
            (
                &[("a.weight_packed", U8), ("a.weight_scale", F8_E4M3), ("a.weight_global_scale", F32)],
                "compressed-tensors (nvfp4",
            ),
            (&[("a.weight", I8), ("a.weight_scale", BF16)], "integers (I8)"),
            (&[("a.weight._data", I8), ("a.weight._scale", BF16)], "quanto"),
        ];
        for (tensors, want) in cases {
            assert!(seen(tensors).is_some_and(|found| found.starts_with(want)), "{want}: {:?}", seen(tensors));
        }
        let plain: [&[(&str, Dtype)]; 4] = [
            &[("a.weight", BF16), ("a.scale", F32)],
            &[("a.weight", F8_E4M3), ("a.weight_scale_inv", F32)],
            &[("a.down_proj_blocks", U8), ("a.down_proj_scales", U8)],
            &[("ids", I32), ("weight", U8)],
        ];
        for tensors in plain {
            assert_eq!(seen(tensors), None, "{tensors:?}");
        }
    }
}
