//! The layer over the GPU's driver. Without a GPU, these tests are skipped.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};
use wcodec::gpu::{
    Device, DeviceBuffer, Event, Fetcher, Kernel, PinnedBuffer, Stream, device_infos, devices, driver_version,
};
use wcodec::{Cancel, ErrorKind, Pool};
use wcodec_kernels::{abi, emulate};

mod common;

// The kernels' own tests compare the emulator with Rust on the same cases.
#[path = "../../kernels/src/emulate/tests/cases.rs"]
mod cases;

use cases::{SLOTS, STREAM, THREADS, shared};

/// A kernel that adds a number to each of `count` 32-bit numbers, and one that takes two parameters. The parameter of
/// `add` is u64 address, u32 count, u32 addend.
macro_rules! add_ptx {
    ($target:literal, $wait:literal) => {
        concat!(
            ".version 8.4\n.target ",
            $target,
            "
.address_size 64
.visible .entry add(.param .align 8 .b8 params[16])
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ",
            $wait,
            "
    ld.param.u64 %rd1, [params];
    ld.param.u32 %r1, [params+8];
    ld.param.u32 %r2, [params+12];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r7, [%rd4];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd4], %r7;
DONE:
    ret;
}
.visible .entry two(.param .u32 a, .param .u32 b)
{
    ret;
}
"
        )
    };
}

static ADD: &str = add_ptx!("sm_75", "");
/// Waits for the preceding work, as overlapping launches must.
static ADD_90: &str = add_ptx!("sm_90", "griddepcontrol.wait;");

/// The module with `add` that `device` can run, and overlap.
fn ptx(device: &Device) -> &'static str {
    if device.compute_capability() >= (9, 0) { ADD_90 } else { ADD }
}

/// One test at a time, because one of them captures in a mode that affects all threads.
fn device() -> Option<(Device, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    common::gpu::device().map(|d| (d, guard))
}

/// Bytes that do not repeat soon.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn contents(buffer: &DeviceBuffer, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.download(0, &mut bytes, stream).unwrap();
    bytes
}

fn numbers(buffer: &DeviceBuffer, stream: &Stream) -> Vec<u32> {
    contents(buffer, stream).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Launches `add` on all of `buffer`.
fn add(kernel: &Kernel, buffer: &DeviceBuffer, addend: u32, stream: &Stream, overlap: bool) -> wcodec::Result<()> {
    let count = (buffer.len() / 4) as u32;
    let mut params = buffer.ptr().to_le_bytes().to_vec();
    params.extend(count.to_le_bytes());
    params.extend(addend.to_le_bytes());
    // SAFETY: The kernel writes within the buffer, which callers keep until they have waited, and waits for preceding
    // work.
    unsafe { kernel.launch(count.div_ceil(128), 128, 0, &params, stream, overlap) }
}

#[test]
fn devices_are_described() {
    let Some((device, _alone)) = device() else {
        assert!(devices().is_err_and(|e| e.kind() == ErrorKind::Device));
        return;
    };
    let infos = device_infos().unwrap();
    assert_eq!(&infos[0], device.info());
    assert_eq!(devices().unwrap()[0], device);
    println!("CUDA {:?}: {infos:?}", driver_version().unwrap());
    assert!(device.driver_version() >= (12, 4) && device.compute_capability() >= (7, 5));
    assert!(!device.name().is_empty() && device.multiprocessors() > 0);
    assert!(device.shared_memory_per_block() >= 64 << 10);
    assert!(device.shared_memory_per_multiprocessor() >= device.shared_memory_per_block());
    let (free, total) = device.memory().unwrap();
    assert!(0 < free && free <= total);
    device.synchronize().unwrap();

    let e = Device::new(999).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Input, "there is no GPU 999"));
}

#[test]
fn uploads_and_downloads_at_offsets() {
    let Some((device, _alone)) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::new(&device, (4 << 20) + 3).unwrap();
    assert_eq!((buffer.len(), buffer.ptr() % 256), ((4 << 20) + 3, 0));
    buffer.fill(0xa5, &stream).unwrap();
    let mut expected = vec![0xa5; buffer.len()];
    assert!(contents(&buffer, &stream) == expected);
    for (offset, len) in [(0, 1), (1, 7), (255, 2), (4096, 1 << 20), ((4 << 20) - 5, 8), ((4 << 20) + 3, 0)] {
        let bytes = pattern(len, offset as u64);
        buffer.upload(offset, &bytes, &stream).unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        let mut back = vec![0; len];
        buffer.download(offset, &mut back, &stream).unwrap();
        assert!(back == bytes);
    }
    assert!(contents(&buffer, &stream) == expected);

    for offset in [buffer.len(), usize::MAX] {
        assert_eq!(buffer.upload(offset, &[1], &stream).unwrap_err().kind(), ErrorKind::Input);
        assert_eq!(buffer.download(offset, &mut [1], &stream).unwrap_err().kind(), ErrorKind::Input);
    }
    let empty = DeviceBuffer::new(&device, 0).unwrap();
    assert!(empty.is_empty() && empty.ptr() == 0);
    empty.fill(1, &stream).unwrap();
    empty.upload(0, &[], &stream).unwrap();
    empty.download(0, &mut [], &stream).unwrap();

    // The legacy default stream.
    // SAFETY: Null is always a stream.
    let legacy = unsafe { Stream::from_raw(&device, ptr::null_mut()) };
    buffer.upload(3, b"legacy", &legacy).unwrap();
    let mut back = [0; 6];
    buffer.download(3, &mut back, &legacy).unwrap();
    assert_eq!(&back, b"legacy");
}

#[test]
fn pinned_memory_is_copied_by_ranges() {
    let Some((device, _alone)) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let mut pinned = PinnedBuffer::new(&device, 1 << 20).unwrap();
    assert!(pinned.len() == 1 << 20 && pinned.iter().all(|&b| b == 0));
    pinned.copy_from_slice(&pattern(1 << 20, 5));
    let buffer = DeviceBuffer::new(&device, 1 << 20).unwrap();
    buffer.fill(0, &stream).unwrap();
    // SAFETY: Both buffers outlive `contents`, which waits.
    let copy = |at, range| unsafe { buffer.upload_async(at, &pinned, range, &stream) };
    copy(10, 7..99_999).unwrap();
    copy(500_000, 100..100).unwrap();
    copy(500_001, 0..77).unwrap();
    let mut expected = vec![0; 1 << 20];
    expected[10..10 + 99_992].copy_from_slice(&pinned[7..99_999]);
    expected[500_001..500_078].copy_from_slice(&pinned[..77]);
    assert!(contents(&buffer, &stream) == expected);

    for (at, range) in [(0, 0..(1 << 20) + 1), (1, 0..1 << 20), (0, usize::MAX..usize::MAX)] {
        assert_eq!(copy(at, range).unwrap_err().kind(), ErrorKind::Input);
    }
    let empty = PinnedBuffer::new(&device, 0).unwrap();
    assert!(empty.is_empty());
    // SAFETY: There is nothing to copy.
    unsafe { buffer.upload_async(0, &empty, 0..0, &stream) }.unwrap();
}

#[test]
fn what_is_fetched_in_pieces_is_whole_and_comes_after_the_streams_work() {
    const PIECE: usize = 32 << 20;
    let Some((device, _lock)) = device() else { return };
    let (stream, pool, go) = (Stream::new(&device).unwrap(), Pool::new(Some(3)).unwrap(), Cancel::new());
    for len in [0, 1, 4095, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 12_345] {
        let buffer = DeviceBuffer::new(&device, len).unwrap();
        for (largest, seed) in [(len, 1), (len / 3, 2), (usize::MAX, 3)] {
            let mut fetcher = Fetcher::new(&device, largest).unwrap();
            for round in 0..2 {
                let bytes = pattern(len, 10 * seed + round);
                buffer.upload(0, &bytes, &stream).unwrap();
                let mut out = vec![0xEE; len];
                // SAFETY: the buffer has that many bytes and is alive.
                unsafe { fetcher.fetch(buffer.ptr(), &mut out, &stream, &pool, &go) }.unwrap();
                assert!(out == bytes, "{len} bytes, {largest} at most, round {round}");
            }
            buffer.fill(9, &stream).unwrap();
            let mut out = vec![0; len];
            // SAFETY: as above.
            unsafe { fetcher.fetch(buffer.ptr(), &mut out, &stream, &pool, &go) }.unwrap();
            assert!(out.iter().all(|&b| b == 9), "{len} bytes were fetched before they were written");
        }
    }

    let buffer = DeviceBuffer::new(&device, 2 * PIECE).unwrap();
    let (mut fetcher, stop) = (Fetcher::new(&device, PIECE).unwrap(), Cancel::new());
    stop.cancel();
    let mut out = vec![0; 2 * PIECE];
    // SAFETY: as above.
    let e = unsafe { fetcher.fetch(buffer.ptr(), &mut out, &stream, &pool, &stop) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    // SAFETY: no memory is at that address, which the driver reports as an error without an access.
    assert!(unsafe { fetcher.fetch(4096, &mut out, &stream, &pool, &go) }.is_err());
    // SAFETY: as above.
    unsafe { fetcher.fetch(buffer.ptr(), &mut out, &stream, &pool, &go) }.unwrap();
}

#[test]
fn events_order_work_of_streams() {
    let Some((device, _alone)) = device() else { return };
    let (first, second) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let (written, read) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    // Large enough that the other stream would start too early.
    let buffer = DeviceBuffer::new(&device, 256 << 20).unwrap();
    let end = buffer.len() - 1;
    for value in 1..=20 {
        first.wait(&read).unwrap();
        buffer.fill(value, &first).unwrap();
        written.record(&first).unwrap();
        second.wait(&written).unwrap();
        let mut last = [0];
        buffer.download(end, &mut last, &second).unwrap();
        assert_eq!(last, [value]);
        read.record(&second).unwrap();
    }

    let (start, stop) = (Event::with_timing(&device).unwrap(), Event::with_timing(&device).unwrap());
    start.record(&first).unwrap();
    buffer.fill(0, &first).unwrap();
    stop.record(&first).unwrap();
    stop.synchronize().unwrap();
    let ms = stop.elapsed_ms(&start).unwrap();
    assert!(ms > 0.0 && ms < 10_000.0, "{ms}");
    assert_eq!(stop.elapsed_ms(&written).unwrap_err().kind(), ErrorKind::Device);
    first.synchronize().unwrap();
}

/// The context that is current on this thread.
fn current() -> Option<sys::CUcontext> {
    result::ctx::get_current().unwrap()
}

/// Uses the device in every way that binds its context.
fn work(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let buffer = DeviceBuffer::new(device, 100).unwrap();
    buffer.fill(3, &stream).unwrap();
    assert_eq!(contents(&buffer, &stream), [3; 100]);
    Event::new(device).unwrap().record(&stream).unwrap();
    PinnedBuffer::new(device, 100).unwrap();
    device.kernel_in(ptx(device), "add").unwrap().occupancy(128, 0).unwrap();
    device.memory().unwrap();
}

#[test]
fn the_primary_context_is_shared_and_threads_are_left_as_they_were() {
    let Some((device, _alone)) = device() else { return };
    drop(device);
    // Another library that uses the primary context, and holds memory in it.
    let handle = result::device::get(0).unwrap();
    // SAFETY: The handle is a device's. The context is released below.
    let primary = unsafe { result::primary_ctx::retain(handle) }.unwrap();
    let device = Device::new(0).unwrap();

    assert_eq!(current(), None);
    work(&device);
    assert_eq!(current(), None);

    // SAFETY: The context is retained.
    unsafe { result::ctx::set_current(primary) }.unwrap();
    // SAFETY: The memory is freed below.
    let other = unsafe { result::malloc_sync(4) }.unwrap();
    work(&device);
    assert_eq!(current(), Some(primary));
    drop(device);
    // SAFETY: The memory is of the current context.
    unsafe {
        result::memset_d8_sync(other, 9, 4).unwrap();
        let mut bytes = [0u8; 4];
        result::memcpy_dtoh_sync(&mut bytes, other).unwrap();
        assert_eq!(bytes, [9; 4]);
        result::free_sync(other).unwrap();
    }

    // A context that is not the primary one stays current.
    let device = Device::new(0).unwrap();
    let mut own: sys::CUcontext = ptr::null_mut();
    // SAFETY: The handle is a device's. The context is destroyed below.
    unsafe { sys::cuCtxCreate_v2(&mut own, 0, handle) }.result().unwrap();
    work(&device);
    assert_eq!(current(), Some(own));
    device.bind().unwrap();
    assert_eq!(current(), Some(primary));
    device.bind().unwrap();
    work(&device);
    assert_eq!(current(), Some(primary));
    // SAFETY: Each is given back once, and neither is used any more.
    unsafe {
        sys::cuCtxDestroy_v2(own).result().unwrap();
        result::ctx::set_current(ptr::null_mut()).unwrap();
        result::primary_ctx::release(handle).unwrap();
    }
}

#[test]
fn too_much_memory_is_an_error_that_says_how_much() {
    let Some((device, _alone)) = device() else { return };
    let (_, total) = device.memory().unwrap();
    let e = DeviceBuffer::new(&device, total as usize + 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    let digits: String = e.message().chars().filter(|&c| c != ',').collect();
    let about = format!("GPU 0 ({}) is out of memory: {} bytes were asked for and ", device.name(), total + 1);
    assert!(digits.starts_with(&about) && digits.ends_with(&format!(" of {total} are free")), "{e}");
    // It breaks nothing.
    work(&device);
}

#[test]
fn kernels_run() {
    let Some((device, _alone)) = device() else { return };
    let kernel = device.kernel_in(ptx(&device), "add").unwrap();
    assert_eq!(kernel.name(), "add");
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::new(&device, 4 * 1000).unwrap();
    buffer.fill(0, &stream).unwrap();
    for overlap in [false, true, true, false] {
        add(&kernel, &buffer, 7, &stream, overlap).unwrap();
    }
    assert_eq!(numbers(&buffer, &stream), [28; 1000]);

    // SAFETY: None of these reaches the device.
    unsafe {
        let e = kernel.launch(1, 32, 0, &[0; 12], &stream, false).unwrap_err();
        assert_eq!(e.message(), "kernel 'add' takes 16 bytes of parameters, not 12");
        kernel.launch(0, 32, 0, &[0; 16], &stream, false).unwrap();
        let e = kernel.launch(1, 4096, 0, &[0; 16], &stream, false).unwrap_err();
        assert!(e.message().starts_with("kernel 'add': the NVIDIA driver's cuLaunchKernelEx failed: CUDA_"), "{e}");
    }

    // Dynamic shared memory: all that a block can have, and no more.
    let most = device.shared_memory_per_block();
    assert!(kernel.occupancy(128, 0).unwrap() >= 8);
    kernel.max_shared(most).unwrap();
    kernel.max_shared(1024).unwrap();
    assert_eq!(kernel.occupancy(128, most).unwrap(), 1);
    assert_eq!(kernel.max_shared(most + 1).unwrap_err().kind(), ErrorKind::Input);
    let mut params = buffer.ptr().to_le_bytes().to_vec();
    params.extend([232, 3, 0, 0, 2, 0, 0, 0]);
    // SAFETY: The kernel writes within the buffer, which outlives it.
    unsafe { kernel.launch(8, 128, most, &params, &stream, false) }.unwrap();
    assert_eq!(numbers(&buffer, &stream), [30; 1000]);

    let e = device.kernel_in(ptx(&device), "none").unwrap_err();
    assert!(e.message().starts_with("kernel 'none': ") && e.message().contains("CUDA_ERROR_NOT_FOUND"), "{e}");
    assert_eq!(device.kernel_in(ptx(&device), "two").unwrap_err().kind(), ErrorKind::Input);
    let e = device.kernel_in(".version 8.4\n.target sm_75\n.address_size 64\nnonsense;\n", "x").unwrap_err();
    assert!(e.message().contains("CUDA_ERROR_INVALID_PTX") && e.message().contains("line 4"), "{e}");
}

#[test]
fn our_modules_load() {
    let Some((device, _alone)) = device() else { return };
    let runs = |module: &wcodec_kernels::Module| module.oldest() <= device.compute_capability();
    for module in wcodec_kernels::Module::ALL.into_iter().filter(runs) {
        let e = device.kernel(module, "no such kernel").unwrap_err();
        assert!(e.message().contains("cuModuleGetFunction"), "{}: {e}", module.name());
    }
    // The driver accepted the image meant for it.
    let (module, capability) = (wcodec_kernels::Module::Util, device.compute_capability());
    let asked = std::env::var_os("WCODEC_KERNELS").is_some_and(|v| !v.is_empty());
    let code = wcodec_kernels::cubin(module, capability).filter(|_| !asked);
    let meant = code.unwrap_or_else(|| wcodec_kernels::ptx(module, capability));
    assert_eq!(device.info().kernels().unwrap().to_string(), meant.to_string());
}

#[test]
fn launches_are_captured_and_other_work_leaves_the_capture_alone() {
    let Some((device, _alone)) = device() else { return };
    let kernel = device.kernel_in(ptx(&device), "add").unwrap();
    let (stream, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let (fork, join) = (Event::new(&device).unwrap(), Event::new(&device).unwrap());
    let buffer = DeviceBuffer::new(&device, 4 * 1000).unwrap();
    let second = DeviceBuffer::new(&device, 4 * 1000).unwrap();
    let mut pinned = PinnedBuffer::new(&device, 8).unwrap();
    let raw = stream.raw().cast();

    // The usual mode, in which CUDA forbids allocating, freeing and waiting on every thread.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: The stream is alive.
    unsafe { result::stream::begin_capture(raw, mode) }.unwrap();
    assert!(stream.is_capturing().unwrap() && !other.is_capturing().unwrap());
    buffer.fill(0, &stream).unwrap();
    // SAFETY: The buffers outlive the graph, and the pinned one is changed only when it does not run.
    unsafe { buffer.upload_async(4, &pinned, 0..8, &stream) }.unwrap();
    add(&kernel, &buffer, 1, &stream, false).unwrap();
    add(&kernel, &buffer, 2, &stream, true).unwrap();
    fork.record(&stream).unwrap();
    {
        // A second stream that takes part.
        let side = Stream::new(&device).unwrap();
        side.wait(&fork).unwrap();
        second.fill(4, &side).unwrap();
        join.record(&side).unwrap();
        stream.wait(&join).unwrap();
    }
    let e = buffer.upload(0, &[1], &stream).unwrap_err();
    assert!(e.message().contains("CUDA graph"), "{e}");
    assert_eq!(buffer.download(0, &mut [0], &stream).unwrap_err().kind(), ErrorKind::Input);
    work(&device);
    std::thread::scope(|s| s.spawn(|| work(&device)).join()).unwrap();
    // The following calls bypass the crate, which leaves no context current.
    device.bind().unwrap();
    // SAFETY: The stream is being captured.
    let graph = unsafe { result::stream::end_capture(raw) }.unwrap();
    // SAFETY: The graph was captured.
    let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }.unwrap();

    for round in 0..3u32 {
        pinned[..4].copy_from_slice(&(round * 10).to_le_bytes());
        buffer.fill(0xff, &stream).unwrap();
        // SAFETY: The graph and all that it uses are alive.
        unsafe { result::graph::launch(exec, raw) }.unwrap();
        let mut expected = [3; 1000];
        expected[1] += round * 10;
        assert_eq!(numbers(&buffer, &stream), expected);
        assert_eq!(contents(&second, &stream), [4; 4000]);
    }
    // SAFETY: Neither is used any more.
    unsafe {
        result::graph::exec_destroy(exec).unwrap();
        result::graph::destroy(graph).unwrap();
    }
}

#[test]
fn threads_share_a_device() {
    let Some((device, _alone)) = device() else { return };
    std::thread::scope(|s| {
        for seed in 0..8 {
            let device = &device;
            s.spawn(move || {
                let stream = Stream::new(device).unwrap();
                let kernel = device.kernel_in(ptx(device), "add").unwrap();
                for round in 0..50 {
                    let bytes = pattern(4 * 1024, seed * 1000 + round);
                    let buffer = DeviceBuffer::new(device, bytes.len()).unwrap();
                    buffer.upload(0, &bytes, &stream).unwrap();
                    add(&kernel, &buffer, 5, &stream, false).unwrap();
                    let expected: Vec<u32> = bytes
                        .chunks_exact(4)
                        .map(|b| u32::from_le_bytes(b.try_into().unwrap()).wrapping_add(5))
                        .collect();
                    assert_eq!(numbers(&buffer, &stream), expected);
                }
            });
        }
    });
    // Objects made on another thread can be dropped here.
    let stream = std::thread::scope(|s| s.spawn(|| Stream::new(&device).unwrap()).join()).unwrap();
    let raw: *mut c_void = stream.raw();
    assert!(!raw.is_null());
}

/// A device, and the PTX of the test-only kernels for it. `make test-gpu` writes that and passes its path.
fn selftest() -> Option<(Device, MutexGuard<'static, ()>, &'static str)> {
    let (device, alone) = device()?;
    let Some(folder) = std::env::var_os("WCODEC_SELFTEST") else {
        assert!(std::env::var("WCODEC_REQUIRE_GPU").as_deref() != Ok("1"), "WCODEC_SELFTEST names no folder");
        return None;
    };
    let target = match device.compute_capability() {
        (9.., _) => 90,
        (8, _) => 80,
        _ => 75,
    };
    let path = std::path::Path::new(&folder).join(format!("selftest.sm_{target}.ptx"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Modules are identified by their address, and kept as long as the device.
    static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    Some((device, alone, TEXT.get_or_init(|| text)))
}

/// A launch of a kernel of `selftest.cu`, in blocks of 128 threads, each of which outputs `outputs` words. It has as
/// many bytes of shared memory as `cases::shared` says.
#[derive(Clone, Copy)]
struct Run {
    name: &'static str,
    outputs: usize,
    blocks: usize,
    mode: u32,
    n: u32,
    shared: u32,
}

impl Run {
    /// One block, in mode 0, without shared memory.
    fn new(name: &'static str, outputs: usize) -> Run {
        Run { name, outputs, blocks: 1, mode: 0, n: 0, shared: 0 }
    }
}

/// The results of a launch on `input`, on the GPU and in the emulator.
fn on_both(device: &Device, ptx: &'static str, run: Run, input: &[u32]) -> [Vec<u32>; 2] {
    let (stream, kernel) = (Stream::new(device).unwrap(), device.kernel_in(ptx, run.name).unwrap());
    let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
    let source = DeviceBuffer::new(device, bytes.len()).unwrap();
    let output = DeviceBuffer::new(device, run.blocks * THREADS * run.outputs * 4).unwrap();
    source.upload(0, &bytes, &stream).unwrap();
    output.fill(0xEE, &stream).unwrap();
    let params = |input: u64, output: u64| {
        let mut params = [input, output].map(u64::to_le_bytes).concat();
        params.extend([run.mode, run.n].map(u32::to_le_bytes).concat());
        params
    };
    let (grid, threads) = (run.blocks as u32, THREADS as u32);
    kernel.max_shared(run.shared).unwrap();
    let on_device = params(source.ptr(), output.ptr());
    // SAFETY: The buffers are as large as the kernel's threads take, and outlive `numbers`, which waits.
    unsafe { kernel.launch(grid, threads, run.shared, &on_device, &stream, false) }.unwrap();
    let on_gpu = numbers(&output, &stream);

    let (source, mut output) = (emulate::Buffer::from(&bytes[..]), emulate::Buffer::new(output.len()));
    output.fill(0xEE);
    let params = params(source.address(), output.address());
    let memory = [emulate::Range::read::<u8>(&source), emulate::Range::write::<u8>(&mut output)];
    let launch = emulate::Launch::selftest(run.name).grid(grid).threads(threads).shared(run.shared);
    launch.run(&params, &memory).unwrap();
    [on_gpu, output.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()]
}

/// The type of a word for comparison: the bits of a NaN may differ.
#[derive(Clone, Copy)]
enum Kind {
    Bits,
    F32,
    /// Two 16-bit numbers; infinity has these bits.
    Pair(u32),
}

/// Fails if a launch of `run` gave other words on the GPU. For the message, `input` has the words of each thread, one
/// after the other, or is empty.
fn assert_same(run: Run, input: &[u32], [gpu, emulated]: [Vec<u32>; 2], kind: impl Fn(usize) -> Kind) {
    assert_eq!(gpu.len(), emulated.len());
    let words = input.len() / (run.blocks * THREADS);
    for (i, (g, e)) in gpu.into_iter().zip(emulated).enumerate() {
        let (thread, k) = (i / run.outputs, i % run.outputs);
        let same = match kind(k) {
            Kind::Bits => g == e,
            Kind::F32 => g == e || (f32::from_bits(g).is_nan() && f32::from_bits(e).is_nan()),
            Kind::Pair(infinity) => [0, 16].into_iter().all(|at| {
                let [g, e] = [g, e].map(|v| v >> at & 0xFFFF);
                g == e || [g, e].iter().all(|v| v & 0x7FFF > infinity)
            }),
        };
        let given = input.get(thread * words..(thread + 1) * words).unwrap_or(&[]);
        let Run { name, mode, .. } = run;
        assert!(same, "{name}, mode {mode}, word {k} of thread {thread}, {given:08x?}: {g:08x}, not {e:08x}");
    }
}

fn words(count: usize, seed: u64) -> Vec<u32> {
    pattern(4 * count, seed).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The number of modes that the device supports: f16 (0) and bf16 (1).
fn modes(device: &Device) -> u32 {
    if device.compute_capability() >= (8, 0) { 2 } else { 1 }
}

#[test]
fn primitives_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    let run = Run::new("primitives", 16);
    for seed in 0..8 {
        let input = words(128, seed);
        let found = on_both(&device, ptx, run, &input);
        assert_same(run, &input, found, |k| if k == 9 { Kind::F32 } else { Kind::Bits });
    }
}

#[test]
fn words_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        let [gpu, emulated] = on_both(&device, ptx, Run::new("words", 8), &words(128, 300 + seed));
        assert_eq!(gpu, emulated);
    }
}

#[test]
fn floats_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        let input = cases::floats(seed);
        let run = Run { blocks: input.len() / (3 * THREADS), ..Run::new("floats", 8) };
        // Conversions to 16 bits produce a single NaN.
        assert_same(run, &input, on_both(&device, ptx, run, &input), |k| if k < 6 { Kind::F32 } else { Kind::Bits });

        let input = cases::digits(seed);
        let run = Run { blocks: input.len() / (2 * THREADS), ..Run::new("digits", 3) };
        assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::F32);
    }
}

#[test]
fn powers_of_the_kernels_are_near_enough() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    let input = cases::powers();
    let run = Run { blocks: input.len() / THREADS, ..Run::new("powers", 1) };
    for found in on_both(&device, ptx, run, &input) {
        for (v, found) in input.iter().zip(found) {
            let [v, found] = [*v, found].map(f32::from_bits);
            assert!(cases::is_power(v, found), "e^{v}: {found}");
        }
    }
}

#[test]
fn halves_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    let run = Run { blocks: (1 << 16) / THREADS, ..Run::new("halves", 1) };
    assert_same(run, &[], on_both(&device, ptx, run, &[]), |_| Kind::F32);
    for (mode, seed) in (0..modes(&device)).flat_map(|mode| (0..8).map(move |seed| (mode, seed))) {
        let input = cases::pairs(mode, seed);
        let run = Run { mode, blocks: input.len() / (2 * THREADS), ..Run::new("pairs", 1) };
        let infinity = if mode == 0 { 0x7C00 } else { 0x7F80 };
        assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::Pair(infinity));
    }
}

#[test]
fn whole_numbers_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        let input = cases::integers(seed);
        let run = Run { blocks: input.len() / (4 * THREADS), ..Run::new("integers", 11) };
        assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::Bits);
    }
}

#[test]
fn streams_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        for (run, input) in
            [(Run::new("takes", 16), cases::takes(seed)), (Run::new("windows", 24), cases::windows(seed))]
        {
            let run = Run { n: STREAM as u32, shared: shared(STREAM * 4), ..run };
            assert_same(run, &[], on_both(&device, ptx, run, &input), |_| Kind::Bits);
        }
    }
}

#[test]
fn memory_of_the_kernels_is_that_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        let input = cases::random(THREADS * 8, seed);
        for run in [Run { shared: shared(THREADS * 32), ..Run::new("shared_words", 19) }, Run::new("memory", 28)] {
            assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::Bits);
        }
        let input = cases::random(THREADS, 100 + seed);
        let run = Run { shared: shared(256), ..Run::new("shared_sums", 3) };
        assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::Bits);
        let run = Run::new("arrivals", 4);
        // The order of arrival is unspecified.
        let sorted = on_both(&device, ptx, run, &input).map(|mut found| {
            let mut ranks: Vec<u32> = found.iter().skip(1).step_by(4).copied().collect();
            ranks.sort_unstable();
            found.iter_mut().skip(1).step_by(4).zip(ranks).for_each(|(word, rank)| *word = rank);
            found
        });
        assert_same(run, &input, sorted, |_| Kind::Bits);
    }
}

#[test]
fn copies_of_the_kernels_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for (mode, seed) in (0..6).flat_map(|mode| (0..8).map(move |seed| (mode, seed))) {
        let input = cases::slots(seed);
        let run = Run { mode, n: SLOTS as u32, shared: shared(cases::COPIES), ..Run::new("copies", 1) };
        assert_same(run, &[], on_both(&device, ptx, run, &input), |_| Kind::Bits);
    }
}

#[test]
fn products_of_matrices_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for (mode, seed) in (0..modes(&device)).flat_map(|mode| (0..8).map(move |seed| (mode, seed))) {
        let run = Run { mode, ..Run::new("products", 4) };
        // Sums that f32 represents exactly do not depend on the order.
        let (_, input) = cases::small_matrices(mode, seed);
        assert_same(run, &input, on_both(&device, ptx, run, &input), |_| Kind::Bits);

        // Normal numbers of either sign, from 2^-8 to 2^8.
        let pair = |v: u32| {
            let of = |v: u32| match mode {
                0 => v & 0x83FF | (7 + (v >> 10 & 15)) << 10,
                _ => v & 0x807F | (119 + (v >> 7 & 15)) << 7,
            };
            of(v & 0xFFFF) | of(v >> 16) << 16
        };
        let input: Vec<u32> = (words(1280, 100 + seed).into_iter().enumerate())
            .map(|(i, v)| if i % 10 < 6 { pair(v) } else { ((v as i32 >> 8) as f32 / 256.0).to_bits() })
            .collect();
        // The scale of the error: the sum of the products' magnitudes.
        let sizes: Vec<u32> =
            (input.iter().enumerate()).map(|(i, v)| v & if i % 10 < 6 { 0x7FFF_7FFF } else { 0x7FFF_FFFF }).collect();
        let [gpu, emulated] = on_both(&device, ptx, run, &input);
        let [_, sizes] = on_both(&device, ptx, run, &sizes);
        for (i, ((g, e), size)) in gpu.into_iter().zip(emulated).zip(sizes).enumerate() {
            let [g, e, size] = [g, e, size].map(|v| f64::from(f32::from_bits(v)));
            // Each of 17 terms may lose its bits below 2^-23 of the largest on the GPU, and half of that in the
            // emulator.
            assert!((g - e).abs() <= size * 32.0 * 2f64.powi(-23), "mode {mode}, word {i}: {g}, not {e} (size {size})");
        }
    }
}

#[test]
fn products_of_whole_matrices_are_those_of_the_emulator() {
    let Some((device, _alone, ptx)) = selftest() else { return };
    for seed in 0..8 {
        for input in [words(1280, 200 + seed), cases::byte_matrices(seed)] {
            let [gpu, emulated] = on_both(&device, ptx, Run::new("whole_products", 4), &input);
            assert_eq!(gpu, emulated);
        }
    }
}
