//! The first 64 bytes.

use super::hash::hash;
use crate::error::Result;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// First bytes of a container. They are not text, and their line feed reveals a transfer that changed line ends.
pub const MAGIC: [u8; 8] = *b"\x89WCODEC\n";
/// Major and minor version of the files that this crate writes, unless they use features of later versions.
pub const VERSION: (u16, u16) = (1, 0);
/// The version of files with features of format 1.1.
pub const LATER_VERSION: (u16, u16) = (1, 1);
/// The version of files with planes of layout `quad`.
pub const LATEST_VERSION: (u16, u16) = (1, 2);

/// The version of files with tensors of scheme `opaque`, or of scheme `rate` with factors of columns.
pub const NEWEST_VERSION: (u16, u16) = (1, 3);

/// The header of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Major and minor version of the format.
    pub version: (u16, u16),
    /// Offset of the index, bytes.
    pub index_offset: u64,
    /// Length of the index, bytes.
    pub index_length: u64,
    /// XXH3-64 of the index.
    pub index_hash: u64,
    /// Length of the file, bytes.
    pub file_length: u64,
}

impl Header {
    /// The stored form.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..10].copy_from_slice(&self.version.0.to_le_bytes());
        b[10..12].copy_from_slice(&self.version.1.to_le_bytes());
        for (at, value) in
            [(16, self.index_offset), (24, self.index_length), (32, self.index_hash), (40, self.file_length)]
        {
            b[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let h = hash(&b[..56]).0;
        b[56..].copy_from_slice(&h.to_le_bytes());
        b
    }

    /// Reads and checks the first bytes of a file of `file_length` bytes.
    ///
    /// # Errors
    /// A check of `FORMAT.md` section 1 fails; the checks run in the order of that section.
    pub fn from_bytes(bytes: &[u8], file_length: u64) -> Result<Self> {
        let Some(b) = bytes.first_chunk::<HEADER_BYTES>() else {
            let what = if bytes.is_empty() {
                "the file is empty".to_owned()
            } else {
                format!("the file has only {} bytes", bytes.len())
            };
            return Err(coded!(TOO_SHORT, what).advice("a wcodec container has a header of 64 bytes; check the path"));
        };
        let number = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        if b.iter().all(|&b| b == 0) {
            return Err(coded!(UNFINISHED, "the header is empty: writing this file was interrupted")
                .advice("encode the model again"));
        }
        if b[..8] != MAGIC {
            return Err(coded!(NOT_A_CONTAINER, "not a wcodec container: the magic bytes are wrong")
                .offset(0)
                .advice("check the path"));
        }
        if hash(&b[..56]).0 != number(56) {
            return Err(coded!(HEADER_HASH, "the header's hash does not match")
                .offset(0)
                .advice("restore the file, or encode the model again"));
        }
        let version = (u16::from_le_bytes([b[8], b[9]]), u16::from_le_bytes([b[10], b[11]]));
        if version.0 > VERSION.0 {
            return Err(coded!(NEWER_FORMAT, "format version {}.{}: written by a newer wcodec", version.0, version.1)
                .offset(8)
                .advice("upgrade wcodec"));
        }
        if version.0 == 0 {
            return Err(coded!(BAD_HEADER, "format version 0 does not exist").offset(8));
        }
        if number(48) != 0 || b[12..16] != [0; 4] {
            return Err(coded!(BAD_HEADER, "a reserved field of the header is not 0").offset(8));
        }
        let header = Self {
            version,
            index_offset: number(16),
            index_length: number(24),
            index_hash: number(32),
            file_length: number(40),
        };
        if header.file_length != file_length {
            return Err(coded!(
                FILE_LENGTH,
                "the file has {file_length} bytes, and should have {}",
                header.file_length
            )
            .offset(file_length.min(header.file_length))
            .advice("it was cut off or appended to: copy it again, or encode the model again"));
        }
        let end = header.index_offset.checked_add(header.index_length);
        if !header.index_offset.is_multiple_of(16)
            || header.index_offset < HEADER_BYTES as u64
            || end != Some(file_length)
        {
            return Err(coded!(BAD_HEADER, "the header's place of the index is not in the file").offset(16));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const GOOD: Header =
        Header { version: VERSION, index_offset: 80, index_length: 20, index_hash: 7, file_length: 100 };

    #[test]
    fn round_trips() {
        assert_eq!(Header::from_bytes(&GOOD.to_bytes(), 100).unwrap(), GOOD);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut b = GOOD.to_bytes();
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::from_bytes(&b, 100).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn each_mistake_has_its_kind() {
        let kind = |h: Header, len| Header::from_bytes(&h.to_bytes(), len).unwrap_err().kind();
        assert_eq!(kind(Header { version: (2, 0), ..GOOD }, 100), ErrorKind::Unsupported);
        assert_eq!(kind(GOOD, 99), ErrorKind::Corrupt);
        for bad in [
            Header { index_offset: 81, index_length: 19, ..GOOD },
            Header { index_offset: 48, index_length: 52, ..GOOD },
            Header { index_offset: u64::MAX - 15, index_length: 116, ..GOOD },
            Header { index_length: u64::MAX, ..GOOD },
        ] {
            assert_eq!(kind(bad, 100), ErrorKind::Format);
        }
        assert!(Header::from_bytes(&Header { version: (1, 9), ..GOOD }.to_bytes(), 100).is_ok());
        for length in 0..HEADER_BYTES {
            assert_eq!(Header::from_bytes(&GOOD.to_bytes()[..length], 100).unwrap_err().kind(), ErrorKind::Format);
        }
        assert!(Header::from_bytes(&[0; 64], 64).unwrap_err().to_string().contains("interrupted"));
    }
}
