//! Very many inputs of [`fuzz::file`](super::fuzz::file), without libFuzzer: a process for each core, and one that
//! supervises them.
//!
//! Input `n` of a seed is always the same. A process that ends, or spends longer than [`PATIENCE`] on one input, is a
//! finding, as is a panic.
//!
//! - `WCODEC_INPUTS` (100,000): the number of inputs. Campaigns of slow readers take only one of several.
//! - `WCODEC_FIRST` (0): the first of them, so that an interrupted campaign can be continued.
//! - `WCODEC_SEED` (1), `WCODEC_THREADS` (a process for each core).
//! - `WCODEC_INPUT`, hexadecimal: only this input, without catching panics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Rng;
use super::fuzz::file::{file_of, random};

/// The longest that an input may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most memory of a process, bytes.
const MEMORY: usize = 1500 << 20;
/// The interval of a process's reports, and of the lines about all of them.
const REPORT: Duration = Duration::from_secs(2);
const LINE: Duration = Duration::from_secs(10);
/// Different findings after which a process ends.
const ENOUGH: usize = 20;

/// A campaign: the work to do with inputs.
pub struct Campaign {
    /// The test that runs it, by its name in its binary, and the command that runs that.
    pub test: &'static str,
    pub command: &'static str,
    /// The campaign takes one of so many inputs.
    pub every: u64,
    /// Processes an input, panics if the library misbehaves, and describes the outcome.
    pub body: fn(&[u8]) -> Vec<&'static str>,
    /// Peak bytes held for the last input, if known.
    pub held: fn() -> usize,
}

/// Runs it as the environment specifies.
///
/// # Panics
/// There were findings.
pub fn run(campaign: &Campaign) {
    if let Ok(text) = std::env::var("WCODEC_INPUT") {
        let begun = Instant::now();
        let events = (campaign.body)(&from_hex(&text));
        println!("{events:?} in {:.3} s", begun.elapsed().as_secs_f64());
        return;
    }
    match std::env::var("WCODEC_PART") {
        Ok(worker) => work(campaign, &worker),
        Err(_) => watch(campaign),
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.replace('_', "").parse().expect("a number"))
}

fn input_of(n: u64) -> Vec<u8> {
    random(&mut Rng(Rng(setting("WCODEC_SEED", 1)).next() ^ Rng(n).next()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal digits")).collect()
}

/// The last panic's message: bodies may work on another thread.
static SAID: Mutex<String> = Mutex::new(String::new());

/// A process of a campaign: `worker` has its number, the number of all, and the file that records its current input.
fn work(campaign: &Campaign, worker: &str) {
    let [number, all, at] = worker.splitn(3, ':').collect::<Vec<_>>()[..] else { panic!("{worker}") };
    let (number, all): (u64, u64) = (number.parse().unwrap(), all.parse().unwrap());
    let at = File::options().write(true).open(at).unwrap();
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let said = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or_default().replace(['\n', '\t'], " ");
        *SAID.lock().unwrap_or_else(PoisonError::into_inner) = format!("{place}\t{said}");
    }));
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let (mut done, mut slowest, mut most) = (0, (Duration::ZERO, 0), (0, 0));
    let mut last = Instant::now();
    let tell = |done: u64, slowest: (Duration, u64), most: (usize, u64), counts: &BTreeMap<&str, u64>| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n=done\t{done}\n=slowest\t{}\t{}", slowest.0.as_micros(), slowest.1).unwrap();
        writeln!(out, "=most\t{}\t{}\n=resident\t{}", most.0, most.1, resident()).unwrap();
        counts.iter().for_each(|(word, n)| writeln!(out, "={word}\t{n}").unwrap());
        out.flush().unwrap();
    };
    let mut n = (first(campaign) + number) * campaign.every;
    while n < setting("WCODEC_INPUTS", 100_000) && found.len() < ENOUGH {
        write_at(&at, n);
        let input = input_of(n);
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (campaign.body)(&input)));
        let took = begun.elapsed();
        slowest = slowest.max((took, n));
        most = most.max(((campaign.held)(), n));
        match outcome {
            Ok(events) => events.into_iter().for_each(|word| *counts.entry(word).or_default() += 1),
            Err(_) => {
                let said = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
                let place = said.split('\t').next().unwrap_or_default().to_owned();
                *found.entry(place).or_default() += 1;
                if found.values().sum::<u64>() < 100 {
                    println!("\n!{n}\t{said}");
                }
            }
        }
        done += 1;
        n += all * campaign.every;
        if last.elapsed() >= REPORT {
            tell(done, slowest, most, &counts);
            last = Instant::now();
        }
    }
    tell(done, slowest, most, &counts);
    println!("=over\t1");
}

#[cfg(unix)]
fn write_at(at: &File, n: u64) {
    std::os::unix::fs::FileExt::write_at(at, &n.to_le_bytes(), 0).unwrap();
}

#[cfg(not(unix))]
fn write_at(_: &File, _: u64) {}

/// The peak memory of this process, bytes; 0 if the system does not provide it.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).map_or(0, |kb| kb << 10)
}

/// Everything that a process has reported.
#[derive(Default)]
struct Heard {
    figures: BTreeMap<String, (u64, u64)>,
    findings: Vec<(u64, String)>,
}

struct Worker {
    child: Child,
    heard: Arc<Mutex<Heard>>,
    at: PathBuf,
    /// Its current input, and the start time of that.
    seen: (u64, Instant),
    over: bool,
}

impl Worker {
    fn start(campaign: &Campaign, number: u64, all: u64, folder: &Path) -> Self {
        let at = folder.join(number.to_string());
        std::fs::write(&at, [0; 8]).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([campaign.test, "--exact", "--ignored", "--nocapture"])
            .env("WCODEC_PART", format!("{number}:{all}:{}", at.display()))
            .env("RAYON_NUM_THREADS", "1")
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let heard = Arc::<Mutex<Heard>>::default();
        let (lines, hears) = (BufReader::new(child.stdout.take().unwrap()).lines(), heard.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut heard = hears.lock().unwrap();
                let mut words = line.get(1..).unwrap_or_default().splitn(3, '\t');
                let mut next = || words.next().unwrap_or_default().to_owned();
                match line.chars().next() {
                    Some('=') => {
                        let (word, figures) = (next(), [next(), next()].map(|n| n.parse().unwrap_or(0)));
                        heard.figures.insert(word, (figures[0], figures[1]));
                    }
                    Some('!') => {
                        let n = next().parse().unwrap_or(0);
                        let said = format!("{}: {}", next(), next());
                        heard.findings.push((n, said));
                    }
                    _ => {}
                }
            }
        });
        Self { child, heard, at, seen: (0, Instant::now()), over: false }
    }

    /// Checks on the process: returns a finding if it has ended, or has spent too long on one input.
    fn look(&mut self) -> Option<String> {
        let bytes = std::fs::read(&self.at).ok().and_then(|b| b.first_chunk::<8>().copied()).unwrap_or_default();
        let n = u64::from_le_bytes(bytes);
        if n != self.seen.0 {
            self.seen = (n, Instant::now());
        }
        if let Some(status) = self.child.try_wait().unwrap() {
            self.over = true;
            return (!status.success()).then(|| format!("the process ended: {status}"));
        }
        (self.seen.1.elapsed() > PATIENCE).then(|| {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
            self.over = true;
            format!("more than {} s", PATIENCE.as_secs())
        })
    }
}

/// The first input that this campaign takes.
fn first(campaign: &Campaign) -> u64 {
    setting("WCODEC_FIRST", 0).div_ceil(campaign.every)
}

fn watch(campaign: &Campaign) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let (all, inputs) = (setting("WCODEC_THREADS", cores).max(1), setting("WCODEC_INPUTS", 100_000));
    let wanted = inputs.div_ceil(campaign.every).saturating_sub(first(campaign));
    // Files in memory avoid waiting for a disk.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let (begun, mut line) = (Instant::now(), Instant::now());
    let mut workers: Vec<Worker> = (0..all).map(|i| Worker::start(campaign, i, all, folder.path())).collect();
    let mut findings: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        for worker in &mut workers {
            let wrong = if worker.over { None } else { worker.look() };
            let heard = std::mem::take(&mut worker.heard.lock().unwrap().findings);
            for (n, said) in heard.into_iter().chain(wrong.map(|wrong| (worker.seen.0, wrong))) {
                let place = said.split(": ").next().unwrap_or_default().to_owned();
                findings.entry(place).or_insert_with(|| {
                    found(campaign, n, &said);
                    n
                });
            }
        }
        let over = workers.iter().all(|worker| worker.over);
        if over || line.elapsed() >= LINE {
            line = Instant::now();
            report(&workers, wanted, begun.elapsed(), over);
        }
        if over {
            break;
        }
    }
    // The last lines of output have arrived by now, or will in a moment.
    std::thread::sleep(Duration::from_millis(200));
    report(&workers, wanted, begun.elapsed(), true);
    let most = figure(&workers, "resident", u64::max).0.max(figure(&workers, "most", u64::max).0);
    assert!(most < MEMORY as u64, "{most} bytes of memory");
    assert!(findings.is_empty(), "{} findings, of inputs {:?}", findings.len(), findings.values());
}

/// Keeps an input and the file it stands for, and prints the line that repeats it.
fn found(campaign: &Campaign, n: u64, said: &str) {
    let input = input_of(n);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find_map(|p| Some(p.join("codec/fuzz")).filter(|p| p.is_dir()));
    let folder = folder.expect("the repository").join("artifacts");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("file-{}", hex(&input)));
    std::fs::write(&path, &input).unwrap();
    // The mutation itself may panic.
    if let Ok(file) = catch_unwind(|| file_of(&input)) {
        std::fs::write(path.with_extension("wcodec"), file).unwrap();
    }
    println!(
        "\nFOUND, input {n}: {said}\n  kept as {}[.wcodec]; to repeat it:\n  WCODEC_INPUT={} {}",
        path.display(),
        hex(&input),
        campaign.command
    );
}

/// A figure of all processes together, and the one that accompanies the largest.
fn figure(workers: &[Worker], word: &str, join: fn(u64, u64) -> u64) -> (u64, u64) {
    let all = workers.iter().filter_map(|worker| worker.heard.lock().unwrap().figures.get(word).copied());
    all.reduce(|a, b| (join(a.0, b.0), if a.0 >= b.0 { a.1 } else { b.1 })).unwrap_or_default()
}

fn report(workers: &[Worker], wanted: u64, took: Duration, all: bool) {
    let done = figure(workers, "done", |a, b| a + b).0;
    let (slowest, most, resident) = (
        figure(workers, "slowest", u64::max),
        figure(workers, "most", u64::max),
        figure(workers, "resident", u64::max),
    );
    println!(
        "{done} of {wanted} inputs, {:.0} s, {:.0}/s; slowest {:.3} s (input {}); most memory {:.1} MB for one (input {}), {:.0} MB resident",
        took.as_secs_f64(),
        done as f64 / took.as_secs_f64(),
        slowest.0 as f64 / 1e6,
        slowest.1,
        most.0 as f64 / 1e6,
        most.1,
        resident.0 as f64 / 1e6,
    );
    if all {
        let words: std::collections::BTreeSet<String> =
            workers.iter().flat_map(|p| p.heard.lock().unwrap().figures.keys().cloned().collect::<Vec<_>>()).collect();
        for word in words.iter().filter(|w| !["done", "slowest", "most", "resident", "over"].contains(&w.as_str())) {
            println!("  {word}: {}", figure(workers, word, |a, b| a + b).0);
        }
    }
}
