//! Checkpoints that are quantized already.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use wcodec::{
    Bits, Checkpoint, Container, DecodeOptions, Dtype, EncodeOptions, Error, ErrorKind, MemorySource, QUANTIZED_KEY,
    Quantization, Rate, Rule, Scheme, Source, encode, encode_to_container, rate_bits, verify,
};

use crate::common::safetensors::valid;
use crate::common::text;

const ROWS: usize = 80;
const COLS: usize = 192;

fn codes() -> Vec<u8> {
    // Finite, and not all equal.
    (0..ROWS * COLS).map(|i| (i * i % 251) as u8 & 0xf7).collect()
}

fn scales() -> Vec<u8> {
    (0..2 * 2).flat_map(|i| (0.01 + i as f32 * 0.002).to_le_bytes()).collect()
}

fn folder(config: &Value, tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), valid(tensors)).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn fp8() -> tempfile::TempDir {
    let record = json!({ "quant_method": "fp8", "weight_block_size": [64, 128] });
    let norm = (0..64).flat_map(|_| 0x3f80u16.to_le_bytes()).collect();
    folder(
        &json!({ "torch_dtype": "bfloat16", "quantization_config": record }),
        &[
            ("a.weight", "F8_E4M3", &[ROWS, COLS], codes()),
            ("a.weight_scale_inv", "F32", &[2, 2], scales()),
            ("norm.weight", "BF16", &[64], norm),
        ],
    )
}

fn with(scheme: Scheme) -> EncodeOptions {
    EncodeOptions { scheme, ..EncodeOptions::default() }
}

fn names(container: &Container) -> Vec<(String, Dtype, String)> {
    let infos = container.infos().unwrap();
    infos.into_iter().map(|t| (t.name.clone(), t.dtype, t.scheme.as_str().to_owned())).collect()
}

#[test]
fn codes_become_values_unless_all_bits_are_kept() {
    let folder = fp8();
    let source = Checkpoint::open(folder.path()).unwrap();
    let (container, report) = encode_to_container(&source, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let weight = ("a.weight".to_owned(), Dtype::BF16, "int8".to_owned());
    let norm = ("norm.weight".to_owned(), Dtype::BF16, "raw".to_owned());
    assert_eq!(names(&container), [weight, norm]);
    assert_eq!(report.original_bytes, 2 * (ROWS * COLS + 64) as u64);
    assert!(!container.metadata().contains_key(QUANTIZED_KEY));
    let config = container.model().unwrap().unwrap()["config"].clone();
    assert!(config.get("quantization_config").is_none() && config["torch_dtype"] == "bfloat16");
    assert!(verify(&container, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());

    let (kept, _) = encode_to_container(&source, &with(Scheme::Lossless), &mut |_| Ok(())).unwrap();
    for (i, tensor) in source.tensors().iter().enumerate() {
        assert_eq!(kept.read(&tensor.name, &DecodeOptions::default()).unwrap()[..], source.read(i).unwrap()[..]);
    }
    let found: Value = serde_json::from_str(&kept.metadata()[QUANTIZED_KEY]).unwrap();
    assert_eq!(found["quantization_config"]["weight_block_size"], json!([64, 128]));
    assert_eq!(kept.model().unwrap().unwrap()["config"]["quantization_config"]["quant_method"], "fp8");
    assert!(verify(&kept, Some(&source), &DecodeOptions::default(), &mut |_| Ok(())).unwrap().ok());
    // Both containers hold the same values.
    let (lossless, _) = {
        let rule = Rule { pattern: "norm*".into(), scheme: Scheme::Raw, coder: wcodec::Coder::Raw };
        let options = EncodeOptions { rules: vec![rule], ..EncodeOptions::default() };
        encode_to_container(&source, &options, &mut |_| Ok(())).unwrap()
    };
    assert_eq!(names(&lossless), names(&container));
}

#[test]
fn bits_are_found_for_the_values() {
    let folder = fp8();
    let source = Checkpoint::open(folder.path()).unwrap();
    let options = with(Scheme::Rate(Rate { bits: Bits::new(4.0).unwrap(), trellis: false }));
    let (container, _) = encode_to_container(&source, &options, &mut |_| Ok(())).unwrap();
    assert_eq!(names(&container)[0].2, "rate");
    let e = rate_bits(&source, &EncodeOptions { step: Some(0.5), ..options }, &BTreeMap::new());
    // The caller that reads values provides the samples.
    assert!(e.is_ok());
}

#[test]
fn tensors_of_a_container_are_a_source_again() {
    let folder = fp8();
    let source = Checkpoint::open(folder.path()).unwrap();
    let (first, _) = encode_to_container(&source, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let (kept, _) = encode_to_container(&source, &with(Scheme::Lossless), &mut |_| Ok(())).unwrap();
    let mut again = MemorySource::new();
    for info in kept.infos().unwrap() {
        let bytes = kept.read(&info.name, &DecodeOptions::default()).unwrap();
        again.push(info.name.clone(), info.dtype, info.shape.clone(), bytes[..].to_vec().into()).unwrap();
    }
    again.set_metadata(kept.metadata().clone());
    let (second, _) = encode_to_container(&again, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let read = |c: &Container| c.read("a.weight", &DecodeOptions::default()).unwrap()[..].to_vec();
    assert_eq!(read(&first), read(&second));
    assert!(!second.metadata().contains_key(QUANTIZED_KEY));
}

#[test]
fn other_methods_and_lone_codes_are_refused_by_name() {
    let refused = |folder: &Path, options: &EncodeOptions| -> Error {
        let source = Checkpoint::open(folder).unwrap();
        encode(&source, &folder.join("x.wcodec"), options, &mut |_| Ok(())).map(|_| ()).expect_err("refused")
    };
    let half = |n: usize| [0, 0x3c].repeat(n);
    let gptq = folder(
        &json!({ "quantization_config": { "quant_method": "gptq", "bits": 4 } }),
        &[("a.qweight", "I32", &[8, 64], vec![7; 2048]), ("a.scales", "F16", &[16, 64], half(1024))],
    );
    let e = refused(gptq.path(), &EncodeOptions::default());
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(text(&e).contains("quantized already, with GPTQ (4 bits)") && text(&e).contains("GPTQModel"), "{e}");
    let source = Checkpoint::open(gptq.path()).unwrap();
    assert!(encode_to_container(&source, &with(Scheme::Raw), &mut |_| Ok(())).is_ok());

    let lone = folder(
        &json!({ "quantization_config": { "quant_method": "fp8" } }),
        &[("a.weight", "F8_E4M3", &[ROWS, COLS], codes())],
    );
    let e = refused(lone.path(), &EncodeOptions::default());
    assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Format, Some("a.weight")));
    assert!(text(&e).contains("'a.weight_scale_inv' are not there"), "{e}");
    assert_eq!(e.file_path(), Some(lone.path()));

    let skips = EncodeOptions { skip: vec!["*_scale_inv".into()], ..with(Scheme::Lossless) };
    let e = refused(fp8().path(), &skips);
    assert!(text(&e).contains("belongs to 'a.weight'"), "{e}");
}

#[test]
fn what_is_found_can_be_looked_at() {
    let folder = fp8();
    let source = Checkpoint::open(folder.path()).unwrap();
    let found = Quantization::of(&source).unwrap();
    assert!(found.check(true).is_ok());
    assert_eq!(found.dtype(), Dtype::BF16);
    let pairs = found.pairs(source.tensors()).unwrap();
    let place = |name: &str| source.tensors().iter().position(|t| t.name == name).unwrap();
    assert_eq!((pairs[0].codes, pairs[0].scales), (place("a.weight"), place("a.weight_scale_inv")));
    assert_eq!(pairs[0].grid, Some([1, ROWS, COLS, 64, 128, 2, 4]));
}
