//! Inputs for kernels of `cuda/selftest.cu`, which include all special cases in every run. The tests of this crate
//! compare the emulator's output with Rust's, `codec/tests/gpu_driver.rs` a GPU's with the emulator's.

use super::abi::{Divisor, TABLE_AT};

/// Threads of a block: four warps.
pub const THREADS: usize = 128;

/// Words of the stream that `takes` and `windows` read.
pub const STREAM: usize = 272;

/// Bytes of shared memory for a kernel that uses `used` bytes, from `TABLE_AT` on.
///
/// In the emulator a launch's shared memory begins at address 0, as on a GPU that reserves none of it. On other GPUs it
/// begins after the system's part, which ends at `TABLE_AT` at the latest, and it ends as many bytes later. So
/// everything that the kernel uses exists everywhere.
pub fn shared(used: usize) -> u32 {
    (TABLE_AT + used) as u32
}

/// Words from a known stream.
pub fn random(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB) as u32
    };
    // The upper bits are more random.
    (0..count).map(|_| next().rotate_left(16)).collect()
}

/// Repeats the input until whole thread blocks have `words` words per thread.
fn whole_blocks(input: &[u32], words: usize) -> Vec<u32> {
    let count = input.len().next_multiple_of(THREADS * words);
    input.iter().copied().cycle().take(count).collect()
}

/// Words that are special as f32, or for conversions from f32.
const FLOATS: [u32; 51] = [
    0x0000_0000, // 0
    0x8000_0000, // -0, and the smallest i32
    0x0000_0001, // the smallest above 0
    0x8000_0001,
    0x0000_0003,
    0x0040_0000, // half of the smallest that is normal
    0x007F_FFFF, // the largest that is not
    0x0080_0000, // the smallest that is
    0x8080_0001,
    0x1A00_0000, // 2^-75: its square is half of the smallest above 0,
    0x1A00_0001, // and that of this one more than half
    0x1F80_0000, // 2^-64
    0x3380_0000, // 2^-24: half of a unit of the last place of 1 ...
    0x3380_0001, // ... and a little more
    0xB380_0000,
    0x3F7F_FFFF, // just below 1
    0x3F80_0000, // 1
    0xBF80_0000, // -1
    0x3F80_0001, // just above 1
    0x4000_0000, // 2
    0x4040_0000, // 3
    0xC0E0_0000, // -7
    0x3EAA_AAAB, // a third
    0x5F7F_FFFF, // its square is just below infinity
    0x5F80_0000, // and that of this one is infinite
    0x7F7F_FFFF, // the largest
    0xFF7F_FFFF,
    0x7F80_0000, // infinity
    0xFF80_0000,
    0x7FC0_0000, // no number
    0xFFFF_FFFF,
    0x7F80_0001,
    0x3F80_1000, // between two f16, the lower of which is even
    0x3F80_3000, // the higher
    0x3F80_8000, // between two bf16, the lower of which is even
    0xBF81_8000, // the higher
    0x32FF_FFFF, // just below half of the smallest f16 above 0,
    0x3300_0000, // just as much,
    0x3300_0001, // and just more
    0xB3C0_0000, // between two f16 that are not normal, the higher of which is even
    0x387F_E000, // between the largest f16 that is not normal and the smallest that is
    0x477F_EFFF, // 65519.99: the last below what is infinite as f16
    0x477F_F000, // 65520
    0x0100_0001, // as i32: 2^24 + 1, between two floats, the lower of which is even
    0x0100_0003, // the higher
    0xFEFF_FFFF, // -2^24 - 1
    0x7FFF_FFBF, // just below what becomes 2^31
    0x7FFF_FFC0, // the least that does
    0x7FFF_FFFF, // the largest
    0x8000_0040, // what becomes -2^31
    0x8000_0041, // what does not
];

/// For `floats`: all pairs of special words with a third one, then random ones.
pub fn floats(seed: u64) -> Vec<u32> {
    let count = FLOATS.len();
    let mut input = Vec::new();
    for (i, j) in (0..count).flat_map(|i| (0..count).map(move |j| (i, j))) {
        input.extend([FLOATS[i], FLOATS[j], FLOATS[(i + 7 * j + seed as usize) % count]]);
    }
    // Products that f32 cannot represent: the remainder of one, and one between two floats with a much smaller addend.
    let whole = |v: u32| (v as f32).to_bits();
    for c in [0x2180_0000, 0xA180_0000, 0, 0x3F80_0000] {
        input.extend([whole(97), whole(172_961), c]);
        input.extend([whole(97), whole(172_961) | 1 << 31, c]);
    }
    input.extend([0x3F80_0001, 0x3F80_0001, 0xBF80_0002]);
    input.extend([0x3F80_0001, 0xBF80_0001, 0x3F80_0002]);
    // Random words of all magnitudes, and of similar ones.
    for words in random(3 * 1000, seed).chunks_exact(3) {
        input.extend_from_slice(words);
        input.extend(words.iter().map(|v| v & 0x83FF_FFFF | 0x3C00_0000));
    }
    whole_blocks(&input, 3)
}

/// For `digits`: a value to round, less than 2^21 in magnitude, and a power of two as its factor.
pub fn digits(seed: u64) -> Vec<u32> {
    // Values that f16 and bf16 can have, with 11 and 8 bits.
    const WHOLE: [f32; 14] =
        [0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 0.498, 127.5, 128.0, -128.5, 32_768.0, -32_896.0, 2_096_128.0, -2_096_128.0];
    let mut input = Vec::new();
    for (i, x) in WHOLE.into_iter().enumerate() {
        let x = f32::from_bits(x.to_bits() & !0x1FFF);
        let power = (i as i32 * 37 + seed as i32 * 11) % 140;
        // A factor is itself an f32, up to 2^127; elements go down to subnormal bf16.
        let factor = f32::from_bits(((power - 13 + 127) as u32) << 23);
        input.extend([(x / factor).to_bits(), factor.to_bits()]);
    }
    for largest in [2f32.powi(127), 2f32.powi(80)] {
        input.extend([0x0001_0000, largest.to_bits(), 0x807F_0000, largest.to_bits()]);
    }
    for v in random(300, seed) {
        let x = f32::from_bits(v & 0x807F_E000 | (115 + (v & 31)) << 23);
        input.extend([x.to_bits(), 1f32.to_bits(), (x * 4096.0).to_bits(), 2f32.powi(-12).to_bits()]);
    }
    // Not a finite element: its digits are meaningless, but must do no further harm.
    input.extend([f32::INFINITY.to_bits(), 1f32.to_bits(), f32::NAN.to_bits(), 1f32.to_bits()]);
    whole_blocks(&input, 2)
}

/// For `powers`: from -104, where e^x is 0, to 89, where it is infinite, including both transitions.
pub fn powers() -> Vec<u32> {
    let special = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x3380_0000,
        0xC2AE_AC50, // results that are no longer normal
        0xC2CE_8ED0, // below half of the smallest above 0
        0xC2CF_F1B4,
        0xC2CF_F1B5,
        0x42B1_7217, // the last that is finite
        0x42B1_7218,
        0x7149_F2CA, // 1e30
        0xF149_F2CA,
        0x7F80_0000,
        0xFF80_0000,
        0x7FC0_0000,
    ];
    let steps = 2000;
    let even = (0..=steps).map(|i| (-104.0 + 193.0 * i as f32 / steps as f32).to_bits());
    whole_blocks(&special.into_iter().chain(even).collect::<Vec<_>>(), 1)
}

/// Whether `found` is e^v within two units in the last place.
pub fn is_power(v: f32, found: f32) -> bool {
    let exact = f64::from(v).exp();
    if exact.is_nan() || v.is_infinite() {
        return found.is_nan() && exact.is_nan() || f64::from(found) == exact;
    }
    // Beyond the largest float, as if the range continued.
    let found = if found == f32::INFINITY { 2f64.powi(128) } else { found.into() };
    let exact = exact.min(2f64.powi(128));
    let exponent = (exact.to_bits() >> 52) as i32 - 1023;
    (found - exact).abs() <= 2.0 * 2f64.powi(exponent.clamp(-126, 127) - 23)
}

/// For `pairs`: sums as products with 16-bit floats form them from bytes, sums of special numbers, and random ones.
pub fn pairs(mode: u32, seed: u64) -> Vec<u32> {
    // Half of the number added to a byte, twice; and the number that the byte is inserted into.
    let (less, ones): (u32, u32) = if mode == 0 { (0xE3FF_E3FF, 0x6400) } else { (0xC2FF_C2FF, 0x4300) };
    let mut input = Vec::new();
    for v in 0..256 {
        input.extend([less, (ones + v) | (ones + 255 - v) << 16]);
    }
    // 0, the smallest number above it, the largest subnormal and its neighbour, 1 and its neighbours, the largest
    // number, infinity, NaN ...
    let common: [u32; 10] = if mode == 0 {
        [0, 1, 0x3FF, 0x400, 0x3BFF, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7E01]
    } else {
        [0, 1, 0x7F, 0x80, 0x3F7F, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC1]
    };
    // ... and numbers of which one is half of the other's last place, or slightly more, or slightly less.
    let halves: [u32; 6] = if mode == 0 {
        [0x7800, 0x7801, 0x4C00, 0x4C01, 0x4BFF, 0x1000]
    } else {
        [0x7F00, 0x7F01, 0x7B00, 0x7B01, 0x7AFF, 0x3B80]
    };
    let special: Vec<u32> = common.into_iter().chain(halves).flat_map(|v| [v, v | 0x8000]).collect();
    let count = special.len();
    for (i, j) in (0..count).flat_map(|i| (0..count).map(move |j| (i, j))) {
        input.extend([special[i] | special[j] << 16, special[j] | special[(i + j + seed as usize) % count] << 16]);
    }
    input.extend(random(1000, seed));
    whole_blocks(&input, 2)
}

/// Divisors for `integers`.
pub fn divisors() -> Vec<u32> {
    (0..=31).map(|k| 1 << k).chain([3, 5, 7, 10, 641, 65_535, 65_537, (1 << 30) - 1, i32::MAX as u32]).collect()
}

/// For `integers`. Every third warp has only numbers from 2^31 on, and every third has none.
pub fn integers(seed: u64) -> Vec<u32> {
    const BELOW: u32 = i32::MAX as u32;
    let mut input = Vec::new();
    for (i, d) in divisors().into_iter().enumerate() {
        let most = BELOW / d * d;
        let random = random(18, 1000 * seed + i as u64);
        for (j, n) in [0, 1, d - 1, d, most.wrapping_sub(1), most, BELOW, random[0] >> (1 + i % 20), random[1]]
            .into_iter()
            .enumerate()
        {
            let thread = input.len() / 4;
            let a = match thread / 32 % 3 {
                0 => n & BELOW | 1 << 31,
                1 => n & BELOW,
                _ => n,
            };
            // Halves that are equal, among others.
            let b = match thread % 7 {
                0 => a,
                1 => a ^ 0x8000_0000,
                2 => a ^ 1,
                3 => u32::MAX,
                4 => 0,
                _ => random[2 + j],
            };
            let by = Divisor::new(d);
            input.extend([a, b, by.factor, by.shift]);
        }
    }
    whole_blocks(&input, 4)
}

/// For `takes`: the stream; and for each thread the end of its warp's words, and its `x`. Each run includes steps in
/// which no lane takes a word, all do, some, one, or the same ones again. Nothing may depend on the bytes after the
/// end.
pub fn takes(seed: u64) -> Vec<u32> {
    let mut input = random(STREAM, seed);
    let draws = random(THREADS * 4, seed + 50);
    let x = |t: usize, round: usize| {
        let (v, lane) = (draws[t * 4 + round], t % 32);
        match (t / 32 + round + seed as usize) % 4 {
            0 => [0x1_0000, u32::MAX, v | 0x1_0000][lane % 3],
            1 => [0, 0xFFFF, v & 0xFFFF][lane % 3],
            2 => [0, 0xFFFF, 0x1_0000, v][v as usize >> 3 & 3],
            _ if lane == 31 => 0xFFFF,
            _ => u32::MAX - v % 9,
        }
    };
    // A lane that shifts a word into 0 takes the next one, too.
    let taken = |x: u32| u32::from(x < 0x1_0000) + u32::from(x == 0);
    for warp in 0..THREADS / 32 {
        let lanes = warp * 32..warp * 32 + 32;
        let words: u32 =
            lanes.clone().flat_map(|t| (0..4).map(move |round| (t, round))).map(|(t, r)| taken(x(t, r))).sum();
        for t in lanes {
            input.push(TABLE_AT as u32 + warp as u32 * 66 + 2 * words);
            input.extend((0..4).map(|round| x(t, round)));
        }
    }
    input
}

/// For `windows`: the stream, and for each thread whether it advances, at each step: all lanes alike, or each
/// separately.
pub fn windows(seed: u64) -> Vec<u32> {
    let mut input = random(STREAM, seed);
    for (i, v) in random(THREADS * 6, seed + 60).into_iter().enumerate() {
        let on = [0, 32, 1, 0x8000_0000, 0, 32];
        input.push(match (i / 6 / 32 + i % 6) % 4 {
            0 => 0,
            1 => 32,
            _ => on[v as usize % 6],
        });
    }
    input
}

/// Slots that `copies` copies: each barrier goes through more than four phases.
pub const SLOTS: usize = 43;

/// Bytes of shared memory that `copies` uses: two buffers and two barriers per warp.
pub const COPIES: usize = THREADS / 32 * (2 * 4096 + 16);

/// The input of `copies`.
pub fn slots(seed: u64) -> Vec<u32> {
    random((SLOTS - 1) * 260 + 1024, seed)
}

/// Matrices of small integers for `products`: for each lane eight numbers of A, four of B and four of c, as integers,
/// and in the kernel's encoding as f16 (mode 0) or bf16 (mode 1). Every partial sum is exact in f32, in any order.
pub fn small_matrices(mode: u32, seed: u64) -> (Vec<i32>, Vec<u32>) {
    let half = |v: i32| {
        let bits = (v as f32).to_bits();
        // As f16, the exponent is 112 less, and the mantissa 13 bits shorter. Numbers are below 2^8.
        if mode == 1 || v == 0 { bits >> 16 } else { bits >> 16 & 0x8000 | ((bits & 0x7FFF_FFFF) - (112 << 23)) >> 13 }
    };
    let (mut numbers, mut words) = (Vec::new(), Vec::new());
    for (t, draws) in random(THREADS * 16, seed).chunks_exact(16).enumerate() {
        let lane: Vec<i32> = (draws.iter().enumerate())
            .map(|(i, &v)| match (t / 32, i) {
                // All equal, at their largest: sums become 0.
                (0, ..8) => -128,
                (0, ..12) => 128,
                (0, _) => 1 << 18,
                // Many zeros.
                (1, ..12) => {
                    if v % 3 == 0 {
                        (v >> 8) as i32 % 129
                    } else {
                        0
                    }
                }
                (_, ..12) => (v >> 8) as i32 % 257 - 128,
                _ => (v >> 8) as i32 % (1 << 19) - (1 << 18),
            })
            .collect();
        words.extend(lane[..12].chunks_exact(2).map(|pair| half(pair[0]) | half(pair[1]) << 16));
        words.extend(lane[12..].iter().map(|&v| (v as f32).to_bits()));
        numbers.extend(lane);
    }
    (numbers, words)
}

/// Matrices of bytes for `whole_products`: -128 everywhere, -128 times 127, and random ones. Sums overflow i32 at both
/// ends.
pub fn byte_matrices(seed: u64) -> Vec<u32> {
    let mut input = random(THREADS * 10, seed);
    for (t, lane) in input.chunks_exact_mut(10).enumerate() {
        let ends = [0x7FFF_FFFF, 0x8000_0000, 0x7FF8_0000, 0xFFFF_FFFF];
        match t / 32 {
            0 => lane[..6].fill(0x8080_8080),
            1 => (lane[..4].fill(0x8080_8080), lane[4..6].fill(0x7F7F_7F7F)).1,
            _ => continue,
        }
        lane[6..].copy_from_slice(&ends);
    }
    input
}
