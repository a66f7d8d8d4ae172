//! One error type for the whole crate, sorted by the party that must act.

#[macro_use]
mod code;

use std::fmt;
use std::path::{Path, PathBuf};

pub use code::Code;

use crate::text::{safe, safe_path};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The party that must act on an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file is not a wcodec container (or checkpoint), or contradicts itself: get the right file.
    Format,
    /// The file was a valid one and its bytes were damaged: restore or encode it again.
    Corrupt,
    /// The file is fine, but this version or build cannot read it: upgrade.
    Unsupported,
    /// The caller's arguments or data are wrong: change them.
    Input,
    /// A GPU, its driver or one of its libraries is missing or refused: install what the message names.
    Device,
    /// The operating system refused: permissions, a full disk, a missing file.
    Io,
    /// The progress callback asked to stop. Nothing was left behind.
    Cancelled,
}

/// An error: what is wrong, where, what to do about it, and the [`Code`] that explains it.
///
/// It is displayed as one line without control sequences, whatever names it contains: see [`text`](crate::text).
///
/// ```
/// use wcodec::{Code, ErrorKind};
/// let e = Code::BAD_TABLE
///     .error("the table's frequencies add up to 4,095, not 4,096")
///     .tensor("lm_head.weight")
///     .offset(64)
///     .advice("encode the model again");
/// assert_eq!(e.kind(), ErrorKind::Corrupt);
/// assert_eq!(
///     e.to_string(),
///     "tensor 'lm_head.weight', byte 64: the table's frequencies add up to 4,095, not 4,096 (encode the model again) \
///      [C203]"
/// );
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    message: String,
    file: Option<PathBuf>,
    tensor: Option<String>,
    offset: Option<u64>,
    advice: Option<String>,
    source: Option<std::io::Error>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )*};
}

impl Error {
    /// An error of `kind` with `message`, and the general code of that kind. [`Code::error`] says more.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::with_code(Code::general(kind), message.into())
    }

    fn with_code(code: Code, message: String) -> Self {
        Self(Box::new(Inner { code, message, file: None, tensor: None, offset: None, advice: None, source: None }))
    }

    constructors! {
        /// [`ErrorKind::Format`].
        format => Format;
        /// [`ErrorKind::Corrupt`].
        corrupt => Corrupt;
        /// [`ErrorKind::Unsupported`].
        unsupported => Unsupported;
        /// [`ErrorKind::Input`].
        input => Input;
        /// [`ErrorKind::Device`].
        device => Device;
    }

    /// [`ErrorKind::Cancelled`].
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "cancelled")
    }

    /// An error of the operating system during an action ("read", "create the file") on `file`.
    pub fn io(what: &str, file: &Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let advice = match source.kind() {
            K::NotFound | K::NotADirectory => Some("check the path"),
            K::PermissionDenied | K::ReadOnlyFilesystem => Some("check the permissions of the file and its folder"),
            K::AlreadyExists => Some("choose another name, or allow overwriting"),
            K::StorageFull | K::QuotaExceeded => {
                Some("free some space, or write to another disk; no partial file was left")
            }
            _ => None,
        };
        let message = match source.kind() {
            K::AlreadyExists => "the output exists already".to_owned(),
            _ => format!("cannot {what}: {source}"),
        };
        let code = match source.kind() {
            K::NotFound | K::NotADirectory => Code::NOT_FOUND,
            K::PermissionDenied | K::ReadOnlyFilesystem => Code::NO_PERMISSION,
            K::AlreadyExists => Code::OUTPUT_EXISTS,
            K::StorageFull | K::QuotaExceeded => Code::NO_SPACE,
            _ => Code::IO,
        };
        let mut e = code.error(message).file(file);
        e.0.source = Some(source);
        e.0.advice = advice.map(str::to_owned);
        e
    }

    /// A file that another one names is missing: the same kind of error as from the operating system.
    pub(crate) fn missing(code: Code, message: &str, file: &Path) -> Self {
        let mut e = code.error(message).file(file);
        e.0.source = Some(std::io::ErrorKind::NotFound.into());
        e
    }

    /// Adds advice on a container that contradicts itself or is damaged, unless there is advice already.
    pub(crate) fn of_container(self) -> Self {
        match self.kind() {
            ErrorKind::Format => self.advice("encode the model again, or get the file again"),
            ErrorKind::Corrupt => self.advice("restore the file, or encode the model again"),
            _ => self,
        }
    }

    /// Names the file, unless one is named already.
    pub fn file(mut self, file: &Path) -> Self {
        self.0.file.get_or_insert_with(|| file.to_owned());
        self
    }

    /// Names the tensor, unless one is named already.
    pub fn tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds the position in the file, in bytes, unless there is one already.
    pub fn offset(mut self, offset: u64) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Adds advice, unless there is some already.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice.get_or_insert_with(|| advice.into());
        self
    }

    /// Replaces the advice.
    pub(crate) fn instead(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// The party that must act.
    pub fn kind(&self) -> ErrorKind {
        self.0.code.kind()
    }

    /// The cause, by a stable identifier.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The description of the error, without the position and the advice.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The text without the code at its end: place, message and advice.
    pub fn without_code(&self) -> String {
        let e = &*self.0;
        let mut place = Vec::new();
        place.extend(e.file.as_ref().map(|p| safe_path(p).into_owned()));
        place.extend(e.tensor.as_ref().map(|t| format!("tensor '{}'", safe(t))));
        place.extend(e.offset.map(|o| format!("byte {o}")));
        let place = if place.is_empty() { String::new() } else { format!("{}: ", place.join(", ")) };
        let advice = e.advice.as_ref().map_or_else(String::new, |a| format!(" ({})", safe(a)));
        // Messages quote content of files.
        format!("{place}{}{advice}", safe(&e.message))
    }

    /// The tensor concerned, if any.
    pub fn tensor_name(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The file concerned, if known.
    pub fn file_path(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// The position in the file in bytes, if known.
    pub fn byte_offset(&self) -> Option<u64> {
        self.0.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.without_code(), self.code())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_file_steers_the_terminal() {
        let e = Error::format("scheme '\u{9b}2J'")
            .file(Path::new("a\n.wcodec"))
            .tensor("\x1b]0;\x07")
            .advice("use \u{202e}");
        assert_eq!(e.to_string(), r"a\n.wcodec, tensor '\x1b]0;\x07': scheme '\x9b2J' (use \u{202e}) [F000]");
        assert_eq!((e.tensor_name(), e.message()), (Some("\x1b]0;\x07"), "scheme '\u{9b}2J'"));
    }
}
