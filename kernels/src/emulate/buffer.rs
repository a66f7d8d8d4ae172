//! Memory aligned as on a GPU.

use std::ops::{Deref, DerefMut};

/// Zeroed bytes at an address that is a multiple of 256, as memory from the CUDA driver is.
#[derive(Clone, Debug)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(256))]
struct Line([u8; 256]);

impl Buffer {
    /// Zeros.
    pub fn new(len: usize) -> Buffer {
        Buffer { lines: vec![Line([0; 256]); len.div_ceil(256)], len }
    }

    /// The address, as a kernel's parameters hold it.
    pub fn address(&self) -> u64 {
        self.lines.as_ptr().expose_provenance() as u64
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lines are `len` bytes or more, without gaps between them, and initialized.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the lines are `len` bytes or more, without gaps between them, and initialized; `self` is borrowed
        // mutably as long as they are.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
