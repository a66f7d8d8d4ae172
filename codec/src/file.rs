//! Files read at random places and written atomically.

mod behind;
mod direct;
mod folder;
mod input;
mod output;
mod readers;
mod temporary;
mod writer;

pub(crate) use direct::{PAGE, PageBuffer, pages};
pub use folder::folder_of;
pub use input::{InputFile, reads_direct};
pub use output::{OutputFile, OutputKind};
pub(crate) use readers::{Handle, Readers};
pub use writer::NamedWriter;
