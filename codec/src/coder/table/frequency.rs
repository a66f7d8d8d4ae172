//! Frequencies of coder `rans`.

use crate::coder::histogram::{Histogram, SYMBOLS};
use crate::error::Result;

/// Frequencies that add up to 2^bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequencyTable {
    bits: u32,
    freq: Box<[u16; SYMBOLS]>,
}

impl FrequencyTable {
    /// Scales `histogram` to 2^`bits` slots at the least cost; every symbol that occurs gets at least one slot.
    pub fn from_histogram(bits: u32, histogram: &Histogram) -> Self {
        let slots = 1u32 << bits;
        let total: u64 = histogram.iter().sum();
        let mut freq = [0u16; SYMBOLS];
        if total == 0 {
            freq[0] = 1;
        }
        for (f, &n) in freq.iter_mut().zip(histogram).filter(|(_, n)| **n > 0) {
            let exact = n as f64 * f64::from(slots) / total as f64;
            *f = (exact.round() as u16).clamp(1, (slots - 1) as u16);
        }
        let mut sum: u32 = freq.iter().map(|&f| u32::from(f)).sum();
        // Rounding leaves a few slots too many or too few: moves them where that costs the fewest bits.
        while sum != slots {
            let grow = sum < slots;
            let cost = |s: usize| {
                let (n, f) = (histogram[s] as f64, f64::from(freq[s]));
                if grow { n * (f / (f + 1.0)).log2() } else { n * (f / (f - 1.0)).log2() }
            };
            let best = (0..SYMBOLS)
                .filter(|&s| freq[s] > 0 && if grow { u32::from(freq[s]) < slots - 1 } else { freq[s] > 1 })
                .min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            match best {
                Some(s) if grow => freq[s] += 1,
                Some(s) => freq[s] -= 1,
                // A lone symbol has all slots but one; the format requires two symbols, so another one gets the last.
                None => freq[usize::from(freq[0] > 0)] = 1,
            }
            sum = if grow { sum + 1 } else { sum - 1 };
        }
        Self { bits, freq: Box::new(freq) }
    }

    /// Reads 256 u16.
    pub fn from_bytes(bits: u32, bytes: &[u8]) -> Result<Self> {
        if bytes.len() != 2 * SYMBOLS {
            return Err(coded!(BAD_TABLE, "a rans table has 512 bytes, not {}", bytes.len()));
        }
        let freq: [u16; SYMBOLS] = std::array::from_fn(|s| u16::from_le_bytes([bytes[2 * s], bytes[2 * s + 1]]));
        let (sum, slots) = (freq.iter().map(|&f| u32::from(f)).sum::<u32>(), 1u32 << bits);
        if sum != slots || freq.iter().any(|&f| u32::from(f) >= slots) {
            return Err(coded!(BAD_TABLE, "the frequencies of a rans table add up to {sum}, not {slots}"));
        }
        Ok(Self { bits, freq: Box::new(freq) })
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.freq.iter().flat_map(|f| f.to_le_bytes()).collect()
    }

    /// log2 of the slots.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Frequencies, by symbol.
    pub fn frequencies(&self) -> &[u16; SYMBOLS] {
        &self.freq
    }

    /// First slot of each symbol.
    pub fn starts(&self) -> [u16; SYMBOLS] {
        let mut sum = 0;
        self.freq.map(|f| {
            let start = sum;
            sum += f;
            start
        })
    }

    /// Bits that one `symbol` takes; infinite where it is missing.
    pub fn cost(&self, symbol: usize) -> f64 {
        f64::from(self.bits) - f64::from(self.freq[symbol]).log2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_histogram_gives_a_table_that_reads_back(
            counts in prop::collection::vec(prop_oneof![Just(0u64), 1..4u64, 1..1_000_000_000u64], SYMBOLS),
            bits in 11u32..13,
        ) {
            let h: Histogram = counts.try_into().unwrap();
            let t = FrequencyTable::from_histogram(bits, &h);
            prop_assert_eq!(&FrequencyTable::from_bytes(bits, &t.to_bytes()).unwrap(), &t);
            for s in 0..SYMBOLS {
                prop_assert!(h[s] == 0 || t.freq[s] > 0);
            }
        }
    }

    #[test]
    fn lone_symbols_leave_one_slot_to_another() {
        for s in [0usize, 7, 255] {
            let mut h = [0; SYMBOLS];
            h[s] = 1000;
            let t = FrequencyTable::from_histogram(12, &h);
            assert_eq!(t.freq[s], 4095);
            assert!(FrequencyTable::from_bytes(12, &t.to_bytes()).is_ok());
        }
        assert!(FrequencyTable::from_bytes(12, &FrequencyTable::from_histogram(12, &[0; 256]).to_bytes()).is_ok());
    }

    #[test]
    fn tables_that_do_not_add_up_are_refused() {
        let good = FrequencyTable::from_histogram(12, &[3; SYMBOLS]).to_bytes();
        for (i, change) in [(0, 1u8), (511, 0x10), (100, 0x80)] {
            let mut bad = good.clone();
            bad[i] ^= change;
            assert!(FrequencyTable::from_bytes(12, &bad).is_err());
        }
        assert!(FrequencyTable::from_bytes(11, &good).is_err());
        assert!(FrequencyTable::from_bytes(12, &good[1..]).is_err());
        let mut lone = vec![0; 512];
        lone[1] = 0x10;
        assert!(FrequencyTable::from_bytes(12, &lone).is_err(), "one symbol with all 4,096 slots");
    }
}
