//! Which zstd frames does nvCOMP decode? Each case is tried on the GPU in a process of its own, since some hang or crash.
//!
//! ```text
//! nvcomp_frames [--timeout SECONDS] [--jobs N] [LIBRARY...]
//! ```
//! LIBRARY is a libnvcomp.so or a folder that has it, such as a `site-packages`; without any, the one that is found
//! (WCODEC_NVCOMP names it). Prints a JSON object a line: what came of each case, and a summary for each library.

mod cases;
mod child;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wcodec::gpu::{self, nvcomp::Nvcomp};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: nvcomp_frames [--timeout SECONDS] [--jobs N] [LIBRARY...]";
/// For all cases of a library; what does not begin in time is not run.
const LIMIT: Duration = Duration::from_secs(60);
/// Extra time that the first process may take: the driver may have to compile.
const WARM_UP: Duration = Duration::from_secs(30);

struct Options {
    timeout: Duration,
    jobs: usize,
    libraries: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nvcomp_frames: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut options = Options { timeout: Duration::from_secs(15), jobs: 4, libraries: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--case" => {
                let (library, name) = args.next().zip(args.next()).ok_or(USAGE)?;
                return child::run(Path::new(&library), &name);
            }
            "--timeout" => options.timeout = Duration::try_from_secs_f64(args.next().ok_or(USAGE)?.parse()?)?,
            "--jobs" => options.jobs = args.next().ok_or(USAGE)?.parse::<usize>()?.max(1),
            _ if arg.starts_with('-') => return Err(USAGE.into()),
            _ => options.libraries.push(arg.into()),
        }
    }
    let driver = gpu::driver_version()?;
    if options.libraries.is_empty() {
        options.libraries.push(Nvcomp::load(None, &[], Some(driver))?.path().to_owned());
    }
    for library in &options.libraries {
        // A library that is refused is a result, and the others are still of interest.
        match Nvcomp::load(Some(library), &[], Some(driver)) {
            Ok(nvcomp) => try_library(&nvcomp, &options)?,
            Err(e) => println!("{}", json!({"library": library, "refused": e.to_string()})),
        }
    }
    Ok(())
}

/// A case that is under way.
struct Running {
    name: &'static str,
    child: Child,
    begin: Instant,
    timeout: Duration,
}

fn try_library(nvcomp: &Nvcomp, options: &Options) -> Result<()> {
    let begin = Instant::now();
    let mut waiting = cases::names();
    let mut running: Vec<Running> = Vec::new();
    let mut results: Vec<(&str, Value)> = Vec::new();
    let mut finish = |name: &'static str, mut result: Value| {
        result["case"] = name.into();
        result["version"] = nvcomp.version().to_string().into();
        println!("{result}");
        results.push((name, result));
    };
    // The first one alone, so that others find warm caches.
    let mut warm = false;
    while !(waiting.is_empty() && running.is_empty()) {
        while !waiting.is_empty() && running.len() < if warm { options.jobs } else { 1 } {
            let name = waiting.remove(0);
            if begin.elapsed() > LIMIT.saturating_sub(options.timeout) {
                finish(name, json!({"outcome": "not run"}));
                continue;
            }
            let child = Command::new(std::env::current_exe()?)
                .args(["--case".as_ref(), nvcomp.path().as_os_str(), name.as_ref()])
                .stdout(Stdio::piped())
                .spawn()?;
            let timeout = if warm { options.timeout } else { options.timeout.max(WARM_UP) };
            running.push(Running { name, child, begin: Instant::now(), timeout });
        }
        let mut i = 0;
        while i < running.len() {
            match poll(&mut running[i])? {
                Some(mut result) => {
                    let done = running.swap_remove(i);
                    result["seconds"] = ((done.begin.elapsed().as_secs_f64() * 100.0).round() / 100.0).into();
                    finish(done.name, result);
                    warm = true;
                }
                None => i += 1,
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{}", summary(nvcomp, &results, begin.elapsed()));
    Ok(())
}

/// Outcome of a case, if it is over; a case that takes too long is ended.
fn poll(running: &mut Running) -> Result<Option<Value>> {
    let Some(status) = running.child.try_wait()? else {
        if running.begin.elapsed() < running.timeout {
            return Ok(None);
        }
        running.child.kill()?;
        running.child.wait()?;
        return Ok(Some(json!({"outcome": "hang"})));
    };
    let mut text = String::new();
    running.child.stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
    let result = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).rfind(Value::is_object);
    Ok(Some(result.unwrap_or_else(|| json!({"outcome": "crash", "exit": status.to_string(), "output": text}))))
}

fn summary(nvcomp: &Nvcomp, results: &[(&str, Value)], time: Duration) -> Value {
    let mut outcomes = serde_json::Map::new();
    for (name, result) in results {
        let outcome = result["outcome"].as_str().unwrap_or("crash");
        let names = outcomes.entry(outcome).or_insert_with(|| json!([]));
        names.as_array_mut().expect("made above").push((*name).into());
    }
    json!({
        "summary": nvcomp.version().to_string(),
        "library": nvcomp.path(),
        "cuda": nvcomp.cudart_version().map(|(major, minor)| format!("{major}.{minor}")),
        "cases": results.len(),
        "outcomes": outcomes,
        "seconds": (time.as_secs_f64() * 10.0).round() / 10.0,
    })
}
