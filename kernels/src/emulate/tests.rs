//! The kernels of `cuda/selftest.cu`: each primitive, and each mistake that the emulator must detect. Also those of
//! `cuda/plain.cu`.

mod arithmetic;
mod cases;
mod memory;
mod plain;

use super::{Buffer, Launch, Range};
use crate::abi;

struct SelfTest {
    input: Buffer,
    output: Buffer,
    mode: u32,
    n: u32,
}

impl SelfTest {
    fn new(input: &[u32], outputs: usize) -> SelfTest {
        let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_ne_bytes()).collect();
        SelfTest { input: Buffer::from(&bytes[..]), output: Buffer::new(outputs * 4), mode: 0, n: 0 }
    }

    fn run(&mut self, launch: &Launch<'_>) -> Result<Vec<u32>, String> {
        let mut params = [self.input.address(), self.output.address()].map(u64::to_ne_bytes).concat();
        params.extend([self.mode, self.n].map(u32::to_ne_bytes).concat());
        launch.run(&params, &[Range::read(&self.input), Range::write(&mut self.output)])?;
        Ok(self.output.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect())
    }
}

fn launch(kernel: &str) -> Launch<'_> {
    Launch::selftest(kernel)
}

/// Numbers from a known stream, including special floats.
fn numbers(count: usize) -> Vec<u32> {
    const SPECIAL: [u32; 12] = [
        0,
        0x8000_0000,
        0x7F80_0000,
        0xFF80_0000,
        0x7FC0_0001,
        0x3F80_1000,
        0x3F80_3000,
        0x477F_F000,
        0x3300_0000,
        0x3300_0001,
        0x387F_F000,
        0x3F80_8000,
    ];
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 32) as u32
    };
    (0..count).map(|i| if i % 5 == 0 { SPECIAL[i / 5 % SPECIAL.len()] } else { next() }).collect()
}

fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let pick = |i: u32| {
        let s = selector >> (4 * i);
        let byte = bytes[s as usize & 7];
        if s & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

/// The 16-bit float nearest to `value`, ties to even, found by searching all of them, independently of any rounding
/// code.
fn nearest(value: f64, widen: impl Fn(u16) -> f64, infinity: u16, beyond: f64) -> u16 {
    let (size, sign) = (value.abs(), ((value.to_bits() >> 63) as u16) << 15);
    if value.is_nan() {
        return 0x7FFF;
    }
    if size >= beyond {
        return sign | infinity;
    }
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = u16::midpoint(low, high);
        if widen(middle) <= size { low = middle } else { high = middle }
    }
    let (below, above) = (widen(low), if high == infinity { beyond * 2.0 - widen(low) } else { widen(high) });
    let up = size - below > above - size || (size - below == above - size && low % 2 == 1);
    sign | if up { high } else { low }
}

/// The value of 16 bits as f16.
fn value_of_f16(h: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(h >> 10 & 31), f64::from(h & 0x3FF));
    let size = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if h >> 15 == 1 { -size } else { size }
}

/// The value of 16 bits as bf16.
fn value_of_bf16(h: u16) -> f64 {
    f32::from_bits(u32::from(h) << 16).into()
}

fn nearest_f16(value: f64) -> u32 {
    nearest(value, value_of_f16, 0x7C00, 65520.0).into()
}

fn nearest_bf16(value: f64) -> u32 {
    nearest(value, value_of_bf16, 0x7F80, 2f64.powi(128) - 2f64.powi(119)).into()
}

fn f16(bits: u32) -> u32 {
    nearest_f16(f32::from_bits(bits).into())
}

fn bf16(bits: u32) -> u32 {
    nearest_bf16(f32::from_bits(bits).into())
}

#[test]
fn primitives_give_what_a_gpu_gives() {
    let (grid, threads) = (3, 96);
    let input = numbers(grid * threads);
    for seed in [0, 1, 2, 77] {
        let mut test = SelfTest::new(&input, input.len() * 16);
        let launch = launch("primitives").grid(grid as u32).threads(threads as u32).seed(seed);
        test.output.fill(0xEE);
        let output = test.run(&launch).unwrap();
        for (i, (&v, out)) in input.iter().zip(output.chunks_exact(16)).enumerate() {
            let (warp, lane) = (&input[i / 32 * 32..][..32], i % 32);
            let ballot = (0..32).map(|l| (warp[l] & 1) << l).sum::<u32>();
            let wide = u64::from(!v) << 32 | u64::from(v);
            let product = f32::from_bits(v) * f32::from_bits(v ^ 0x12345);
            assert_eq!(out[0], ballot);
            assert_eq!(out[1], warp[v as usize % 32]);
            assert_eq!(out[2], if lane < 3 { v } else { warp[lane - 3] });
            assert_eq!(out[3], v.count_ones());
            assert_eq!(out[4], prmt(v, !v, v >> 7));
            assert_eq!(out[5], (wide >> (v % 32)) as u32);
            assert_eq!(out[6], (wide << (v % 32) >> 32) as u32);
            assert_eq!(out[7], f16(v) | f16(!v) << 16, "{v:08x}");
            assert_eq!(out[8], bf16(v) | bf16(!v) << 16, "{v:08x}");
            assert!(out[9] == product.to_bits() || product.is_nan());
            assert_eq!(out[10], v);
            assert_eq!(out[11], 0xEEEE_00EE | (v & 0xFF) << 8);
            assert_eq!(out[12], v);
            assert_eq!(out[13], 3 << 16 | 96);
            assert_eq!(
                out[14],
                if lane == 0 {
                    5
                } else if lane == 1 {
                    15
                } else {
                    0xEEEE_EEEE
                }
            );
            assert_eq!(out[15], 0xEEEE_EEEE);
        }
    }
}

#[test]
fn what_the_launch_before_may_write_is_not_touched_before_it_has_ended() {
    let input = numbers(32);
    let mut test = SelfTest::new(&input, 32 * 16);
    // One kernel waits first, and the other one never does.
    test.run(&launch("primitives").overlaps(true)).unwrap();
    test.run(&launch("words")).unwrap();
    let message = test.run(&launch("words").overlaps(true)).unwrap_err();
    assert!(message.contains("store of 4 bytes at") && message.contains("before overlap_wait"), "{message}");
}

#[test]
fn words_give_what_a_gpu_gives() {
    let (grid, threads) = (2, 96);
    let input = numbers(grid * threads);
    let mut test = SelfTest::new(&input, input.len() * 8);
    let output = test.run(&launch("words").grid(grid as u32).threads(threads as u32)).unwrap();
    for (i, (&v, out)) in input.iter().zip(output.chunks_exact(8)).enumerate() {
        let warp = &input[i / 32 * 32..][..32];
        let (a, b) = (v.rotate_left(11), v.wrapping_mul(0x9E37_79B1));
        // Bit by bit, as the truth tables of the words are evaluated.
        let bitwise = |mask: u32, a: u32, b: u32, of: fn(u32, u32, u32) -> u32| {
            (0..32).map(|i| of(mask >> i & 1, a >> i & 1, b >> i & 1) << i).sum::<u32>()
        };
        let choose = |mask, a, b| bitwise(mask, a, b, |mask, a, b| if mask == 1 { a } else { b });
        let differ = |mask, a, b| bitwise(mask, a, b, |mask, a, b| u32::from(mask == 1 && a != b));
        let signs = b.to_le_bytes().map(|b| if b >= 0x80 { 0xFF } else { 0 });
        assert_eq!(out[0], choose(v, a, b));
        assert_eq!(out[1], differ(v, a, b));
        assert_eq!(out[2], choose(0x0C0C_0C0C, a, b));
        assert_eq!(out[3], differ(0xFCFC_FCFC, a, u32::from_le_bytes(signs)));
        assert_eq!(out[4], warp[..=i % 32].iter().fold(0, |sum: u32, v| sum.wrapping_add(*v)));
        assert_eq!(out[5], (a & 0xFFFF).max(b & 0xFFFF) | (a >> 16).max(b >> 16) << 16);
        assert_eq!(Some(&out[6]), warp.iter().max());
        assert_eq!(out[7] as i32, warp.iter().map(|&v| v as i32 >> 5).sum());
    }
}

/// The position of an element in the matrices of `mma_f16`: (row, column) of register `r` of a lane, lower or upper
/// half.
fn place_in_a(lane: usize, r: usize, half: usize) -> (usize, usize) {
    (lane / 4 + r % 2 * 8, lane % 4 * 2 + r / 2 * 8 + half)
}

fn place_in_b(lane: usize, r: usize, half: usize) -> (usize, usize) {
    (lane % 4 * 2 + r * 8 + half, lane / 4)
}

fn place_in_c(lane: usize, r: usize) -> (usize, usize) {
    (lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2)
}

#[test]
fn products_of_matrices_are_those_of_the_reals() {
    let widen = [value_of_f16, value_of_bf16];
    // Every finite f16, and bf16 of magnitudes from 2^-7 to 2^9, so that sums stay finite.
    let draw = [
        |v: u32| if v >> 10 & 31 == 31 { v as u16 & 0xBFFF } else { v as u16 },
        |v: u32| (v & 0x807F | (120 + (v >> 16 & 15)) << 7) as u16,
    ];
    let warps = 6;
    let random = numbers(warps * (16 * 16 + 16 * 8 + 16 * 8));
    for mode in 0..2 {
        for seed in [0, 1, 6] {
            let mut matrices = Vec::new();
            let mut input = Vec::new();
            for words in random.chunks(512) {
                let a: Vec<u16> = words[..256].iter().map(|&v| draw[mode](v)).collect();
                let b: Vec<u16> = words[256..384].iter().map(|&v| draw[mode](v >> 3)).collect();
                let c: Vec<f32> = words[384..].iter().map(|&v| (v >> 8) as f32 / 65536.0 - 100.0).collect();
                for lane in 0..32 {
                    let pair = |at: &dyn Fn(usize) -> u16| u32::from(at(0)) | u32::from(at(1)) << 16;
                    let of_a = |r, half| {
                        let (row, col) = place_in_a(lane, r, half);
                        a[row * 16 + col]
                    };
                    let of_b = |r, half| {
                        let (row, col) = place_in_b(lane, r, half);
                        b[row * 8 + col]
                    };
                    input.extend((0..4).map(|r| pair(&|half| of_a(r, half))));
                    input.extend((0..2).map(|r| pair(&|half| of_b(r, half))));
                    input.extend((0..4).map(|r| {
                        let (row, col) = place_in_c(lane, r);
                        c[row * 8 + col].to_bits()
                    }));
                }
                matrices.push((a, b, c));
            }
            let mut test = SelfTest::new(&input, warps * 32 * 4);
            test.mode = mode as u32;
            let output = test.run(&launch("products").grid(3).threads(64).seed(seed)).unwrap();
            for (i, &bits) in output.iter().enumerate() {
                let (a, b, c) = &matrices[i / 128];
                let (row, col) = place_in_c(i / 4 % 32, i % 4);
                let terms = |k: usize| widen[mode](a[row * 16 + k]) * widen[mode](b[k * 8 + col]);
                let (mut sum, mut size) = (f64::from(c[row * 8 + col]), f64::from(c[row * 8 + col].abs()));
                for k in 0..16 {
                    sum += terms(k);
                    size += terms(k).abs();
                }
                let error = (f64::from(f32::from_bits(bits)) - sum).abs();
                // Sixteen additions, each to the nearest f32.
                assert!(error <= size * 16.0 * 2f64.powi(-24), "mode {mode}, word {i}: {error} of {sum}, {size}");
            }
        }
    }
}

#[test]
fn products_of_whole_matrices_are_exact() {
    for seed in [0, 1, 6] {
        let input = cases::byte_matrices(seed);
        let output = SelfTest::new(&input, cases::THREADS * 4)
            .run(&launch("whole_products").grid(2).threads(cases::THREADS as u32 / 2).seed(seed))
            .unwrap();
        for (i, &found) in output.iter().enumerate() {
            let (warp, lane, r) = (i / 128, i / 4 % 32, i % 4);
            let word = |lane: usize, at: usize| input[(warp * 32 + lane) * 10 + at];
            let byte = |word: u32, i: usize| i32::from(word.to_le_bytes()[i] as i8);
            let (row, col) = place_in_c(lane, r);
            let a = |k: usize| byte(word(row % 8 * 4 + k % 16 / 4, row / 8 + k / 16 * 2), k % 4);
            let b = |k: usize| byte(word(col * 4 + k % 16 / 4, 4 + k / 16), k % 4);
            let sum: i32 = (0..32).map(|k| a(k) * b(k)).sum();
            assert_eq!(found, word(lane, 6 + r).wrapping_add(sum as u32), "word {i}");
        }
    }
}

#[test]
fn blocks_reverse_through_shared_memory() {
    let (grid, threads) = (2, 1024);
    let input = numbers(grid * threads * 4);
    for seed in [0, 5] {
        let launch = launch("reverse").grid(grid as u32).threads(threads as u32).shared(threads as u32 * 16).seed(seed);
        let output = SelfTest::new(&input, input.len()).run(&launch).unwrap();
        for (a, b) in input.chunks(threads * 4).zip(output.chunks(threads * 4)) {
            assert!(a.iter().rev().eq(b), "seed {seed}");
        }
    }
}

#[test]
fn warps_diverge_and_end_early() {
    let threads = 256u32;
    for seed in 0..8 {
        let mut test = SelfTest::new(&[], threads as usize);
        let output = test.run(&launch("uneven").threads(threads).shared(threads * 4).seed(seed)).unwrap();
        let sum = |warp: u32| {
            let count = |i: u32| (0..32u32).filter(|lane| (lane + i).is_multiple_of(3)).count() as u32 + i % 32;
            (0..=warp * 3).map(count).sum::<u32>()
        };
        let total: u32 = (0..threads / 32).filter(|w| w % 4 != 3).map(sum).sum();
        for t in 0..threads {
            let warp = t / 32;
            assert_eq!(output[t as usize], if warp % 4 == 3 { sum(warp) } else { total }, "thread {t}, seed {seed}");
        }
    }
}

#[test]
fn each_mistake_is_found() {
    // Mode, number, threads, part of the message.
    let cases = [
        (0, 4096, 32, "load of 4 bytes at 4096 is outside the 4096 bytes of shared memory"),
        (0, 4094, 32, "outside the 4096 bytes"),
        (0, 4095, 32, "outside the 4096 bytes"),
        (0, u32::MAX - 3, 32, "outside the 4096 bytes"),
        (0, 4090, 32, "load of 4 bytes at 4090 in shared memory is misaligned"),
        (1, 4096, 32, "store of 1 bytes at 4096 is outside"),
        (2, 7, 32, "misaligned"),
        (3, 4096, 32, "load of 4 bytes at byte 4096 of range 0, which has 4096 bytes"),
        (4, 256, 32, "store of 1 bytes at byte 256 of range 1, which has 256 bytes"),
        (5, 0, 32, "store of 4 bytes at byte 0 of range 0, which is read-only"),
        (6, 0, 32, "byte 0 of range 1, which the kernel may write"),
        (7, 4, 32, "near no range"),
        (8, 256, 32, "store of 4 bytes at byte 256 of range 1"),
        (9, 0, 32, "divergence: this lane is at syncwarp while lanes 0000ffff wait at ballot of selftest.cu:"),
        (10, 0, 32, "divergence: this lane is at ballot while lanes 0000ffff wait at ballot of selftest.cu:"),
        (11, 0, 32, "divergence"),
        (12, 0, 32, "divergence"),
        (13, 0, 64, "divergence: this warp is at another syncthreads than warps 00000001"),
        (14, 0, 32, "divergence: this lane is at ballot while lanes 0000ffff wait at syncthreads"),
        (15, 0, 32, "no copy_init for the barrier at 64"),
        (16, 0, 32, "no copy_init_fence after copy_init of the barrier at 64"),
        (17, 0, 32, "deadlock: thread 0 waits at selftest.cu:"),
        (18, 0, 32, "for copy 0 of the barrier at 64, which nobody starts"),
        (19, 0, 32, "has ended while a copy to 0 was in flight"),
        (20, 0, 32, "the copy before on the barrier at 64 was not waited for"),
        (21, 0, 32, "shared bytes 16 to 20 are the target of a copy in flight (barrier 64)"),
        (22, 0, 32, "shared bytes 0 to 1 are the target of a copy in flight"),
        (23, 0, 32, "a copy of 32 bytes to 4080 is outside the 4096 bytes"),
        (24, 0, 32, "load of 32 bytes at byte 4096 of range 0"),
        (25, 0, 32, "a copy to shared byte 4, which thread 0 stored to without a copy_fence since"),
        (26, 0, 32, "race: load from shared byte"),
        (27, 0, 32, "overwrites a barrier at 64"),
        (28, 0, 64, "race"),
        (29, 0, 32, "race: load from shared byte 8, which thread 4 wrote without a syncwarp"),
        (30, 0, 64, "race: store to shared byte 0, which several warps read since the last syncthreads"),
        (31, 0, 32, "race: store to shared byte 0, which thread 0 wrote"),
        (32, 0, 32, "load from shared byte 64, which belongs to a barrier"),
        (33, 0, 64, "race: no syncwarp or syncthreads since thread 0 initialised the barrier at 64"),
        (34, 0, 32, "misaligned"),
        (35, 0, 32, "shfl_up by 32 lanes"),
        (37, 0, 32, "race: load from shared byte 4, which a copy wrote that this thread has not waited for"),
        (40, 32, 32, "a shift by more bits than the number has"),
        (41, 4, 32, "an index outside of an array"),
        (42, 0, 32, "a division by zero"),
        (43, i32::MAX as u32, 32, "a signed addition overflows"),
        (44, 0, 32, "divergence: this lane has ended while lanes 0000ffff wait at mma"),
        (45, 0, 32, "a wait that lets 1 younger copies be, of 0 that were begun behind that to 0"),
    ];
    for (mode, n, threads, expected) in cases {
        for seed in [0, 3, 4] {
            let mut test = SelfTest::new(&[0; 1024], 64);
            (test.mode, test.n) = (mode, n);
            let launch = launch("mistakes").threads(threads).shared(4096).seed(seed);
            let message = test.run(&launch).expect_err(expected);
            // Other orders detect the same mistake elsewhere.
            assert!(message.contains(expected) || seed != 0, "mode {mode}: {message}");
            assert!(message.starts_with("kernel mistakes, block 0"), "{message}");
        }
    }
}

#[test]
fn no_mistake_is_made_up() {
    for (mode, n, threads) in [(36, 0, 64), (37, 1, 32), (99, 0, 1024)] {
        for seed in 0..8 {
            let mut test = SelfTest::new(&[0; 1024], 64);
            (test.mode, test.n) = (mode, n);
            let launch = launch("mistakes").threads(threads).shared(4096).seed(seed);
            assert_eq!(test.run(&launch).map(|_| ()), Ok(()), "mode {mode}, seed {seed}");
        }
    }
}

/// In a cluster an address in shared memory has its block's rank, and without it is another block's.
#[test]
fn addresses_of_other_blocks_are_refused() {
    let run = |mode: u32, n: u32, cluster: u32| {
        let mut test = SelfTest::new(&[0; 1024], 64);
        (test.mode, test.n) = (mode, n);
        test.run(&launch("mistakes").grid(2).threads(32).shared(4096).cluster(cluster)).map(drop)
    };
    // Loads and stores.
    for mode in [0, 1, 2] {
        assert_eq!(run(mode, 8, 1), Ok(()), "mode {mode}");
        for (address, block, other) in [(8, 1, 0), (1 << 24 | 8, 0, 1)] {
            let message = run(mode, address, 2).expect_err("one of the blocks has another rank");
            let expected = format!(
                "shared byte 8 of block {block} of the cluster, without whose rank in its address this is block {other}'s"
            );
            assert!(
                message.starts_with(&format!("kernel mistakes, block {block}")) && message.contains(&expected),
                "{message}"
            );
        }
    }
}

/// Blocks of a cluster store to each other's shared memory between two meetings.
#[test]
fn stores_to_other_blocks_are_ordered() {
    let run_with = |mode: u32, seed: u64, threads: u32| {
        let mut test = SelfTest::new(&[0; 1024], 64);
        test.mode = mode;
        test.run(&launch("mistakes").grid(2).threads(threads).shared(4096).cluster(2).seed(seed))
    };
    let run = |mode: u32, seed: u64| run_with(mode, seed, 32);
    for seed in 0..4 {
        // Two warps, each of which reads words of the other one.
        let words = run_with(56, seed, 64).unwrap();
        assert!(words.iter().all(|&word| word < 64), "seed {seed}");
        for mode in [54, 55] {
            let message = run_with(mode, seed, 64).expect_err("a race");
            assert!(message.contains("race: "), "mode {mode}, seed {seed}: {message}");
        }
        let expected = (0..64).map(|i| (i % 32) | ((i / 32) << 8)).collect::<Vec<u32>>();
        assert_eq!(run(50, seed), Ok(expected), "seed {seed}");
        for (mode, expected) in [
            (46, "a thread waits where the cluster meets, and has not arrived"),
            (47, "a thread arrives again where the cluster meets, and has not waited"),
            (48, "of the cluster, which that has used since it arrived"),
            (49, "race: "),
            (51, "a store to block 2 of a cluster of 2"),
            (52, "in shared memory is misaligned"),
            (53, "of the cluster, which belongs to a barrier"),
        ] {
            let message = run(mode, seed).expect_err(expected);
            assert!(message.contains(expected), "mode {mode}, seed {seed}: {message}");
        }
    }
}

#[test]
fn races_need_not_be_errors() {
    for mode in [28, 29, 30, 31] {
        let mut test = SelfTest::new(&[0; 1024], 64);
        test.mode = mode;
        test.run(&launch("mistakes").threads(64).shared(4096).races(false)).unwrap();
    }
}

#[test]
fn launches_that_no_gpu_takes_are_refused() {
    let run = |launch: Launch<'_>| SelfTest::new(&[0], 64).run(&launch).unwrap_err();
    assert_eq!(run(launch("none")), "no kernel none in this module");
    assert!(run(launch("mistakes").threads(33)).contains("not 33"));
    assert!(run(launch("mistakes").threads(0)).contains("not 0"));
    assert!(run(launch("mistakes").threads(1056)).contains("not 1056"));
    assert!(run(launch("mistakes").shared(300_000)).contains("300000 bytes of shared memory"));
    assert!(run(launch("mistakes").grid(0)).contains("without blocks"));
    let short = launch("mistakes").run(&[0; 16], &[]).unwrap_err();
    assert_eq!(short, "kernel mistakes takes 24 bytes of parameters, not 16");
}

#[test]
fn grids_run_on_several_threads_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(warps_diverge_and_end_early);
            scope.spawn(memory::copies_arrive_by_the_time_they_are_waited_for);
        }
    });
}

/// A ballot costs 32 switches; with a system call in each, tests of whole tensors would take hours.
#[test]
fn meetings_are_cheap() {
    let time = |kernel, n| {
        let mut test = SelfTest::new(&[], 1024);
        test.n = n;
        let begin = std::time::Instant::now();
        test.run(&launch(kernel).threads(256).shared(1024)).unwrap();
        begin.elapsed()
    };
    let ballot = time("ballots", 20_000) / (20_000 * 8);
    let load = time("loads", 2_000) / (2_000 * 256);
    println!("ballot of 32 lanes: {ballot:?}, load from shared memory: {load:?}");
    assert!(ballot.as_micros() < 20);
}
