//! Models in two files: a container with the compressed weights, and a `.safetensors` file beside it with the rest.
//!
//! Earlier versions wrote such folders, with a note in the container's metadata or, earlier still, in the model's
//! `config.json`.

use std::path::{Path, PathBuf};

use super::container::Container;
use crate::checkpoint::{Checkpoint, REST_FILE, Source, container_of, is_whole};
use crate::container::metadata::REST_KEY;
use crate::error::{Code, Error, Result};
use crate::file::folder_of;

impl Container {
    /// The path of the file with the model's other tensors, if the container holds only a part of the model. The file
    /// need not exist; for a container in memory only its name is known.
    ///
    /// # Errors
    /// The metadata names a file in another folder.
    pub fn rest(&self) -> Result<Option<PathBuf>> {
        let folder = self.path().map(folder_of);
        if let Some(name) = self.metadata().get(REST_KEY) {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                let e = coded!(REST_ELSEWHERE, "the rest of the model is named '{name}', which is not in the folder")
                    .advice("save the model again");
                return Err(self.reader().name(e));
            }
            return Ok(Some(folder.map_or_else(|| name.into(), |f| f.join(name))));
        }
        let (Some(folder), Some(file_name)) = (folder, self.path().and_then(Path::file_name)) else { return Ok(None) };
        let is_part = container_of(folder).is_some_and(|name| *name == *file_name) && !is_whole(folder);
        Ok(is_part.then(|| folder.join(REST_FILE)))
    }

    /// The model's other tensors, if the container holds only a part of the model, ready for
    /// [`decode`](crate::decode()). `None` if the container has them all.
    ///
    /// # Errors
    /// The file is missing, or is not a checkpoint.
    pub fn open_rest(&self) -> Result<Option<Checkpoint>> {
        let Some(path) = self.rest()? else { return Ok(None) };
        if self.path().is_none() || !path.is_file() {
            return Err(Error::missing(
                Code::NO_REST,
                "the tensors of the model that are not compressed are missing",
                &path,
            )
            .advice("put this file back beside the container, or decode without it: --partial, partial=True"));
        }
        let rest = Checkpoint::open_rest(&path)?;
        // A whole container that was encoded to the file name in config.json.
        let mut names = rest.tensors().iter().map(|t| &t.name);
        let is_whole = !rest.tensors().is_empty() && names.all(|name| self.reader().find(name).is_some());
        Ok((!is_whole).then_some(rest))
    }
}
