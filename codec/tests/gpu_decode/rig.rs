//! A GPU, outputs that reveal every out-of-bounds write, and the oracle.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use wcodec::gpu::nvcomp::Nvcomp;
use wcodec::gpu::{DecodeItem, Device, DeviceBuffer, GpuDecoder, GpuOptions, Stream};
use wcodec::{Container, DecodeOptions, Dtype, Isa, Result, TensorInfo};

use crate::common::{self, Rng};

/// The fewest guard bytes before and after every output.
const GUARD: usize = 256;

/// The fixture of most tests.
pub struct Rig {
    pub device: Device,
    pub stream: Stream,
    pub rng: Rng,
    seed: u64,
    _place: Place,
}

/// Tests that measure the device's memory hold this exclusively; all others share it.
static DEVICE: RwLock<()> = RwLock::new(());

enum Place {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// A fresh seed, or that of WCODEC_SEED. Printed, so that it is shown if the test fails.
pub fn new_seed() -> u64 {
    let given = std::env::var("WCODEC_SEED").ok().map(|s| s.parse().expect("WCODEC_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("WCODEC_SEED={seed}");
    seed
}

impl Rig {
    /// `None` if there is no GPU.
    pub fn new() -> Option<Self> {
        Self::at(|| Place::Shared { _guard: DEVICE.read().unwrap_or_else(PoisonError::into_inner) })
    }

    /// As [`new`](Self::new), for a test beside which no other one may allocate memory.
    pub fn alone() -> Option<Self> {
        Self::at(|| Place::Alone { _guard: DEVICE.write().unwrap_or_else(PoisonError::into_inner) })
    }

    fn at(place: impl FnOnce() -> Place) -> Option<Self> {
        let device = common::gpu::device()?;
        let place = place();
        let stream = Stream::new(&device).unwrap();
        let seed = new_seed();
        Some(Self { device, stream, rng: Rng(seed), seed, _place: place })
    }

    /// `None` if there is no GPU or no nvCOMP; the latter is reported, once.
    pub fn with_nvcomp() -> Option<Self> {
        let rig = Self::new()?;
        rig.has_nvcomp().then_some(rig)
    }

    /// Whether planes of coder `zstd` can be decoded. Fails if they cannot and WCODEC_REQUIRE_GPU is 1.
    pub fn has_nvcomp(&self) -> bool {
        let Err(e) = Nvcomp::load_for(&self.device, None, &[]) else { return true };
        assert!(std::env::var("WCODEC_REQUIRE_GPU").as_deref() != Ok("1"), "nvCOMP is required: {e}");
        static SAID: Once = Once::new();
        // Not through `eprintln`, which the test harness captures.
        SAID.call_once(|| drop(writeln!(std::io::stderr(), "GPU tests of coder zstd are skipped: {e}")));
        false
    }

    /// Decodes `wants` in one call and compares: some outputs are at odd addresses, and all are poisoned and guarded.
    pub fn compare(&mut self, decoder: &GpuDecoder, wants: &[Want], what: &str) {
        let mut outputs = Outputs::new(self, wants);
        outputs.poison(&mut self.rng, &self.stream);
        let items = outputs.items(wants);
        // SAFETY: the outputs outlive the work, which `check` waits for, and have the right sizes.
        unsafe { decoder.decode(&items, &self.stream) }.unwrap_or_else(|e| panic!("{what}: {e}"));
        decoder.check(&self.stream).unwrap_or_else(|e| panic!("{what}: {e}"));
        outputs.assert_equal(wants, &self.stream, what);
    }

    /// Compares all tensors of a container, in every dtype that they can be decoded to. Returns the number of outputs.
    pub fn compare_container(&mut self, container: &Container, options: &GpuOptions, what: &str) -> usize {
        let infos = self.decodable(container);
        let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
        if names.is_empty() {
            return 0;
        }
        let decoder =
            GpuDecoder::new(&self.device, container, &names, options).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(decoder.names().eq(names.iter().map(String::as_str)));
        let wants = Want::everything(container, &infos, &mut self.rng);
        for want in &wants {
            assert_eq!(
                decoder.output_bytes(&want.name, want.dtype).unwrap(),
                want.bytes.len(),
                "{what}: {}",
                want.name
            );
        }
        self.compare(&decoder, &wants, what);
        wants.len()
    }

    /// Tensors of `container`, without those of coder `zstd` if there is no nvCOMP.
    pub fn decodable(&self, container: &Container) -> Vec<TensorInfo> {
        let infos = container.infos().unwrap();
        let zstd = infos.iter().any(|t| t.coder() == "zstd") && self.has_nvcomp();
        infos.into_iter().filter(|t| zstd || t.coder() != "zstd").collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("repeat with WCODEC_SEED={}", self.seed);
        }
    }
}

pub fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i + 1));
    }
}

/// The scalar CPU decoder.
pub fn oracle(verify: bool) -> DecodeOptions {
    DecodeOptions { isa: Some(Isa::Scalar), verify, ..Default::default() }
}

/// All dtypes that a tensor can be decoded to.
pub fn dtypes(info: &TensorInfo) -> Vec<Dtype> {
    match info.scheme.as_str() {
        "int8" => vec![Dtype::I8, Dtype::F16, Dtype::BF16, Dtype::F32],
        _ => vec![info.dtype],
    }
}

/// The bytes of a tensor decoded by the CPU.
pub fn expected(container: &Container, info: &TensorInfo, dtype: Dtype, verify: bool) -> Result<Vec<u8>> {
    if info.scheme != "int8" || dtype != Dtype::I8 {
        return container.read_as(&info.name, dtype, &oracle(verify)).map(|b| b.to_vec());
    }
    let symbols = container.symbols(&info.name, &oracle(verify))?;
    let symbols: Vec<u8> = bytemuck::cast_slice(&symbols).to_vec();
    if info.row_axis == 0 {
        return Ok(symbols);
    }
    // Symbols are in the order of the matrix; elements in that of the tensor.
    let (rows, cols) = (info.rows, info.cols);
    Ok((0..cols).flat_map(|c| (0..rows).map(move |r| r * cols + c)).map(|i| symbols[i]).collect())
}

/// A tensor to decode and its expected bytes.
#[derive(Clone, Debug)]
pub struct Want {
    pub name: String,
    pub dtype: Dtype,
    pub rows: Option<Range<usize>>,
    pub bytes: Vec<u8>,
}

impl Want {
    /// All of a tensor, sometimes by an alias.
    pub fn whole(container: &Container, info: &TensorInfo, dtype: Dtype, rng: &mut Rng) -> Self {
        let bytes = expected(container, info, dtype, true).unwrap();
        let alias = container.aliases().iter().find(|(_, name)| **name == info.name).map(|(alias, _)| alias);
        let name = alias.filter(|_| rng.below(2) == 0).unwrap_or(&info.name).clone();
        Self { name, dtype, rows: None, bytes }
    }

    /// All tensors in every dtype that they can be decoded to, in any order.
    pub fn everything(container: &Container, infos: &[TensorInfo], rng: &mut Rng) -> Vec<Self> {
        let mut wants = Vec::new();
        for info in infos {
            wants.extend(dtypes(info).into_iter().map(|d| Self::whole(container, info, d, rng)));
        }
        shuffle(rng, &mut wants);
        wants
    }
}

/// Outputs in one piece of device memory, with guards around each.
pub struct Outputs {
    buffer: DeviceBuffer,
    places: Vec<Range<usize>>,
    poison: u8,
}

impl Outputs {
    /// One output for each of `wants`; half of them are not aligned to 16 bytes.
    pub fn new(rig: &mut Rig, wants: &[Want]) -> Self {
        let mut end = 0;
        let places = wants
            .iter()
            .map(|w| {
                let element = w.dtype.size().min(16);
                let off = if rig.rng.below(2) == 0 { 0 } else { rig.rng.below(16 / element) * element };
                let begin = (end + GUARD).next_multiple_of(256) + off;
                end = begin + w.bytes.len();
                begin..end
            })
            .collect();
        let buffer = DeviceBuffer::new(&rig.device, end + GUARD).unwrap();
        Self { buffer, places, poison: 0 }
    }

    /// Fills everything with one value, in the stream.
    pub fn poison(&mut self, rng: &mut Rng, stream: &Stream) {
        // A value that differs from the last.
        self.poison = self.poison.wrapping_add(1 + rng.below(255) as u8);
        self.buffer.fill(self.poison, stream).unwrap();
    }

    pub fn items(&self, wants: &[Want]) -> Vec<DecodeItem> {
        let item = |(place, w): (&Range<usize>, &Want)| DecodeItem {
            name: w.name.clone(),
            out: self.buffer.ptr() + place.start as u64,
            dtype: w.dtype,
            rows: w.rows.clone(),
        };
        self.places.iter().zip(wants).map(item).collect()
    }

    /// Contents of all outputs, whose guards must be unchanged.
    pub fn contents(&self, stream: &Stream, what: &str) -> Vec<Vec<u8>> {
        let mut all = vec![0; self.buffer.len()];
        self.buffer.download(0, &mut all, stream).unwrap();
        let mut begin = 0;
        for end in self.places.iter().map(Some).chain([None]) {
            let guard = begin..end.map_or(all.len(), |place| place.start);
            let touched = all[guard.clone()].iter().position(|&b| b != self.poison);
            assert!(
                touched.is_none(),
                "{what}: written outside, at {touched:?} of {guard:?}; outputs {:?}",
                self.places
            );
            begin = end.map_or(0, |place| place.end);
        }
        self.places.iter().map(|place| all[place.clone()].to_vec()).collect()
    }

    pub fn assert_equal(&self, wants: &[Want], stream: &Stream, what: &str) {
        for (got, want) in self.contents(stream, what).iter().zip(wants) {
            assert_same(got, want, what);
        }
    }
}

pub fn assert_same(got: &[u8], want: &Want, what: &str) {
    if got != want.bytes {
        let at = got.iter().zip(&want.bytes).position(|(a, b)| a != b);
        let count = got.iter().zip(&want.bytes).filter(|(a, b)| a != b).count();
        let of = want.bytes.len();
        panic!("{what}: {} as {} {:?}: {count} of {of} bytes differ, first {at:?}", want.name, want.dtype, want.rows);
    }
}

/// Ends the process if the guarded work takes too long: waiting for a hanging kernel would never end.
pub struct Watchdog(Option<mpsc::Sender<()>>);

impl Watchdog {
    pub fn new(what: &'static str, limit: Duration) -> Self {
        let (alive, dropped) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                drop(writeln!(std::io::stderr(), "{what}: not done after {} s", limit.as_secs()));
                std::process::abort();
            }
        });
        Self(Some(alive))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.take();
    }
}
