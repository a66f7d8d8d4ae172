//! Files that are read at random offsets and written atomically.

mod behind;
mod direct;
mod folder;
mod input;
mod output;
mod owner;
mod place;
mod readers;
mod temporary;
mod writer;

pub(crate) use direct::{PAGE, PageBuffer, pages};
pub use folder::folder_of;
pub use input::{InputFile, read_small, reads_direct};
pub use output::{OutputFile, OutputKind, is_same_file};
pub(crate) use place::{Names, Place, is_there};
pub(crate) use readers::{Handle, Readers};
pub use writer::NamedWriter;
