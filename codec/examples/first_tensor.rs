//! ProductOutput how long a process takes from its start to the first tensor that a GPU has decoded, without Python and torch.
//!
//! ```text
//! first_tensor FILE.wcodec [TENSOR] [--runs N]
//! ```
//!
//! Each run is a process of its own, since a driver is initialised and a module loaded only once in one. Milliseconds, of the
//! runs and their median: `driver` is its initialisation and the GPU's context; `read` is opening the file, reading the tensor
//! and sending it to the device; `load` is loading the kernels that it needs; `decode` is the first launch until it is done;
//! `total` is all since the process was started. The driver keeps what it compiles on disk: `CUDA_CACHE_DISABLE=1` shows what
//! the first process on a machine takes.

use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime};

use wcodec::gpu::{DecodeItem, Device, DeviceBuffer, GpuDecoder, GpuOptions, Stream};
use wcodec::{Container, Dtype};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: first_tensor FILE.wcodec [TENSOR] [--runs N]";

/// Tells a run when it was started: nanoseconds since 1970.
const STARTED: &str = "FIRST_TENSOR_STARTED";

const PARTS: [&str; 5] = ["driver", "read", "load", "decode", "total"];

fn main() -> Result<()> {
    let (mut names, mut runs) = (Vec::new(), 5usize);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--runs" => runs = args.next().ok_or(USAGE)?.parse::<usize>()?.max(1),
            _ if !arg.starts_with('-') => names.push(arg),
            _ => return Err(USAGE.into()),
        }
    }
    let (file, tensor) = match &names[..] {
        [file] => (file, None),
        [file, tensor] => (file, Some(tensor.as_str())),
        _ => return Err(USAGE.into()),
    };
    if let Ok(started) = std::env::var(STARTED) {
        return run(file, tensor, started.parse()?);
    }
    println!("{:>8}{}", "run", PARTS.map(|p| format!("{p:>10}")).concat());
    let mut times: Vec<Vec<f64>> = Vec::new();
    for n in 1..=runs {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&names).env(STARTED, now()?.to_string());
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        let text = String::from_utf8(output.stdout)?;
        let row = text.split_whitespace().map(str::parse).collect::<std::result::Result<Vec<f64>, _>>()?;
        print(&n.to_string(), &row);
        times.push(row);
    }
    let median = |part: usize| {
        let mut all: Vec<f64> = times.iter().map(|row| row[part]).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    print("median", &[0, 1, 2, 3, 4].map(median));
    Ok(())
}

fn print(what: &str, row: &[f64]) {
    println!("{what:>8}{}", row.iter().map(|ms| format!("{ms:>10.2}")).collect::<String>());
}

fn now() -> Result<u128> {
    Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_nanos())
}

/// One run, in a process of its own: prints its milliseconds.
fn run(file: &str, tensor: Option<&str>, started: u128) -> Result<()> {
    let begin = Instant::now();
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    let driver = begin.elapsed();

    let begin = Instant::now();
    let container = Container::open(Path::new(file))?;
    let name = match tensor {
        Some(name) => name.to_owned(),
        // Raw tensors need no decoding, and coder zstd is nvCOMP's.
        None => container
            .tensors()
            .all()?
            .into_iter()
            .find(|t| t.coder() == "rans" || t.coder() == "huffman")
            .map(|t| t.name)
            .ok_or("the file has no tensor of coder rans or huffman")?,
    };
    let info = container.info(&name)?;
    let dtype = if info.scheme == "int8" { Dtype::BF16 } else { info.dtype };
    let decoder = GpuDecoder::new(&device, &container, std::slice::from_ref(&name), &GpuOptions::default())?;
    let out = DeviceBuffer::new(&device, decoder.output_bytes(&name, dtype)?)?;
    let read = begin.elapsed();

    let begin = Instant::now();
    let batch = decoder.prepare(&[DecodeItem { name, out: out.ptr(), dtype, rows: None }])?;
    let load = begin.elapsed();

    let begin = Instant::now();
    // SAFETY: the buffer is as large as the tensor, and outlives the work, for which `check` waits.
    unsafe { batch.launch(&stream)? };
    decoder.check(&stream)?;
    let decode = begin.elapsed();

    let total = (now()? - started) as f64 / 1e6;
    let parts = [driver, read, load, decode].map(|part| format!("{:.3}", part.as_secs_f64() * 1e3));
    println!("{} {total:.3}", parts.join(" "));
    Ok(())
}
