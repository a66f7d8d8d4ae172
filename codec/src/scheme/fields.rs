//! The bits of an element that a plane holds: splits elements into planes and joins them again. `FORMAT.md` section 2.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Elements that are joined at once: few enough to stay in a core's cache.
const RUN: usize = 4096;

/// The bits of an element that a plane holds, as runs: the first run is the most significant part of the plane's
/// decoded values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(Vec<[u32; 2]>);

impl Fields {
    /// Runs of bits, each as its lowest bit and its width.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): they are not bits of an element, or their total is not whole
    /// bytes.
    pub fn new(runs: Vec<[u32; 2]>) -> Result<Self> {
        let bits = runs.iter().try_fold(0, |bits, &[lowest, width]| {
            let fits = width > 0 && lowest.checked_add(width).is_some_and(|end| end <= 64);
            Some(bits + if fits { width } else { 65 }).filter(|&bits| bits <= 64)
        });
        match bits {
            Some(bits) if bits > 0 && bits % 8 == 0 => Ok(Self(runs)),
            // The number of runs is unbounded.
            _ => {
                let shown = &runs[..runs.len().min(8)];
                Err(coded!(BAD_FIELDS, "'fields' {shown:?} are no whole bytes of an element"))
            }
        }
    }

    /// Runs that are known to be valid.
    pub(super) fn known(runs: &[[u32; 2]]) -> Self {
        Self(runs.to_vec())
    }

    /// Runs of bits: the lowest bit of each, and its width.
    pub fn runs(&self) -> &[[u32; 2]] {
        &self.0
    }

    /// The total of the bits, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|&[_, width]| width as usize).sum::<usize>() / 8
    }

    /// These bits, followed by those of `others`.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        Self(self.joined())
    }

    /// The runs, with adjacent ones merged.
    pub(crate) fn joined(&self) -> Vec<[u32; 2]> {
        let mut joined: Vec<[u32; 2]> = Vec::with_capacity(self.0.len());
        for &[lowest, width] in &self.0 {
            match joined.last_mut() {
                Some(last) if last[0] == lowest + width => *last = [lowest, last[1] + width],
                _ => joined.push([lowest, width]),
            }
        }
        joined
    }

    /// Each run: its lowest bit in the element, its lowest bit in the plane's decoded value, and a mask of its width.
    fn places(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        let mut above = 8 * self.bytes() as u32;
        self.0.iter().map(move |&[lowest, width]| {
            above -= width;
            (lowest, above, u64::MAX >> (64 - width))
        })
    }
}

/// Checks that planes hold bits of elements of `bytes` bytes, and no bit twice. Bits that no plane holds are 0.
///
/// # Errors
/// [`ErrorKind::Format`](crate::ErrorKind::Format): they do not.
pub(crate) fn check_planes(planes: &[Fields], bytes: usize) -> Result<()> {
    let all = u64::MAX >> (64 - 8 * bytes.clamp(1, 8));
    let mut covered = 0u64;
    for plane in planes {
        for &[lowest, width] in plane.runs() {
            let run = u64::MAX >> (64 - width) << lowest;
            if run & !all != 0 || covered & run != 0 {
                let what = format!("'fields' {:?} name a bit twice, or one that {bytes} bytes have not", plane.0);
                return Err(coded!(BAD_FIELDS, what));
            }
            covered |= run;
        }
    }
    Ok(())
}

macro_rules! elements {
    ($gather:ident, $scatter:ident, $ty:ident) => {
        fn $gather(elements: &[u8], fields: &Fields, symbols: &mut [i8]) {
            for (lowest, place, mask) in fields.places() {
                for (symbol, e) in symbols.iter_mut().zip(elements.as_chunks().0) {
                    *symbol |= (((($ty::from_le_bytes(*e) >> lowest) as u8) & mask as u8) << place) as i8;
                }
            }
        }

        /// Each element takes `N` bytes of the plane.
        fn $scatter<const N: usize>(stored: &[u8], fields: &Fields, elements: &mut [u8]) {
            if N == size_of::<$ty>() {
                // As wide as the element, for vectors of elements.
                for (lowest, place, mask) in fields.places() {
                    for (bytes, e) in stored.as_chunks().0.iter().zip(elements.as_chunks_mut().0) {
                        let bits = ($ty::from_le_bytes(*bytes) >> place & mask as $ty) << lowest;
                        *e = ($ty::from_le_bytes(*e) | bits).to_le_bytes();
                    }
                }
                return;
            }
            for (lowest, place, mask) in fields.places() {
                for (bytes, e) in stored.as_chunks::<N>().0.iter().zip(elements.as_chunks_mut().0) {
                    let mut wide = [0; 4];
                    wide[..N].copy_from_slice(bytes);
                    let bits = (u32::from_le_bytes(wide) >> place & mask as u32) << lowest;
                    *e = ($ty::from_le_bytes(*e) | bits as $ty).to_le_bytes();
                }
            }
        }
    };
}
elements!(gather1, scatter1, u8);
elements!(gather2, scatter2, u16);
elements!(gather4, scatter4, u32);

/// Writes the symbols of a plane: the 8 bits in `fields` of each of `elements`, which have `bytes` bytes, 1, 2 or 4.
pub(super) fn gather(elements: &[u8], bytes: usize, fields: &Fields, symbols: &mut [i8]) {
    symbols.fill(0);
    match bytes {
        1 => gather1(elements, fields, symbols),
        2 => gather2(elements, fields, symbols),
        _ => gather4(elements, fields, symbols),
    }
}

/// Joins elements of `bytes` bytes, 1, 2 or 4, with the threads of the current pool: `planes` are the decoded values of
/// each plane with the bits of an element that they hold; `elements` has room for as many.
pub(crate) fn join(planes: &[(&[i8], &Fields)], bytes: usize, elements: &mut [u8]) {
    elements.par_chunks_mut(RUN * bytes).enumerate().for_each(|(i, elements)| {
        elements.fill(0);
        let run = i * RUN..i * RUN + elements.len() / bytes;
        for (stored, fields) in planes {
            let n = fields.bytes();
            let stored = bytemuck::cast_slice(&stored[run.start * n..run.end * n]);
            let scatter = match (bytes, n) {
                (1, _) => scatter1::<1>,
                (2, 1) => scatter2::<1>,
                (2, _) => scatter2::<2>,
                (_, 1) => scatter4::<1>,
                (_, 2) => scatter4::<2>,
                (_, 3) => scatter4::<3>,
                _ => scatter4::<4>,
            };
            scatter(stored, fields, elements);
        }
    });
}
