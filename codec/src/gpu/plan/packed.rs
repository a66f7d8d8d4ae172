//! Packed tensors: the bytes of a tensor that a device needs, in one run.

use std::ops::Range;

use crate::container::Segment;
use crate::decode::TensorBytes;
use crate::stored::StoredTensor;

/// The places of a tensor's parts where it is packed, bytes.
#[derive(Clone, Debug, Default)]
pub struct PackedTensor {
    /// The factors of columns, if there are some, and the scales behind them.
    pub scales: Range<usize>,
    /// Bytes of the factors.
    pub factors: usize,
    pub planes: Vec<PackedPlane>,
    /// Length, a multiple of 128. Kernels that copy whole 16 bytes read up to 15 bytes behind a part, never behind this.
    pub len: usize,
}

/// The places of a plane's parts.
#[derive(Clone, Debug, Default)]
pub struct PackedPlane {
    pub offsets: Range<usize>,
    pub data: Range<usize>,
    pub side: Range<usize>,
}

/// Lengths of what a device needs of a tensor, bytes.
#[derive(Clone, Debug)]
pub struct Lengths {
    pub scales: usize,
    /// The part of the scales that factors of columns take.
    pub factors: usize,
    /// Offsets, data and side plane of each plane.
    pub planes: Vec<[usize; 3]>,
}

/// Device addresses of the parts of a packed tensor that a plane is decoded from. A part that is there in pieces has the
/// address at which the whole would begin: kernels count from there, and touch only the piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneAddresses {
    pub scales: u64,
    /// The address of the factors of columns, if these have some.
    pub columns: u64,
    pub offsets: u64,
    pub data: u64,
    pub side: u64,
}

impl PackedTensor {
    /// Parts begin at multiples of this: bulk copies want 16, and whole sectors of 32 bytes are read faster.
    pub const ALIGN: usize = 128;

    /// The packed form of parts of these lengths: the scales, and then what each plane has.
    pub fn new(lengths: &Lengths) -> Self {
        let mut len = 0usize;
        let mut place = |bytes: usize| {
            let begin = len;
            // Even an empty part has 16 bytes that can be read.
            len = (begin + bytes + 16).next_multiple_of(Self::ALIGN);
            begin..begin + bytes
        };
        let scales = place(lengths.scales);
        let planes = lengths.planes.iter().map(|plane| {
            let [offsets, data, side] = plane.map(&mut place);
            PackedPlane { offsets, data, side }
        });
        let planes = planes.collect();
        Self { scales, factors: lengths.factors, planes, len }
    }

    /// Lengths of a tensor's parts. They are only claims until the parts are read.
    pub fn lengths(tensor: &StoredTensor) -> Lengths {
        let length = |s: Option<&Segment>| usize::try_from(s.map_or(0, |s| s.length)).unwrap_or(usize::MAX);
        let planes = tensor.planes.iter();
        Lengths {
            scales: length(tensor.symbol_scales().map(|s| &s.segment)),
            factors: tensor.symbol_scales().map_or(0, |s| s.factor_bytes() as usize),
            planes: planes.map(|p| [p.offsets.as_ref(), Some(&p.data), p.side.as_ref()].map(length)).collect(),
        }
    }

    /// The packed form of a tensor, by what the index says of its parts.
    pub fn of(tensor: &StoredTensor) -> Self {
        Self::new(&Self::lengths(tensor))
    }

    /// Writes what the packed `parts` have from `begin` on to `out`, which ends where it ends or before.
    pub fn fill(&self, parts: &TensorBytes, begin: usize, out: &mut [u8]) {
        let end = begin + out.len();
        let planes = self.planes.iter().zip(&parts.planes).flat_map(|(place, plane)| {
            [(&place.offsets, &plane.offsets), (&place.data, &plane.data), (&place.side, &plane.side)]
        });
        let all = [(&self.scales, &parts.scales)].into_iter().chain(planes);
        let mut at = begin;
        for (place, bytes) in all {
            let (from, to) = (place.start.max(at), place.end.min(end));
            if from < to {
                out[at - begin..from - begin].fill(0);
                out[from - begin..to - begin].copy_from_slice(&bytes[from - place.start..to - place.start]);
                at = to;
            }
        }
        out[at - begin..].fill(0);
    }

    /// The places that each plane is decoded from, of a packed tensor at `address`.
    pub fn at(&self, address: u64) -> Vec<PlaneAddresses> {
        let place = |part: &Range<usize>| address + part.start as u64;
        let planes = self.planes.iter().map(|plane| PlaneAddresses {
            scales: place(&self.scales) + self.factors as u64,
            columns: place(&self.scales),
            offsets: place(&plane.offsets),
            data: place(&plane.data),
            side: place(&plane.side),
        });
        planes.collect()
    }
}
