//! Makes containers whose opening is worth measuring: `measure open FILE` says how long it takes.
//!
//! ```text
//! fabricate large OUT          10 GB of zeros in 320 raw tensors; a hole on disk, where the file system has them
//! fabricate many OUT [COUNT]   50,000 small matrices, int8 with coder rans: entries as long as they get
//! ```

use std::borrow::Cow;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StudentT};
use wcodec::container::{PlaneEntry, TensorEntry, Writer, hash};
use wcodec::{Dtype, EncodeOptions, MemorySource, encode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["large", out] => large(Path::new(out), 320, 32 << 20),
        ["many", out] => many(Path::new(out), 50_000),
        ["many", out, count] => many(Path::new(out), count.parse()?),
        _ => Err("usage: fabricate large OUT | many OUT [COUNT]".into()),
    }
}

/// `count` raw tensors of `bytes` zeros each. The hashes are real: the whole file verifies.
fn large(path: &Path, count: usize, bytes: usize) -> Result<()> {
    let zeros = vec![0; bytes];
    let mut writer = Writer::new(SparseFile::create(path)?, path)?;
    for i in 0..count {
        let data = writer.segment(&zeros)?;
        let plane = PlaneEntry {
            coder: "raw".into(),
            fields: None,
            filter: None,
            layout: None,
            shift: None,
            tile: None,
            chunk: None,
            table: None,
            chunks: None,
            max_chunk: None,
            offsets: None,
            data,
            side: None,
            hash: hash(&zeros),
        };
        writer.tensor(TensorEntry {
            name: format!("model.layers.{i}.weight"),
            dtype: "U8".into(),
            shape: vec![bytes],
            scheme: "raw".into(),
            source: None,
            matrix: None,
            scales: None,
            planes: vec![plane],
            quality: None,
        });
    }
    let (_, length, _) = writer.finish()?;
    println!("{}: {count} tensors, {length} bytes", path.display());
    Ok(())
}

/// `count` matrices, all but the first 32 x 256.
fn many(path: &Path, count: usize) -> Result<()> {
    const SHAPE: [usize; 2] = [32, 256];
    let (mut rng, t) = (StdRng::seed_from_u64(6), StudentT::new(6.0f32)?);
    let pool: Vec<f32> = (0..1 << 20).map(|_| t.sample(&mut rng)).collect();
    let mut source = MemorySource::new();
    // Small matrices are coded only where a table is there already, since one of their own does not pay.
    source.push(
        "model.embed_tokens.weight".to_owned(),
        Dtype::F32,
        vec![1024, 1024],
        bytemuck::cast_slice(&pool).into(),
    )?;
    for i in 1..count {
        let n = SHAPE[0] * SHAPE[1];
        let begin = rng.random_range(0..pool.len() - n);
        let name = format!("model.layers.{}.mlp.experts.{}.down_proj.weight", i / 256, i % 256);
        let data = Cow::Borrowed(bytemuck::cast_slice(&pool[begin..begin + n]));
        source.push(name, Dtype::F32, SHAPE.to_vec(), data)?;
    }
    let report = encode(&source, path, &EncodeOptions { overwrite: true, ..Default::default() }, &mut |_| Ok(()))?;
    println!("{}: {count} tensors, {} bytes", path.display(), report.stored_bytes);
    Ok(())
}

/// Turns writes of nothing but zeros into holes.
struct SparseFile {
    file: File,
    at: u64,
    end: u64,
}

impl SparseFile {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self { file: File::create(path)?, at: 0, end: 0 })
    }
}

impl Write for SparseFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // One file position serves both: a hole is a seek.
        if bytes.iter().all(|&b| b == 0) {
            self.file.seek(SeekFrom::Current(bytes.len() as i64))?;
        } else {
            self.file.write_all(bytes)?;
        }
        self.at += bytes.len() as u64;
        self.end = self.end.max(self.at);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.end)
    }
}

impl Seek for SparseFile {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}
