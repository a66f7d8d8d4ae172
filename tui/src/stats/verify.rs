//! Whether a tensor is sound: its hashes, and whether it decodes.

use wcodec::container::Segment;
use wcodec::{DecodeOptions, Error, ErrorKind, Result};

use super::Verdict;
use super::control::Control;
use crate::model::{FileModel, Stamp};

/// Segments of a tensor and what they hold, its table among them whether or not another tensor uses it, too.
pub fn segments(file: &FileModel, tensor: usize) -> Vec<(&'static str, Segment)> {
    let Ok(container) = file.container() else { return Vec::new() };
    let index = container.reader().index();
    let Some(entry) = index.tensors.get(tensor) else { return Vec::new() };
    let tables = entry.planes.iter().filter_map(|p| index.tables.get(p.table?));
    entry.segments().map(|(role, s)| (role, *s)).chain(tables.map(|t| ("table", t.data))).collect()
}

/// Compares the hashes of all segments of a tensor, so that damage is said of each, and decodes it as
/// [`wcodec::verify`] does, which compares the hash of what comes out.
///
/// Holds the largest segment, then the stored tensor and some tens of MB. Stops between segments, not within.
///
/// # Errors
/// What keeps it from being verified: the operating system, a file that was changed, a newer format, `control`.
pub fn verify(file: &FileModel, tensor: usize, control: &mut Control<'_>) -> Result<Verdict> {
    let (info, container) = (file.info(tensor)?, file.container()?);
    let segments = segments(file, tensor);
    let stored = segments.iter().fold(0u64, |sum, (_, s)| sum.saturating_add(s.length));
    control.expect(stored.saturating_add(info.elements));
    control.cancel.check()?;
    let mut damage = Vec::new();
    for (role, segment) in &segments {
        match container.reader().segment(segment, true).map(drop) {
            Ok(()) => {}
            Err(e) if is_damage(file, &e) => damage.push(format!("{}: {}", place(role, segment), e.message())),
            Err(e) => return Err(e),
        }
        control.advance(segment.length)?;
    }
    if damage.is_empty() {
        match container.check(&info.name, &DecodeOptions::default()) {
            Ok(()) => {}
            Err(e) if is_damage(file, &e) => damage.push(short(&e)),
            Err(e) => return Err(e),
        }
        control.advance(info.elements)?;
    }
    Ok(if damage.is_empty() {
        Verdict::Sound
    } else {
        Verdict::Damaged(format!("{}: {}", info.name, damage.join("; ")))
    })
}

/// Whether an error is about the tensor, and not about a file that somebody is writing to.
fn is_damage(file: &FileModel, error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Format) && !has_changed(file)
}

fn has_changed(file: &FileModel) -> bool {
    Stamp::of(&file.path) != file.stamp
}

/// An error in a few words, for a place where file and tensor are known.
pub fn short(error: &Error) -> String {
    match error.byte_offset() {
        Some(at) => format!("byte {at}: {}", error.message()),
        None => error.message().to_owned(),
    }
}

/// Why something of a file's tensor cannot be had, in a few words.
pub fn reason(file: &FileModel, error: &Error) -> String {
    let by_file = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Format | ErrorKind::Io);
    if by_file && has_changed(file) { "the file changed on disk: r reads it again".to_owned() } else { short(error) }
}

fn place(role: &str, segment: &Segment) -> String {
    format!("segment {role} at byte {}", segment.offset)
}

impl Verdict {
    /// Whether it says that a segment's bytes are not those that were written.
    pub fn names(&self, role: &str, segment: &Segment) -> bool {
        match self {
            Self::Sound => false,
            Self::Damaged(what) => what.contains(&format!("{}: ", place(role, segment))),
        }
    }
}
