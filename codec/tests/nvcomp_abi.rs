//! The interfaces of nvCOMP, verified by nvCOMP itself and without a GPU: every function is called with distinguishable
//! arguments, and nvCOMP's own log of the received arguments is compared with those sent.
//!
//! WCODEC_NVCOMP_WHEELS names a folder with a library of each major version, in folders `4`, `5` and `6` laid out like
//! the wheels. `make test` gets them; without the variable `target/nvcomp` is used, and if that does not exist either
//! the tests are skipped.

use std::ffi::c_void;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Once};

use wcodec::gpu::nvcomp::{AnsMode, CompressBatch, DeviceBatch, Family, Nvcomp, Version};

const FOLDERS: &str = "WCODEC_NVCOMP_WHEELS";
const LIBRARY: &str = "WCODEC_TEST_NVCOMP_LIBRARY";
const CALL: &str = "WCODEC_TEST_NVCOMP_CALL";

/// The arguments. All numbers differ; lengths exceed 32 bits where nvCOMP allows it.
const COUNT: usize = 1003;
const MAX_CHUNK: usize = 65_537;
const TOTAL: usize = 40_000_019;
const TEMP: u64 = 0x7A01_0203_0400;
const TEMP_BYTES: usize = 0x3_4567_8901;
const STREAM: u64 = 0x7B01_0203_0480;
const BATCH: DeviceBatch = DeviceBatch {
    count: COUNT,
    compressed: 0x7C01_0203_0500,
    compressed_bytes: 0x7D01_0203_0580,
    capacity: 0x7E01_0203_0600,
    actual: 0x7F01_0203_0680,
    output: 0x7101_0203_0700,
    statuses: 0x7201_0203_0780,
};
const COMPRESS: CompressBatch = CompressBatch {
    count: COUNT,
    max_chunk: MAX_CHUNK,
    input: 0x7301_0203_0800,
    input_bytes: 0x7401_0203_0880,
    output: 0x7501_0203_0900,
    output_bytes: 0x7601_0203_0980,
    statuses: 0x7701_0203_0A00,
};

/// The calls, by the names passed to processes.
const CALLS: [&str; 7] = [
    "zstd_temp_bytes",
    "zstd_decompress",
    "ans_temp_bytes",
    "ans_decompress",
    "ans_compress_temp_bytes",
    "ans_compress_bound",
    "ans_compress",
];

/// The folders with libraries, or `None` if there are none and none are required.
fn folders() -> Option<[(Family, PathBuf); 3]> {
    let demanded = std::env::var_os(FOLDERS).map(PathBuf::from);
    let root = demanded.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvcomp"));
    let folders = [(Family::A, root.join("4")), (Family::B, root.join("5")), (Family::C, root.join("6"))];
    let Some((_, missing)) = folders.iter().find(|(_, folder)| !folder.is_dir()) else { return Some(folders) };
    assert!(demanded.is_none(), "{FOLDERS} is set, and there is no {}", missing.display());
    static SAID: Once = Once::new();
    // Not through `eprintln`, which the test harness captures.
    SAID.call_once(|| {
        let what = "tests of nvCOMP's interfaces are skipped: there is no";
        drop(writeln!(std::io::stderr(), "{what} {}; `make test` gets it", missing.display()));
    });
    None
}

#[test]
fn libraries_are_found_and_told_apart() {
    for (family, folder) in folders().into_iter().flatten() {
        let nvcomp = Nvcomp::load(Some(&folder), &[], None).expect("loaded");
        let major: u32 = folder.file_name().and_then(|n| n.to_str()).expect("a name").parse().expect("a number");
        assert_eq!((nvcomp.family(), nvcomp.version().major), (family, major));
        let cuda = nvcomp.cudart_version().expect("from 4.0 on");
        assert!((11..=13).contains(&cuda.0), "CUDA {cuda:?}");
        // By the file's name as well.
        let again = Nvcomp::load(Some(nvcomp.path()), &[], Some((cuda.0, 0))).expect("loaded");
        assert_eq!((again.path(), again.version()), (nvcomp.path(), nvcomp.version()));
        let e = Nvcomp::load(Some(&folder), &[], Some((cuda.0 - 1, 9))).expect_err("the driver is too old");
        assert_eq!(e.kind(), wcodec::ErrorKind::Device);
        assert!(e.message().contains(&format!("built for CUDA {}.{}", cuda.0, cuda.1)), "{e}");
    }
}

#[test]
fn alignments_are_those_of_the_headers() {
    for (family, folder) in folders().into_iter().flatten() {
        let nvcomp = Nvcomp::load(Some(&folder), &[], None).expect("loaded");
        let zstd = nvcomp.zstd_alignments().expect("asked");
        let ans = nvcomp.ans_alignments(AnsMode::Standard).expect("asked");
        let (zstd, ans) = ([zstd.input, zstd.output, zstd.temp], [ans.input, ans.output, ans.temp]);
        let expected = match (family, nvcomp.version().minor) {
            (Family::A, 0) => ([8, 8, 8], [8, 8, 8]),
            (Family::A, _) => ([1, 1, 8], [8, 1, 4]),
            (Family::B, 0..=2) => ([1, 1, 8], [8, 1, 4]),
            (Family::B, _) => ([1, 1, 8], [8, 1, 1]),
            (Family::C, _) => ([1, 1, 8], [16, 16, 1]),
        };
        assert_eq!((zstd, ans), expected, "nvCOMP {}", nvcomp.version());
    }
}

#[test]
fn arguments_arrive_as_sent() {
    for (family, folder) in folders().into_iter().flatten() {
        let nvcomp = Nvcomp::load(Some(&folder), &[], None).expect("loaded");
        for call in CALLS {
            for mode in [AnsMode::Standard, AnsMode::Specialised] {
                if mode == AnsMode::Specialised && (!call.starts_with("ans") || family != Family::C) {
                    continue;
                }
                let seen = seen_by(&nvcomp, call, mode);
                let about = format!("nvCOMP {} {call} {mode:?}: {}\n{}", nvcomp.version(), seen.result, seen.log);
                let calls = parse(&seen.log);
                let (function, arguments) = sent(nvcomp.version(), family, call, mode);
                assert_eq!(calls[0].0, function, "{about}");
                assert_eq!(calls[0].1, arguments, "{about}");
                check_options(nvcomp.version(), family, call, mode, &calls, &about);
                check_result(&nvcomp, call, &seen.result, &about);
            }
        }
        if family != Family::C {
            let e = nvcomp.ans_temp_bytes(1, 1, 1, AnsMode::Specialised).expect_err("6.0 has it first");
            assert_eq!(e.kind(), wcodec::ErrorKind::Device);
        }
    }
}

/// The result of a call in another process, and nvCOMP's log.
struct Seen {
    result: String,
    log: String,
}

fn seen_by(nvcomp: &Arc<Nvcomp>, call: &str, mode: AnsMode) -> Seen {
    let folder = tempfile::tempdir().expect("made");
    let log = folder.path().join("log");
    let output = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "in_a_process_of_its_own", "--ignored", "--nocapture", "--test-threads=1"])
        .env(LIBRARY, nvcomp.path())
        .env(CALL, format!("{call} {mode:?}"))
        .env("NVCOMP_LOG_LEVEL", "5")
        .env("NVCOMP_LOG_FILE", &log)
        // The addresses do not belong to any device.
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    // The harness may have written to the line before.
    let result = text.split_once("result: ").and_then(|(_, rest)| rest.lines().next());
    let result = result.unwrap_or_else(|| panic!("{call}: {}\n{text}", output.status)).to_owned();
    Seen { result, log: std::fs::read_to_string(&log).expect("nvCOMP writes a log") }
}

#[test]
#[ignore = "run by the other tests"]
fn in_a_process_of_its_own() {
    let get = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: this is run by other tests"));
    let nvcomp = Nvcomp::load(Some(Path::new(&get(LIBRARY))), &[], None).expect("loaded");
    let call = get(CALL);
    let (call, mode) = call.split_once(' ').expect("two words");
    let mode = if mode == "Standard" { AnsMode::Standard } else { AnsMode::Specialised };
    let stream = STREAM as *mut c_void;
    // SAFETY: there is no device in this process, and nvCOMP finds that out before it uses its arguments.
    let result = unsafe {
        match call {
            "zstd_temp_bytes" => nvcomp.zstd_temp_bytes(COUNT, MAX_CHUNK, TOTAL),
            "zstd_decompress" => nvcomp.zstd_decompress(&BATCH, TEMP, TEMP_BYTES, stream).map(|()| 0),
            "ans_temp_bytes" => nvcomp.ans_temp_bytes(COUNT, MAX_CHUNK, TOTAL, mode),
            "ans_decompress" => nvcomp.ans_decompress(&BATCH, mode, TEMP, TEMP_BYTES, stream).map(|()| 0),
            "ans_compress_temp_bytes" => nvcomp.ans_compress_temp_bytes(COUNT, MAX_CHUNK, TOTAL, mode),
            "ans_compress_bound" => nvcomp.ans_compress_bound(MAX_CHUNK, mode),
            "ans_compress" => nvcomp.ans_compress(&COMPRESS, mode, TEMP, TEMP_BYTES, stream).map(|()| 0),
            _ => panic!("no call {call}"),
        }
    };
    match result {
        Ok(n) => println!("result: {n}"),
        Err(e) => println!("result: {}", e.message()),
    }
}

/// The name of a function, and names and values of the received arguments.
type Logged = (String, Vec<(String, String)>);

/// The calls in a log, in order.
fn parse(log: &str) -> Vec<Logged> {
    let call = |line: &str| {
        let (function, arguments) = line.split_once("[Api][")?.1.split_once("] ")?;
        let plain =
            ["decomp_opts=(", "options=(", "{", "}", ")"].iter().fold(arguments.to_owned(), |s, x| s.replace(x, ""));
        // The address of a size to be written on the host: it is on a stack, and not compared.
        let host = |(name, value): &(String, String)| {
            ["temp_bytes", "max_comp_bytes", "alignment_requirements"].contains(&name.as_str())
                && value.starts_with("0x")
        };
        let arguments = plain.split(", ").filter(|a| !a.trim().is_empty()).map(argument).filter(|a| !host(a)).collect();
        Some((function.to_owned(), arguments))
    };
    log.lines().filter_map(call).collect()
}

/// Name and value: `name=value`, or `namevalue`, which some versions write.
fn argument(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or_else(|| {
        text.split_at(text.find(|c: char| c.is_ascii_digit()).unwrap_or_else(|| panic!("no value in {text:?}")))
    });
    // Versions differ in the spelling of these.
    let name = name.replace("uncompressed", "uncomp").replace("max_total_uncomp", "max_uncomp_total");
    (name, value.trim().to_owned())
}

/// The arguments that nvCOMP must have received.
fn sent(version: Version, family: Family, call: &str, mode: AnsMode) -> (String, Vec<(String, String)>) {
    let number = |name: &str, n: usize| (name.to_owned(), n.to_string());
    let address = |name: &str, n: u64| (name.to_owned(), format!("{n:#x}"));
    let format = if call.starts_with("zstd") { "Zstd" } else { "ANS" };
    let total = number("max_uncomp_total_bytes", TOTAL);
    let stream = address("stream", STREAM);
    let sizes = [number("num_chunks", COUNT), number("max_uncomp_chunk_bytes", MAX_CHUNK)];
    let suffix = ["Ex", "Async", ""][family as usize];
    let options = options(version, family, call, mode);
    let (name, arguments): (String, Vec<_>) = match call {
        // Without options and total: 4.x forwards ANS to the function without them.
        "ans_temp_bytes" if family == Family::A => ("DecompressGetTempSize".to_owned(), sizes.into()),
        "zstd_temp_bytes" | "ans_temp_bytes" | "ans_compress_temp_bytes" => {
            let name = if call == "ans_compress_temp_bytes" { "Compress" } else { "Decompress" };
            let stream = (family == Family::C).then(|| address("stream", 0));
            (
                format!("{name}GetTempSize{suffix}"),
                sizes.into_iter().chain(options).chain([total]).chain(stream).collect(),
            )
        }
        "ans_compress_bound" => ("CompressGetMaxOutputChunkSize".to_owned(), sizes[1..].to_vec()),
        "ans_compress" => {
            let statuses = (family != Family::A).then(|| address("d_statuses", COMPRESS.statuses));
            let data = [
                address("d_uncomp_ptrs", COMPRESS.input),
                address("d_uncomp_bytes", COMPRESS.input_bytes),
                number("max_uncomp_chunk_bytes", MAX_CHUNK),
                number("num_chunks", COUNT),
                address("d_temp_ptr", TEMP),
                number("temp_bytes", TEMP_BYTES),
                address("d_comp_ptrs", COMPRESS.output),
                address("d_comp_bytes", COMPRESS.output_bytes),
            ];
            let arguments = data.into_iter().chain(options).chain(statuses).chain([stream]).collect();
            ("CompressAsync".to_owned(), arguments)
        }
        _ => {
            let backend = (family != Family::A).then(|| number("decompress_backend", 0));
            let data = [
                address("d_comp_ptrs", BATCH.compressed),
                address("d_comp_bytes", BATCH.compressed_bytes),
                address("d_uncomp_bytes", BATCH.capacity),
                address("d_actual_uncomp_bytes", BATCH.actual),
                number("num_chunks", COUNT),
                address("d_temp_ptr", TEMP),
                number("temp_bytes", TEMP_BYTES),
                address("d_uncomp_ptrs", BATCH.output),
            ];
            let last = [address("d_statuses", BATCH.statuses), stream];
            ("DecompressAsync".to_owned(), data.into_iter().chain(backend).chain(last).collect())
        }
    };
    (format!("nvcompBatched{format}{name}"), arguments)
}

/// The options that the version knows and logs.
fn options(version: Version, family: Family, call: &str, mode: AnsMode) -> Vec<(String, String)> {
    let compress = call.starts_with("ans_compress");
    let special = mode == AnsMode::Specialised;
    let data_type = if family == Family::C && !compress && !special { 255 } else { 0 };
    let all = [
        (if compress { "type" } else { "backend" }, 0),
        ("data_type", data_type),
        ("max_sub_chunk_count", 0),
        ("states_per_lane", if special { 2 } else { 0 }),
        (if compress { "histogram_reduction_log2" } else { "skip_validate" }, u32::from(special && !compress)),
    ];
    let known = match family {
        Family::A => {
            if compress && version.minor >= 1 {
                2
            } else {
                0
            }
        }
        _ if call.starts_with("zstd") => 1,
        Family::B => {
            if compress || version.minor >= 3 {
                2
            } else {
                1
            }
        }
        Family::C => 5,
    };
    all[..known].iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
}

/// From 5.0 on, the functions that start work query alignments themselves, and so log all of their options.
fn check_options(version: Version, family: Family, call: &str, mode: AnsMode, calls: &[Logged], about: &str) {
    if family == Family::A || !["zstd_decompress", "ans_decompress", "ans_compress"].contains(&call) {
        return;
    }
    let (function, arguments) = &calls[1];
    assert!(function.ends_with("GetRequiredAlignments"), "{about}");
    let options = options(version, family, call, mode);
    assert_eq!(arguments[..options.len()], options, "{about}");
}

/// Size queries work without a device, except for zstd in 4.x; all other calls report that there is none.
fn check_result(nvcomp: &Nvcomp, call: &str, result: &str, about: &str) {
    let device = ["zstd_decompress", "ans_decompress", "ans_compress"].contains(&call)
        || call == "zstd_temp_bytes" && nvcomp.family() == Family::A;
    if device {
        let version = nvcomp.version();
        let code = if (version.major, version.minor) < (5, 1) { "returned 10," } else { "returned 1000," };
        assert!(result.contains(code), "{about}");
        return;
    }
    let bytes: usize = result.parse().unwrap_or_else(|_| panic!("{about}"));
    match call {
        "zstd_temp_bytes" => assert_eq!(bytes, 3 * TOTAL + 3468 * (2 * COUNT), "{about}"),
        "ans_compress_bound" => assert!((MAX_CHUNK..2 * MAX_CHUNK).contains(&bytes), "{about}"),
        _ => assert!(bytes < 4 * TOTAL, "{about}"),
    }
}

#[test]
fn the_comparison_notices_mistakes() {
    const SIX: Version = Version { major: 6, minor: 0, patch: 0 };
    let line =
        |rest: &str| format!("[2026-01-01 00:00:00][nvcomp][1][Api][nvcompBatchedZstdDecompressGetTempSize] {rest}");
    let right = format!(
        "num_chunks={COUNT}, max_uncompressed_chunk_bytes={MAX_CHUNK}, decomp_opts=({{backend=0}}), temp_bytes=0x7f0, \
         max_uncomp_total_bytes={TOTAL}, stream=0x0"
    );
    let expected = [sent(SIX, Family::C, "zstd_temp_bytes", AnsMode::Standard)];
    assert_eq!(parse(&line(&right)), expected);
    // Exchanged arguments, options passed as a pointer, and a stream with stack garbage.
    let count = COUNT.to_string();
    for (from, to) in [(count.as_str(), "65536"), ("backend=0", "backend=140721"), ("stream=0x0", "stream=0x7ffc0")] {
        assert_ne!(parse(&line(&right.replace(from, to))), expected);
    }
    let (_, arguments) =
        &parse(&line("d_temp_ptr0x5000, temp_bytes=21845, options=(), max_total_uncomp_bytes17, stream0x8"))[0];
    let expected =
        [("d_temp_ptr", "0x5000"), ("temp_bytes", "21845"), ("max_uncomp_total_bytes", "17"), ("stream", "0x8")];
    assert_eq!(*arguments, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}
