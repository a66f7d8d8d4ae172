//! Writes a checkpoint with the shapes of TinyLlama-1.1B (2.2 GB) or of Llama 3 8B (16 GB) and made-up weights, for measuring size,
//! speed and memory.
//!
//! `cargo run --release -p wcodec --example large_model -- OUT.safetensors [--shapes 1b|8b] [--layers N] [--seed N]`

use std::fs::File;
use std::io::{BufWriter, Write};

use half::bf16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, StudentT};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// Sizes that the shapes of a model follow from.
struct Shapes {
    layers: usize,
    hidden: usize,
    key_value: usize,
    inner: usize,
    vocabulary: usize,
}

const TINY_LLAMA: Shapes = Shapes { layers: 22, hidden: 2048, key_value: 256, inner: 5632, vocabulary: 32_000 };
const LLAMA_8B: Shapes = Shapes { layers: 32, hidden: 4096, key_value: 1024, inner: 14_336, vocabulary: 128_256 };

/// Values that rows are made of: drawing each of a billion weights would take minutes.
const SAMPLES: usize = 4 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let usage = "usage: large_model OUT.safetensors [--shapes 1b|8b] [--layers N] [--seed N]";
    let (mut path, mut shapes, mut layers, mut seed) = (None, TINY_LLAMA, None, 1u64);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--shapes" => {
                shapes = match args.next().as_deref() {
                    Some("1b") => TINY_LLAMA,
                    Some("8b") => LLAMA_8B,
                    _ => return Err(usage.into()),
                }
            }
            "--layers" => layers = Some(args.next().ok_or(usage)?.parse()?),
            "--seed" => seed = args.next().ok_or(usage)?.parse()?,
            _ if path.is_none() && !arg.starts_with('-') => path = Some(arg),
            _ => return Err(usage.into()),
        }
    }
    let path = path.ok_or(usage)?;
    let tensors = tensors(&Shapes { layers: layers.unwrap_or(shapes.layers), ..shapes });

    let mut end = 0;
    let entry = |(name, shape): &(String, Vec<usize>)| {
        let begin = end;
        end += shape.iter().product::<usize>() * size_of::<bf16>();
        (name.clone(), TensorInfo { dtype: Dtype::BF16, shape: shape.clone(), data_offsets: (begin, end) })
    };
    let mut header = serde_json::to_vec(&Metadata::new(None, tensors.iter().map(entry).collect())?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;

    let mut rows = Rows::new(seed);
    for (_, shape) in &tensors {
        match shape[..] {
            // Norms: around one, all positive.
            [n] => out.write_all(bytemuck::cast_slice(&rows.row(n, 1.0, 0.05)))?,
            [m, n] => {
                for _ in 0..m {
                    let scale = rows.scale();
                    out.write_all(bytemuck::cast_slice(&rows.row(n, 0.0, scale)))?;
                }
            }
            _ => unreachable!("only vectors and matrices"),
        }
    }
    out.into_inner()?.sync_all()?;
    println!("{path}: {} tensors, {end} bytes of bf16", tensors.len());
    Ok(())
}

/// Names and shapes, in the order of the file.
fn tensors(shapes: &Shapes) -> Vec<(String, Vec<usize>)> {
    let &Shapes { layers, hidden, key_value, inner, vocabulary } = shapes;
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden])];
    for layer in 0..layers {
        for (part, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![key_value, hidden]),
            ("self_attn.v_proj", vec![key_value, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            all.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    all.push(("model.norm.weight".to_owned(), vec![hidden]));
    all.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
    all
}

/// Makes rows whose values have tails like those of trained weights.
struct Rows {
    rng: StdRng,
    scales: LogNormal<f32>,
    samples: Vec<f32>,
}

impl Rows {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let t = StudentT::new(6.0f32).expect("valid");
        let samples = (0..SAMPLES).map(|_| t.sample(&mut rng)).collect();
        Self { rng, scales: LogNormal::new((0.02f32).ln(), 0.3).expect("valid"), samples }
    }

    /// Draws the spread of a row's values.
    fn scale(&mut self) -> f32 {
        self.scales.sample(&mut self.rng)
    }

    fn row(&mut self, length: usize, center: f32, scale: f32) -> Vec<bf16> {
        // Rows step through the samples differently, since runs that repeat would be a gift to zstd.
        let step = self.rng.random_range(0..64usize) * 2 + 1;
        let begin = self.rng.random_range(0..SAMPLES);
        let value = |i: usize| center + scale * self.samples[(begin + i * step) % SAMPLES];
        (0..length).map(|i| bf16::from_f32(value(i))).collect()
    }
}
