//! Measures one operation and prints JSON: one process each, since the peak of a process's memory cannot be reset.
//!
//! ```text
//! measure encode SRC OUT [--coder rans|huffman|zstd|raw] [--threads N]
//! measure decode SRC OUT [--threads N] [--no-verify]
//! measure open FILE [--times N]
//! measure limits SRC OUT [--coder NAME] [--threads N] [--sample BYTES]
//! ```
//!
//! `limits` compares encoding a checkpoint on disk, which the system's cache does not have, with what the disk and the cores allow: with
//! reading the tensors and writing as many bytes as the container has, both as encoding does it and at once; and with encoding some of the
//! tensors (4 GB, or as said) from memory to memory.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use wcodec::{
    Cancel, Checkpoint, Container, DecodeOptions, Dtype, EncodeOptions, MemorySource, OutputFile, OutputKind, Pool,
    Source, decode, encode, encode_to_container,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: measure encode SRC OUT [--coder NAME] [--threads N] | decode SRC OUT [--threads N] \
                     [--no-verify] | open FILE [--times N] | limits SRC OUT [--coder NAME] [--threads N] [--sample BYTES]";

fn main() -> Result<()> {
    let (mut paths, mut coder, mut threads, mut times, mut verify, mut sample) =
        (Vec::new(), "rans".to_owned(), None, 101usize, true, 4_000_000_000u64);
    let mut args = std::env::args().skip(1);
    let job = args.next().ok_or(USAGE)?;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--coder" => coder = args.next().ok_or(USAGE)?,
            "--threads" => threads = Some(args.next().ok_or(USAGE)?.parse()?),
            "--times" => times = args.next().ok_or(USAGE)?.parse::<usize>()?.max(1),
            "--no-verify" => verify = false,
            "--sample" => sample = args.next().ok_or(USAGE)?.parse()?,
            _ if !arg.starts_with('-') => paths.push(arg),
            _ => return Err(USAGE.into()),
        }
    }
    let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
    let mut report = match (job.as_str(), &paths[..]) {
        ("encode", [src, out]) => {
            let coder = wcodec::Coder::from_name(&coder)?;
            measure_encode(src, out, &EncodeOptions { coder, threads, overwrite: true, ..Default::default() })?
        }
        ("decode", [src, out]) => measure_decode(src, out, &DecodeOptions { threads, verify, ..Default::default() })?,
        ("open", [file]) => measure_open(file, times)?,
        ("limits", [src, out]) => {
            let coder = wcodec::Coder::from_name(&coder)?;
            measure_limits(src, out, &EncodeOptions { coder, threads, overwrite: true, ..Default::default() }, sample)?
        }
        _ => return Err(USAGE.into()),
    };
    report["job"] = job.into();
    println!("{report:#}");
    Ok(())
}

fn measure_encode(src: &Path, out: &Path, options: &EncodeOptions) -> Result<Value> {
    let begin = Instant::now();
    let source = Checkpoint::open(src)?;
    let report = encode(&source, out, options, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let elements = |shape: &[usize], dtype: Dtype| shape.iter().product::<usize>() * dtype.size();
    let largest = source.tensors().iter().map(|t| elements(&t.shape, t.dtype)).max().unwrap_or(0);
    let mut result = json!({
        "coder": options.coder.name(),
        "threads": options.threads,
        "seconds": seconds,
        "gb_per_s": report.original_bytes as f64 / seconds / 1e9,
        "original_bytes": report.original_bytes,
        "stored_bytes": report.stored_bytes,
        "ratio": report.ratio(),
        "bits_per_weight": report.bits_per_weight(),
    });
    add_usage(&mut result, largest as u64)?;
    Ok(result)
}

fn measure_decode(src: &Path, out: &Path, options: &DecodeOptions) -> Result<Value> {
    let begin = Instant::now();
    let container = Container::open(src)?;
    decode(&container, None, out, options, true, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let infos = container.infos()?;
    let bytes: u64 = infos.iter().map(|t| t.original_bytes).sum();
    let mut result = json!({
        "threads": options.threads,
        "isa": options.isa.map_or_else(wcodec::Isa::best, Ok)?.name(),
        "verify": options.verify,
        "seconds": seconds,
        "gb_per_s": bytes as f64 / seconds / 1e9,
        "original_bytes": bytes,
        "stored_bytes": container.file_len(),
    });
    add_usage(&mut result, infos.iter().map(|t| t.original_bytes).max().unwrap_or(0))?;
    Ok(result)
}

fn measure_open(file: &Path, times: usize) -> Result<Value> {
    let mut milliseconds = Vec::new();
    for _ in 0..times {
        let begin = Instant::now();
        let container = Container::open(file)?;
        milliseconds.push(begin.elapsed().as_secs_f64() * 1e3);
        // Closing is not opening.
        drop(container);
    }
    let first = milliseconds[0];
    milliseconds.sort_by(f64::total_cmp);
    let container = Container::open(file)?;
    Ok(json!({
        "file_bytes": container.file_len(),
        "index_bytes": container.reader().header().index_length,
        "tensors": container.names().len(),
        "times": times,
        "first_ms": first,
        "median_ms": milliseconds[times / 2],
        "least_ms": milliseconds[0],
        "most_ms": milliseconds[times - 1],
    }))
}

fn measure_limits(src: &Path, out: &Path, options: &EncodeOptions, sample: u64) -> Result<Value> {
    let source = Checkpoint::open(src)?;
    forget(&source)?;
    let begin = Instant::now();
    let report = encode(&source, out, options, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();

    forget(&source)?;
    let begin = Instant::now();
    let (read, written) = std::thread::scope(|scope| {
        let read = scope.spawn(|| read_all(&source).map(|()| begin.elapsed().as_secs_f64()));
        let written = write(out, report.stored_bytes).map(|()| begin.elapsed().as_secs_f64());
        (read.join().expect("reading does not panic"), written)
    });
    let (read, written) = (read?, written?);
    let disk = read.max(written);

    let mut some = MemorySource::new();
    let mut bytes = 0;
    for (i, tensor) in source.tensors().iter().enumerate() {
        if bytes < sample {
            let data = source.read(i)?;
            bytes += data.len() as u64;
            some.push(tensor.name.clone(), tensor.dtype, tensor.shape.clone(), data.to_vec().into())?;
        }
    }
    let begin = Instant::now();
    encode_to_container(&some, options, &mut |_| Ok(()))?;
    let cores = begin.elapsed().as_secs_f64() * report.original_bytes as f64 / bytes as f64;
    std::fs::remove_file(out)?;

    let rate = |seconds: f64| report.original_bytes as f64 / seconds / 1e9;
    Ok(json!({
        "coder": options.coder.name(),
        "threads": options.threads,
        "original_bytes": report.original_bytes,
        "stored_bytes": report.stored_bytes,
        "seconds": seconds,
        "gb_per_s": rate(seconds),
        "read_seconds": read,
        "write_seconds": written,
        "disk_gb_per_s": rate(disk),
        "cores_gb_per_s": rate(cores),
        "of_the_limit": disk.max(cores) / seconds,
    }))
}

/// Reads all tensors as encoding does, on as many threads.
fn read_all(source: &Checkpoint) -> wcodec::Result<()> {
    let pool = Pool::new(Some(std::thread::available_parallelism().map_or(1, usize::from).min(8)))?;
    (0..source.tensors().len()).try_for_each(|i| source.read_with(i, &pool, &Cancel::new()).map(drop))
}

/// Writes so many bytes as encoding does, until they are on disk.
fn write(path: &Path, bytes: u64) -> wcodec::Result<()> {
    let out = OutputFile::create(path, OutputKind::Other, &[], true)?;
    let piece: Vec<u8> = (0..4 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        out.write_all(&piece[..now as usize])?;
        left -= now;
    }
    out.finish()
}

/// Has the system forget what it keeps of the files, where it can be asked to.
fn forget(source: &Checkpoint) -> Result<()> {
    #[cfg(target_os = "linux")]
    for path in source.files() {
        let file = std::fs::File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    #[cfg(not(target_os = "linux"))]
    eprintln!("{}: the system keeps what it has of it", source.path().unwrap_or(Path::new("")).display());
    Ok(())
}

/// Adds what the process used, and whether its memory kept to the bound: four times the largest tensor, and 200 MB.
fn add_usage(result: &mut Value, largest: u64) -> Result<()> {
    let bound = 4 * largest + 200_000_000;
    result["largest_tensor_bytes"] = largest.into();
    result["bound_bytes"] = bound.into();
    if let Some((peak, cpu)) = usage() {
        result["peak_rss_bytes"] = peak.into();
        result["within_bound"] = (peak <= bound).into();
        result["cpu_seconds"] = cpu.into();
    }
    Ok(())
}

/// Peak resident bytes and seconds of CPU time of this process, where there is a `/proc`.
fn usage() -> Option<(u64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    // The command's name, in parentheses, may hold spaces; times are in ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|t| t.parse::<u64>().unwrap_or(0)).sum();
    Some((kib * 1024, ticks as f64 / 100.0))
}
