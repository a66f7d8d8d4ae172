//! The legacy layer blob: 21 bytes of header, then one zstd frame. `FORMAT.md` section 9.

use crate::cancel::Cancel;
use crate::coder::zstd::{Compressor, check_level};
use crate::error::{ErrorKind, Result};
use crate::tensor::{out_of_memory, try_vec};
use crate::trust::{self, OpenOptions};

/// First four bytes, little-endian.
pub const MAGIC: u32 = 0x5A53_5444;
/// Bytes before the frame.
pub const HEADER_BYTES: usize = 21;
/// The only dtype: int8.
const INT8: u8 = 0;

/// A decoded blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyLayer {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// `rows * cols` symbols, row-major.
    pub symbols: Vec<i8>,
}

/// Whether `bytes` begin like a blob.
pub fn is_legacy(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Encodes a row-major int8 matrix at a zstd `level`.
///
/// # Errors
/// `symbols` does not have `rows * cols` elements, or 4 GiB are not enough.
///
/// ```
/// let blob = wcodec::legacy::encode(&[1, -2, 3, 4, 5, 6], 2, 3, 3).unwrap();
/// assert_eq!(blob[..4], *b"DTSZ");
/// assert_eq!(wcodec::legacy::decode(&blob).unwrap().symbols, [1, -2, 3, 4, 5, 6]);
/// ```
pub fn encode(symbols: &[i8], rows: u32, cols: u32, level: i32) -> Result<Vec<u8>> {
    encode_with(symbols, rows, cols, level, &Cancel::new())
}

/// [`encode`] with cancellation.
///
/// # Errors
/// Those of [`encode`], or `cancel` was used.
pub fn encode_with(symbols: &[i8], rows: u32, cols: u32, level: i32, cancel: &Cancel) -> Result<Vec<u8>> {
    let too_large = |what: String| coded!(LEGACY_LIMITS, what).advice("use a container");
    let size =
        rows.checked_mul(cols).ok_or_else(|| too_large(format!("{rows} x {cols} does not fit a legacy blob")))?;
    if symbols.len() != size as usize {
        return Err(coded!(INPUT_BUG, "{} symbols for {rows} x {cols}", symbols.len()));
    }
    check_level(level)?;
    let frame = Compressor::new(level)?.frame(symbols, cancel)?;
    let length =
        u32::try_from(frame.len()).map_err(|_| too_large("the layer does not fit a legacy blob".to_owned()))?;
    let mut out = Vec::new();
    out.try_reserve_exact(HEADER_BYTES + frame.len()).map_err(|_| out_of_memory(frame.len()))?;
    for field in [MAGIC, rows, cols, size, length] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.push(INT8);
    out.extend_from_slice(&frame);
    Ok(out)
}

/// Decodes an untrusted blob.
///
/// # Errors
/// It is not a blob, was truncated, its fields contradict each other, or it would take more memory than a blob that is
/// not [trusted](OpenOptions::trusted) may ask for.
pub fn decode(bytes: &[u8]) -> Result<LegacyLayer> {
    decode_with(bytes, &OpenOptions::default())
}

/// Decodes a blob.
///
/// # Errors
/// Those of [`decode`].
pub fn decode_with(bytes: &[u8], options: &OpenOptions) -> Result<LegacyLayer> {
    decode_checked(bytes, options.trusted).map_err(|e| match e.kind() {
        ErrorKind::Format => e.advice("give it a whole blob, as it was encoded"),
        ErrorKind::Corrupt => e.advice("restore the blob, or encode the layer again"),
        ErrorKind::Unsupported => e.advice("decode it with the program that wrote it"),
        _ => e,
    })
}

fn decode_checked(bytes: &[u8], trusted: bool) -> Result<LegacyLayer> {
    let Some((header, frame)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(coded!(NOT_A_LEGACY_BLOB, "a legacy blob of {} bytes", bytes.len()));
    };
    let field = |i: usize| u32::from_le_bytes(header[4 * i..4 * i + 4].try_into().expect("four bytes"));
    let [magic, rows, cols, size, length] = [0, 1, 2, 3, 4].map(field);
    if magic != MAGIC {
        return Err(coded!(NOT_A_LEGACY_BLOB, "not a legacy blob: the magic bytes are wrong").offset(0));
    }
    if header[20] != INT8 {
        return Err(coded!(LEGACY_BLOB, "dtype {} of a legacy blob; only 0 (int8) is known", header[20]).offset(20));
    }
    if rows.checked_mul(cols) != Some(size) {
        return Err(coded!(NOT_A_LEGACY_BLOB, "{rows} x {cols} in a legacy blob of {size} bytes").offset(12));
    }
    if frame.len() != length as usize {
        return Err(coded!(BAD_LEGACY_BLOB, "a payload of {} bytes, not {length}", frame.len()).offset(16));
    }
    // A frame of a few bytes may claim 4 GiB, but the best ratio is that of a block of one repeated byte: 128 KiB in 4
    // bytes.
    if frame.len().saturating_mul(131_072) < size as usize {
        return Err(coded!(BAD_LEGACY_BLOB, "{length} bytes cannot hold {size} symbols").offset(12));
    }
    // The frame's own content size, if it has one: nothing is decoded if that differs.
    if let Ok(Some(says)) = zstd::zstd_safe::get_frame_content_size(frame)
        && says != u64::from(size)
    {
        return Err(coded!(BAD_LEGACY_BLOB, "{says} symbols come out, not {size}").offset(HEADER_BYTES as u64));
    }
    trust::check_decoded(trusted, bytes.len() as u64, u64::from(size), trust::AS_TRUSTED)?;
    let mut symbols: Vec<i8> = try_vec(size as usize)?;
    let got = zstd::bulk::decompress_to_buffer(frame, bytemuck::cast_slice_mut(&mut symbols))
        .map_err(|e| coded!(ZSTD_FRAME, "zstd: {e}").offset(HEADER_BYTES as u64))?;
    if got != symbols.len() {
        return Err(coded!(BAD_LEGACY_BLOB, "{got} symbols come out, not {size}").offset(HEADER_BYTES as u64));
    }
    Ok(LegacyLayer { rows, cols, symbols })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_as_documented() {
        let blob = encode(&[7; 6], 3, 2, 3).unwrap();
        assert_eq!(blob[..16], [0x44, 0x54, 0x53, 0x5A, 3, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(blob[16..20], ((blob.len() - 21) as u32).to_le_bytes());
        assert_eq!(blob[20], 0);
        assert_eq!(decode(&encode(&[], 0, 5, 3).unwrap()).unwrap().symbols, Vec::<i8>::new());
    }

    #[test]
    fn every_truncation_and_wrong_field_is_refused() {
        let good = encode(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 4, 3).unwrap();
        for n in 0..good.len() {
            assert!(decode(&good[..n]).is_err(), "{n} bytes");
        }
        for at in 0..HEADER_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
        let mut huge = good.clone();
        huge[4..8].copy_from_slice(&0xFFFFu32.to_le_bytes());
        huge[8..12].copy_from_slice(&0xFFFFu32.to_le_bytes());
        huge[12..16].copy_from_slice(&(0xFFFFu32 * 0xFFFF).to_le_bytes());
        assert!(decode(&huge).is_err());
        // So many bytes could hold 4 GiB of one symbol, but the frame's content size is 8.
        huge.extend_from_slice(&[0; 40_000]);
        let length = (huge.len() - HEADER_BYTES) as u32;
        huge[16..20].copy_from_slice(&length.to_le_bytes());
        let e = decode_with(&huge, &OpenOptions { trusted: true, ..Default::default() }).unwrap_err();
        assert!(e.message().contains("8 symbols come out"), "{e}");
        assert!(encode(&[1], 2, 2, 3).is_err());
        assert!(encode(&[1], 1, 1, 99).is_err());
        assert!(encode(&[], u32::MAX, 2, 3).is_err());
    }

    #[test]
    fn few_bytes_become_many_only_by_the_users_word() {
        const ROWS: u32 = 65 << 10;
        let blob = encode(&vec![7; (ROWS << 10) as usize], ROWS, 1024, 3).unwrap();
        assert!(blob.len() < 10_000);
        let e = decode(&blob).unwrap_err();
        assert!(e.kind() == ErrorKind::Input && e.to_string().contains("trusted=True"), "{e}");
        let layer = decode_with(&blob, &OpenOptions { trusted: true, ..Default::default() }).unwrap();
        assert!(layer.symbols.iter().all(|&s| s == 7));
    }
}
