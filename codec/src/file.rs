//! Files read at random places and written atomically.

mod behind;
mod folder;
mod input;
mod output;
mod temporary;
mod writer;

pub use folder::folder_of;
pub use input::InputFile;
pub use output::{OutputFile, OutputKind};
pub use writer::NamedWriter;
