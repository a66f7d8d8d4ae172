//! A checkpoint that is being encoded, or could be.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use wcodec::{Bits, EncodeOptions, Granularity, Rate, Scheme};

use crate::estimate::Would;
use crate::stats::Fetch;

/// How far an encoding is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The tensor at work.
    pub tensor: String,
    /// Bytes done, of the uncompressed tensors.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What is known of encoding a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct EncodeState {
    /// What its tensors would be like, by their places.
    pub would: Fetch<Arc<HashMap<usize, Would>>>,
    /// The file that is being written, and how far it is.
    pub running: Option<(PathBuf, Progress)>,
}

/// A way to encode, and the letter that chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Scheme `int8`.
    Int8,
    /// Scheme `rate` with so many bits for each weight: 4 or 3.
    Rate(u8),
    /// Scheme `lossless`.
    Lossless,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Int8, Self::Rate(4), Self::Rate(3), Self::Lossless];

    /// The letter.
    pub fn letter(self) -> char {
        match self {
            Self::Int8 => 'i',
            Self::Rate(4) => '4',
            Self::Rate(_) => '3',
            Self::Lossless => 'l',
        }
    }

    /// What it is, in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Int8 => "int8: rows with a scale each, about 7.7 bits/weight",
            Self::Rate(4) => "rate: 4 bits/weight",
            Self::Rate(_) => "rate: 3 bits/weight",
            Self::Lossless => "lossless: every bit as it is",
        }
    }

    /// The scheme.
    pub fn scheme(self) -> Scheme {
        match self {
            Self::Int8 => Scheme::Int8(Granularity::Row),
            // Both are among the bits that there are.
            Self::Rate(n) => {
                let EncodeOptions { optimize, coder, .. } = EncodeOptions::default();
                let trellis = optimize.trellis(coder);
                Bits::new(f64::from(n)).map_or(Scheme::Raw, |bits| Scheme::Rate(Rate { bits, trellis }))
            }
            Self::Lossless => Scheme::Lossless,
        }
    }
}
