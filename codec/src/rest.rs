//! Models in two files: a container with the weights that are compressed, and beside it a `.safetensors` file with the rest.
//!
//! The container says so in its metadata. Folders that were written before it did say it in the model's `config.json`.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, Source, config_of};
use crate::decode::Container;
use crate::error::{Error, Result};
use crate::file::folder_of;

/// Key of a container's metadata: the name of the file beside it that has the model's other tensors.
pub const REST_KEY: &str = "wcodec.rest";

/// What that file is called in the folder of a model.
const REST_FILE: &str = "model.safetensors";

impl Container {
    /// Where the tensors of the model are that the container has not, if it is only a part of one. Whether the file is there is
    /// not looked at; of a container in memory only its name is known.
    ///
    /// # Errors
    /// The metadata names a file in another folder.
    pub fn rest(&self) -> Result<Option<PathBuf>> {
        let folder = self.path().map(folder_of);
        if let Some(name) = self.metadata().get(REST_KEY) {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                let e = Error::format(format!("the rest of the model is named '{name}', which is not in the folder"))
                    .advice("save the model again");
                return Err(self.reader().name(e));
            }
            return Ok(Some(folder.map_or_else(|| name.into(), |f| f.join(name))));
        }
        let (Some(folder), Some(own)) = (folder, self.path().and_then(Path::file_name)) else { return Ok(None) };
        Ok(container_of(folder).is_some_and(|name| *name == *own).then(|| folder.join(REST_FILE)))
    }

    /// The tensors of the model that the container has not, if it is only a part of one: what [`decode`](crate::decode()) takes.
    /// None where it has them all.
    ///
    /// # Errors
    /// The file is missing, or is no checkpoint.
    pub fn open_rest(&self) -> Result<Option<Checkpoint>> {
        let Some(path) = self.rest()? else { return Ok(None) };
        if self.path().is_none() || !path.is_file() {
            return Err(Error::missing("the tensors of the model that are not compressed are missing", &path)
                .advice("put this file back beside the container, or decode without it: --partial, partial=True"));
        }
        let rest = Checkpoint::open_rest(&path)?;
        // A whole container, encoded to the name that config.json says.
        let mut names = rest.tensors().iter().map(|t| &t.name);
        let is_whole = !rest.tensors().is_empty() && names.all(|name| self.reader().find(name).is_some());
        Ok((!is_whole).then_some(rest))
    }
}

/// Refuses a checkpoint that is the rest of a model: most of the model would be left out silently.
pub(crate) fn refuse(checkpoint: &Checkpoint) -> Result<()> {
    for path in checkpoint.shards().filter(|p| p.file_name().is_some_and(|n| n == REST_FILE)) {
        if let Some(name) = container_of(folder_of(path)) {
            let what = format!("it has only what is not compressed of a model, whose other weights are in '{name}'");
            return Err(Error::input(what)
                .file(path)
                .advice("name the original checkpoint, or decode that file first"));
        }
    }
    Ok(())
}

/// The name of the container that a folder's `config.json` says the model's weights are in.
fn container_of(folder: &Path) -> Option<String> {
    let config = config_of(folder)?;
    let quantization = config.get("quantization_config")?;
    if quantization.get("quant_method")?.as_str()? != "wcodec" {
        return None;
    }
    let named = quantization.get("file").and_then(|f| f.as_str()).unwrap_or("model.wcodec");
    Some(Path::new(named).file_name()?.to_string_lossy().into_owned())
}
