//! Coder `zstd`: independent frames of row-major bytes. `FORMAT.md` section 8.

use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, compress_bound, get_error_name};

use super::{Filter, Isa, filter};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::tensor::out_of_memory;

/// The largest chunk, decoded bytes, that every version of nvCOMP accepts.
pub const MAX_CHUNK: usize = 1 << 24;
/// Bytes compressed between two checks for cancellation: at the highest level, a twentieth of a second.
const PIECE: usize = 1 << 17;
/// The alignment of frames, as the oldest supported nvCOMP requires.
pub(crate) const ALIGN: usize = 8;

/// Decoded bytes of a frame if none is asked for: whole rows where they fit, and smaller frames for smaller planes,
/// since a GPU decodes a frame serially and is fast only with many frames at once.
pub fn default_chunk(bytes: usize, cols: usize) -> usize {
    let target = if bytes < 8 << 20 { 8 << 10 } else { 16 << 10 };
    if cols == 0 || cols > target { target } else { target / cols * cols }
}

/// Refuses sizes that the format does not allow.
pub fn check_chunk(chunk: usize) -> Result<()> {
    if (1..=MAX_CHUNK).contains(&chunk) {
        return Ok(());
    }
    Err(coded!(BAD_CODER_NUMBER, "zstd chunks have 1 to {MAX_CHUNK} bytes, not {chunk}"))
}

/// The highest level that is written: nvCOMP 4.0 never returns from some frames of level 22 (FORMAT.md, section 8).
const HIGHEST_LEVEL: i32 = 19;

/// Refuses levels that GPUs may not decode, and those that libzstd does not have, because it would silently take the
/// nearest.
pub fn check_level(level: i32) -> Result<()> {
    if (*zstd::compression_level_range().start()..=HIGHEST_LEVEL).contains(&level) {
        return Ok(());
    }
    Err(coded!(BAD_CODING_NUMBER, "zstd is not used at level {level}").advice(format!("use 1 to {HIGHEST_LEVEL}")))
}

/// Whether `filter` can be used with chunks of this size.
pub fn filter_allowed(filter: Filter, chunk: usize, cols: usize) -> bool {
    filter != Filter::Up || (cols > 0 && chunk.is_multiple_of(cols))
}

/// Makes frames, with memory that it reuses.
pub struct Compressor {
    context: CCtx<'static>,
    level: i32,
}

impl Compressor {
    /// A compressor at `level`.
    pub fn new(level: i32) -> Result<Self> {
        let none =
            || coded!(ZSTD_ENCODING, "zstd: no memory for its state").advice("free memory, or use a lower level");
        let mut context = CCtx::try_create().ok_or_else(none)?;
        let set = context.set_parameter(CParameter::CompressionLevel(level));
        set.map_err(|code| failed(level, code))?;
        Ok(Self { context, level })
    }

    /// The frame of the chunk that begins at byte `begin` of a plane with rows of `cols` bytes.
    pub fn chunk(
        &mut self,
        chunk: &[i8],
        begin: usize,
        cols: usize,
        filter: Filter,
        cancel: &Cancel,
    ) -> Result<Vec<u8>> {
        if filter == Filter::None {
            return self.frame(chunk, cancel);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(chunk.len()).map_err(|_| out_of_memory(chunk.len()))?;
        bytes.extend_from_slice(chunk);
        for_each_row_run(&mut bytes, begin, cols, filter, filter::apply);
        self.frame(&bytes, cancel)
    }

    /// One frame of these bytes, unfiltered.
    pub fn frame(&mut self, bytes: &[i8], cancel: &Cancel) -> Result<Vec<u8>> {
        let bytes: &[u8] = bytemuck::cast_slice(bytes);
        let mut frame = Vec::new();
        let bound = compress_bound(bytes.len());
        frame.try_reserve_exact(bound).map_err(|_| out_of_memory(bound))?;
        let level = self.level;
        let failed = |code| failed(level, code);
        self.context.reset(ResetDirective::SessionOnly).map_err(failed)?;
        if bytes.len() <= PIECE {
            self.context.compress2(&mut frame, bytes).map_err(failed)?;
            return Ok(frame);
        }
        // Compressed piece by piece, since high levels take seconds for some megabytes. The size is pledged first, so
        // that the frame records it.
        self.context.set_pledged_src_size(Some(bytes.len() as u64)).map_err(failed)?;
        let mut out = OutBuffer::around(&mut frame);
        for piece in bytes.chunks(PIECE) {
            cancel.check()?;
            let mut input = InBuffer::around(piece);
            while input.pos() < piece.len() {
                self.context.compress_stream(&mut out, &mut input).map_err(failed)?;
            }
        }
        while self.context.end_stream(&mut out).map_err(failed)? > 0 {}
        Ok(frame)
    }
}

fn failed(level: i32, code: usize) -> Error {
    let what = format!("zstd at level {level}: {}", get_error_name(code));
    coded!(ZSTD_ENCODING, what).advice("free memory, or use a lower level")
}

/// Calls for each run of a row, because filters restart at rows and at the chunk's start, which may lie within a row.
fn for_each_row_run(
    bytes: &mut [i8],
    begin: usize,
    cols: usize,
    filter: Filter,
    run: fn(Filter, &mut [i8], usize, usize),
) {
    let head = match begin % cols {
        0 => 0,
        col => (cols - col).min(bytes.len()),
    };
    let (first, rest) = bytes.split_at_mut(head);
    if !first.is_empty() {
        run(filter, first, head, head);
    }
    run(filter, rest, cols, cols);
}

/// The entry of the chunk offsets for a frame of `length` bytes at byte `start`.
pub fn frame_entry(start: usize, length: usize) -> Result<[u8; 8]> {
    let too_large = |_| coded!(TOO_LARGE, "a plane of more than 32 GiB").advice("split the tensor, or use coder raw");
    let start = u32::try_from(start / ALIGN).map_err(too_large)?.to_le_bytes();
    let length = u32::try_from(length).map_err(too_large)?.to_le_bytes();
    Ok(bytemuck::cast([start, length]))
}

/// Start and length in bytes of the frame that an entry of the chunk offsets describes.
pub fn frame_place(entry: [u8; 8]) -> (usize, usize) {
    let [a, b, c, d, e, f, g, h] = entry;
    (u32::from_le_bytes([a, b, c, d]) as usize * ALIGN, u32::from_le_bytes([e, f, g, h]) as usize)
}

/// The frames of a plane, checked.
pub struct PlaneFrames<'a> {
    data: &'a [u8],
    entries: &'a [[u8; 8]],
    /// Decoded bytes of a chunk, and of all chunks.
    pub chunk: usize,
    bytes: usize,
    /// The index of the first one in its plane.
    first: usize,
}

impl<'a> PlaneFrames<'a> {
    /// Checks `offsets` against `data` for a plane of `bytes` decoded bytes.
    pub fn new(data: &'a [u8], offsets: &'a [u8], chunk: usize, bytes: usize) -> Result<Self> {
        Self::part(data, offsets, chunk, bytes, 0)
    }

    /// As [`new`](Self::new), for the part of a plane that begins with frame `first`. Only the plane's last frame may
    /// be shorter.
    pub fn part(data: &'a [u8], offsets: &'a [u8], chunk: usize, bytes: usize, first: usize) -> Result<Self> {
        check_chunk(chunk)?;
        let frames = Self { data, entries: offsets.as_chunks::<8>().0, chunk, bytes, first };
        if !offsets.len().is_multiple_of(8) || frames.entries.len() != bytes.div_ceil(chunk) {
            let n = offsets.len();
            return Err(coded!(CHUNK_PLACES, "{n} bytes of offsets for {bytes} bytes in frames of {chunk}"));
        }
        let mut end = 0;
        for i in 0..frames.count() {
            let (start, length) = frames.range(i);
            let gap_ok = start == usize::next_multiple_of(end, ALIGN);
            end = start + length;
            if !gap_ok || length == 0 || end > data.len() {
                let i = first + i;
                return Err(coded!(CHUNK_PLACES, "zstd frame {i} lies at {start}..{end} of {}", data.len()));
            }
        }
        if end != data.len() {
            return Err(coded!(CHUNK_PLACES, "zstd frames end at {end} of {}", data.len()));
        }
        Ok(frames)
    }

    /// Number of frames.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Start and length of frame `i` in bytes.
    pub fn range(&self, i: usize) -> (usize, usize) {
        frame_place(self.entries[i])
    }

    /// Decoded bytes of chunk `i`.
    pub fn decoded(&self, i: usize) -> std::ops::Range<usize> {
        i * self.chunk..((i + 1) * self.chunk).min(self.bytes)
    }

    /// Checks frame `i` as far as possible without decoding it: its header, and where its blocks end. Decoders that
    /// trust frames, such as nvCOMP, need no less.
    pub fn check(&self, i: usize) -> Result<()> {
        let (start, length) = self.range(i);
        check_frame(&self.data[start..start + length], self.decoded(i).len())
            .map_err(|what| coded!(ZSTD_FRAME, "zstd frame {i}: {what}").offset(start as u64))
    }

    /// Decodes chunk `i` into `out`, which has its length; rows have `cols` bytes.
    pub fn decode(
        &self,
        i: usize,
        out: &mut [i8],
        cols: usize,
        filter: Filter,
        context: &mut Option<zstd::bulk::Decompressor<'static>>,
    ) -> Result<()> {
        let (start, length) = self.range(i);
        let number = self.first + i;
        let bad = |what: String| coded!(ZSTD_FRAME, "zstd frame {number}: {what}").offset(start as u64);
        let want = out.len();
        let frame = &self.data[start..start + length];
        check_frame(frame, want).map_err(bad)?;
        if context.is_none() {
            let failed = |e| coded!(NO_MEMORY, "zstd: {e}").advice("free memory, or use fewer threads");
            *context = Some(zstd::bulk::Decompressor::new().map_err(failed)?);
        }
        let context = context.as_mut().expect("made above");
        let got = context.decompress_to_buffer(frame, bytemuck::cast_slice_mut(out)).map_err(|e| bad(e.to_string()))?;
        if got != want {
            return Err(bad(format!("{got} bytes come out, not {want}")));
        }
        if filter != Filter::None {
            // Filters give the same result with all instruction sets.
            let undo =
                |filter, bytes: &mut [i8], stride, width| filter::undo(filter, bytes, stride, width, Isa::Scalar);
            for_each_row_run(out, number * self.chunk, cols, filter, undo);
        }
        Ok(())
    }
}

/// Refuses frames that libzstd would decode but the format does not allow, since other decoders may reject them.
fn check_frame(frame: &[u8], want: usize) -> Result<(), String> {
    use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};
    if frame.first_chunk() != Some(&0xFD2F_B528_u32.to_le_bytes()) {
        return Err("it does not begin like one".to_owned());
    }
    // RFC 8878, section 3.1.1.1.1: flags of the frame's header.
    let Some(&[flags, window]) = frame.get(4..6) else { return Err("it ends in its header".to_owned()) };
    if flags & 0b0000_0111 != 0 {
        return Err("it has a checksum or a dictionary, which the format does not allow".to_owned());
    }
    match get_frame_content_size(frame) {
        Ok(Some(size)) if size == want as u64 => {}
        Ok(Some(size)) => return Err(format!("it says that {size} bytes come out, not {want}")),
        _ => return Err("it does not say how much comes out".to_owned()),
    }
    let single_segment = flags & 0b0010_0000 != 0;
    if !single_segment {
        let (exponent, mantissa) = (u32::from(window >> 3), u64::from(window & 7));
        let base = 1u64 << (10 + exponent);
        if base + base / 8 * mantissa > want as u64 {
            return Err("its window is larger than its content".to_owned());
        }
    }
    match find_frame_compressed_size(frame) {
        Ok(n) if n == frame.len() => Ok(()),
        _ => Err("it does not end where the next one begins".to_owned()),
    }
}
