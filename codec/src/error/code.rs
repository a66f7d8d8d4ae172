//! The catalogue of errors: each cause has a stable identifier, and says why it comes and what to do.
//!
//! It is the one list of errors of the crate, its programs and the Python package. Identifiers are a letter for the
//! [`ErrorKind`] and a number; they never change their meaning, and those that nothing raises any more are not used
//! again (`released.txt`).

use std::fmt;

use super::{Error, ErrorKind};

/// An error of a code, by the name of its constant, with a message as `format!` takes it.
macro_rules! coded {
    ($code:ident, $text:literal $($arguments:tt)*) => {
        $crate::Code::$code.error(format!($text $($arguments)*))
    };
    ($code:ident, $message:expr $(,)?) => {
        $crate::Code::$code.error($message)
    };
}

/// Makes the codes of one section: associated constants of [`Code`], and the list of them.
macro_rules! codes {
    ($heading:literal, $kind:ident;
     $($id:ident $name:ident: $title:literal, $cause:literal, $remedy:literal;)*) => {
        impl Code {$(
            #[doc = concat!("`", stringify!($id), "`: ", $title, ".")]
            pub const $name: Self = Self(&Entry {
                id: stringify!($id),
                kind: ErrorKind::$kind,
                section: $heading,
                name: stringify!($name),
                title: $title,
                cause: $cause,
                remedy: $remedy,
            });
        )*}

        pub(super) static CODES: Section = &[$(Code::$name),*];
    };
}

mod corrupt;
mod device;
mod files;
mod format;
mod measures;
mod models;
mod options;
mod program;
mod stopped;
mod system;
mod tensors;
mod unsupported;

/// The codes of one file of the catalogue.
type Section = &'static [Code];

/// All sections, in the order in which they are listed.
static SECTIONS: &[&Section] = &[
    &format::CODES,
    &corrupt::CODES,
    &unsupported::CODES,
    &system::CODES,
    &device::CODES,
    &files::CODES,
    &options::CODES,
    &tensors::CODES,
    &models::CODES,
    &measures::CODES,
    &program::CODES,
    &stopped::CODES,
];

#[derive(Debug, PartialEq, Eq, Hash)]
struct Entry {
    id: &'static str,
    kind: ErrorKind,
    section: &'static str,
    name: &'static str,
    title: &'static str,
    cause: &'static str,
    remedy: &'static str,
}

/// The cause of an [`Error`], with an identifier that stays the same in all versions.
///
/// Several messages can have one code: those with one cause and one remedy.
///
/// ```
/// use wcodec::{Code, ErrorKind};
///
/// let error = Code::TOO_SHORT.error("the file has only 20 bytes");
/// assert_eq!((error.code(), error.kind()), (Code::TOO_SHORT, ErrorKind::Format));
/// assert_eq!(error.to_string(), "the file has only 20 bytes [F102]");
/// assert_eq!(Code::from_id("F102"), Some(Code::TOO_SHORT));
/// println!("{}: {} {}", error.code(), error.code().cause(), error.code().remedy());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(&'static Entry);

impl Code {
    /// An error of this code with `message`.
    pub fn error(self, message: impl Into<String>) -> Error {
        Error::with_code(self, message.into())
    }

    /// The code of errors of `kind` that have no closer one.
    pub(super) fn general(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Format => Self::FORMAT,
            ErrorKind::Corrupt => Self::CORRUPT,
            ErrorKind::Unsupported => Self::UNSUPPORTED,
            ErrorKind::Input => Self::INPUT,
            ErrorKind::Device => Self::DEVICE,
            ErrorKind::Io => Self::IO,
            ErrorKind::Cancelled => Self::CANCELLED,
        }
    }

    /// The identifier: a letter for the kind and three digits.
    pub fn id(self) -> &'static str {
        self.0.id
    }

    /// The party that must act.
    pub fn kind(self) -> ErrorKind {
        self.0.kind
    }

    /// The heading under which the code is listed.
    pub fn section(self) -> &'static str {
        self.0.section
    }

    /// The name of the constant.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The error in a few words.
    pub fn title(self) -> &'static str {
        self.0.title
    }

    /// The reason why such an error comes, in Markdown.
    pub fn cause(self) -> &'static str {
        self.0.cause
    }

    /// The way out of it, in Markdown.
    pub fn remedy(self) -> &'static str {
        self.0.remedy
    }

    /// All codes, section by section.
    pub fn all() -> impl Iterator<Item = Self> {
        SECTIONS.iter().flat_map(|section| section.iter().copied())
    }

    /// The code with an identifier, in upper or lower case.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::all().find(|code| code.id().eq_ignore_ascii_case(id))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.0.name, self.0.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Identifiers and names as they were released: lines are added, and never changed or taken away.
    const RELEASED: &str = include_str!("code/released.txt");

    #[test]
    fn identifiers_keep_their_meaning() {
        let released: Vec<(&str, &str)> = RELEASED.lines().map(|l| l.split_once(' ').unwrap()).collect();
        let now: BTreeMap<&str, &str> = Code::all().map(|c| (c.id(), c.name())).collect();
        let then: BTreeMap<&str, &str> = released.iter().copied().collect();
        assert_eq!(then.len(), released.len(), "an identifier is listed twice");
        for (id, name) in &now {
            assert_eq!(then.get(id), Some(name), "add a line for a new code, and keep those that are there");
        }
    }

    #[test]
    fn codes_are_distinct_and_complete() {
        let mut ids = BTreeMap::new();
        for code in Code::all() {
            assert_eq!(ids.insert(code.id(), code), None, "{code} is there twice");
            assert_eq!(Code::from_id(&code.id().to_lowercase()), Some(code));
            let letter = match code.kind() {
                ErrorKind::Format => "F",
                ErrorKind::Corrupt => "C",
                ErrorKind::Unsupported => "U",
                ErrorKind::Input => "I",
                ErrorKind::Device => "D",
                ErrorKind::Io => "O",
                ErrorKind::Cancelled => "S",
            };
            let (first, number) = code.id().split_at(1);
            assert!(first == letter && number.len() == 3 && number.bytes().all(|b| b.is_ascii_digit()), "{code}");
            assert!(!code.title().is_empty() && !code.title().ends_with('.'), "{code}");
            assert!(code.cause().ends_with('.') && code.remedy().ends_with('.'), "{code}");
        }
    }

    #[test]
    fn each_kind_has_a_general_code() {
        for code in Code::all() {
            let general = Code::general(code.kind());
            assert!(general.kind() == code.kind() && general.id().ends_with("000"), "{code}");
        }
    }
}
