//! The description of a model in its folder.

use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::file::read_small;

/// A model's configuration.
pub const CONFIG: &str = "config.json";

/// The largest description, bytes: real ones are a thousandth of that.
pub const MOST_TEXT: u64 = 1 << 28;

/// The name of the file with the uncompressed rest of a model, in the model's folder.
pub const REST_FILE: &str = "model.safetensors";

/// The content of `config.json`, or its text if that is not JSON. `None` if there is no such file.
fn config_of(folder: &Path) -> Option<serde_json::Value> {
    let text = read_small(&folder.join(CONFIG), MOST_TEXT).ok()?;
    // Python writes Infinity and NaN, which are not JSON: such a configuration is kept as text.
    let as_text = |_| serde_json::Value::String(String::from_utf8_lossy(&text).into_owned());
    Some(serde_json::from_slice(&text).unwrap_or_else(as_text))
}

/// `config.json` and the names of the files beside it that a model needs.
pub fn read_model(folder: &Path) -> Result<Option<(serde_json::Value, Vec<String>)>> {
    let Some(config) = config_of(folder) else { return Ok(None) };
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .map_err(|e| Error::io("list the folder", folder, e))?
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| {
            let known = [
                "generation_config",
                "tokenizer",
                "vocab",
                "merges",
                "special_tokens",
                "added_tokens",
                "chat_template",
            ];
            known.iter().any(|k| n.starts_with(k))
        })
        .collect();
    files.sort();
    Ok(Some((config, files)))
}

/// The name of the container that has the model's weights, according to the folder's `config.json`.
pub fn container_of(folder: &Path) -> Option<String> {
    let config = config_of(folder)?;
    let quantization = config.get("quantization_config")?;
    if quantization.get("quant_method")?.as_str()? != "wcodec" {
        return None;
    }
    let named = quantization.get("file").and_then(|f| f.as_str()).unwrap_or("model.wcodec");
    Some(Path::new(named).file_name()?.to_string_lossy().into_owned())
}

/// Whether a folder's `config.json` says that all of the model's weights are in its container: it then also names the
/// container as transformers' file of weights, so that loaders that do not know the format do not load anything else.
/// Folders of earlier versions keep the uncompressed rest in [`REST_FILE`].
pub fn is_whole(folder: &Path) -> bool {
    container_of(folder).is_some_and(|name| weights_named_in(folder).is_some_and(|named| named == name))
}

/// The file that has the weights according to `config.json` (`transformers_weights`), as transformers reads it.
pub fn weights_named_in(folder: &Path) -> Option<String> {
    Some(config_of(folder)?.get("transformers_weights")?.as_str()?.to_owned())
}

/// The container in the folder of a compressed model: the one that its `config.json` names, or the only one.
///
/// # Errors
/// There is none, or there are several and the configuration names none of them.
pub fn container_in(folder: &Path) -> Result<PathBuf> {
    if let Some(name) = container_of(folder) {
        let path = folder.join(name);
        if !path.is_file() {
            return Err(Error::missing(Code::NO_CONTAINER, "config.json names this file, and it is missing", &path)
                .advice("put it back, or save the model again"));
        }
        return Ok(path);
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("list the folder", folder, e))?;
    let mut configs: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "wcodec") && path.is_file())
        .collect();
    match configs.len() {
        1 => Ok(configs.remove(0)),
        0 => Err(Error::missing(Code::NO_MODEL, "no .wcodec file in the folder", folder)
            .advice("name a .wcodec file, or encode the model first")),
        n => Err(coded!(SEVERAL_SOURCES, "there are {n} .wcodec files in the folder")
            .file(folder)
            .advice("name one of them")),
    }
}
