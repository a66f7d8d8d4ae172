//! Finds the weight files of a folder, the ones that transformers reads, or returns an error that names the obstacle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::config::{CONFIG, MOST_TEXT, REST_FILE, container_of, is_whole, weights_named_in};
use crate::error::{Error, Result};
use crate::file::read_small;

const ENDING: &str = ".safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";
const STANDARD_INDEX: &str = "model.safetensors.index.json";
/// The files that transformers reads if there is neither `model.safetensors` nor its index.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
/// Weights of an adapter, not of a model.
const ADAPTER: &str = "adapter_model.safetensors";

pub type WeightMap = BTreeMap<String, String>;

/// The files that hold a checkpoint's weights.
pub struct Shards {
    pub names: Vec<String>,
    /// Their index, and its mapping of tensors to files.
    pub index: Option<PathBuf>,
    pub wanted: Option<WeightMap>,
}

impl Shards {
    fn single(name: &str) -> Self {
        Self { names: vec![name.to_owned()], index: None, wanted: None }
    }
}

/// The weights of a folder: the file that `config.json` names (`transformers_weights`), otherwise `model.safetensors`,
/// otherwise the files that `model.safetensors.index.json` lists. If there are none of these, a single file with
/// another name, or a single index.
///
/// # Errors
/// There are no weights, several candidates, or other ones that transformers reads; the message names them.
pub fn find_shards(folder: &Path) -> Result<Shards> {
    let is_there = |name: &str| folder.join(name).is_file();
    if let Some(name) = container_of(folder).filter(|_| is_whole(folder)) {
        return Err(coded!(COMPRESSED_SOURCE, "it is a compressed model, whose weights are in '{name}'")
            .file(folder)
            .advice("name the original checkpoint, or decode that file first"));
    }
    if let Some(name) = weights_named_in(folder) {
        return named(folder, &name);
    }
    if is_there(REST_FILE) {
        return Ok(Shards::single(REST_FILE));
    }
    if is_there(STANDARD_INDEX) {
        return indexed(folder, STANDARD_INDEX);
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("list the folder", folder, e))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    let with = |end: &str| names.iter().filter(|n| n.ends_with(end)).map(String::as_str).collect::<Vec<_>>();
    let (indexes, mut files) = (with(INDEX_ENDING), with(ENDING));
    // An adapter beside a model is not the model's weights; alone, it is the requested file.
    if files.len() > 1 || !indexes.is_empty() {
        files.retain(|name| *name != ADAPTER);
    }
    let file = match (&indexes[..], &files[..]) {
        ([], []) => {
            return Err(coded!(OTHER_FORM, "no .safetensors file in the folder")
                .file(folder)
                .advice("name the folder of a Hugging Face checkpoint, or convert it to .safetensors"));
        }
        ([], [file]) => file,
        // A whole file takes precedence over its own index, as with the standard names.
        ([index], files) => match files.iter().find(|file| index.strip_suffix(".index.json") == Some(**file)) {
            Some(whole) => whole,
            None => index,
        },
        ([], [first, second, ..]) => {
            return Err(coded!(
                SEVERAL_SOURCES,
                "several .safetensors files and no index of them: '{first}', '{second}'{}",
                if files.len() > 2 { ", ..." } else { "" }
            )
            .file(folder)
            .advice("name one of the files, or add model.safetensors.index.json"));
        }
        ([first, second, ..], _) => {
            return Err(coded!(SEVERAL_SOURCES, "several indexes of shards in the folder: '{first}', '{second}'")
                .file(folder)
                .advice("name one of the files"));
        }
    };
    if let Some(pickled) = PICKLED.into_iter().find(|name| is_there(name)) {
        return Err(coded!(
            OTHER_WEIGHTS,
            "transformers reads '{pickled}' of this folder, not '{file}', whose name it does not look for"
        )
        .file(folder)
        .advice(format!("name the file to read, rename it to {REST_FILE}, or move the other away")));
    }
    if file.ends_with(INDEX_ENDING) { indexed(folder, file) } else { Ok(Shards::single(file)) }
}

/// The weights that `config.json` names.
fn named(folder: &Path, name: &str) -> Result<Shards> {
    let refuse = |what: String| {
        coded!(WEIGHTS_OF_CONFIG, what)
            .file(&folder.join(CONFIG))
            .advice("restore the file, or name the file of the weights")
    };
    if Path::new(name).file_name() != Some(name.as_ref()) || !(name.ends_with(ENDING) || name.ends_with(INDEX_ENDING)) {
        return Err(refuse(format!(
            "its transformers_weights is '{name}', which is no .safetensors file of the folder"
        )));
    }
    if !folder.join(name).is_file() {
        return Err(refuse(format!("its transformers_weights is '{name}', which is missing")));
    }
    if name.ends_with(INDEX_ENDING) { indexed(folder, name) } else { Ok(Shards::single(name)) }
}

/// The weights that an index lists.
fn indexed(folder: &Path, index: &str) -> Result<Shards> {
    #[derive(serde::Deserialize)]
    struct ShardIndex {
        weight_map: WeightMap,
    }
    let path = folder.join(index);
    let text = read_small(&path, MOST_TEXT)?;
    let parsed: ShardIndex = serde_json::from_slice(&text).map_err(|e| {
        coded!(BAD_SHARD_INDEX, "not an index of shards: {e}").file(&path).advice("download the checkpoint again")
    })?;
    if parsed.weight_map.is_empty() {
        return Err(coded!(BAD_SHARD_INDEX, "the index of the shards names no tensor")
            .file(&path)
            .advice("download the checkpoint again"));
    }
    let mut shards: Vec<String> = parsed.weight_map.values().cloned().collect();
    shards.sort();
    shards.dedup();
    if let Some(bad) = shards.iter().find(|s| Path::new(s).file_name() != Some(s.as_ref())) {
        return Err(coded!(SHARD_ELSEWHERE, "a shard named '{bad}' is not in the folder")
            .file(&path)
            .advice("put the shards beside the index, and plain names into it"));
    }
    Ok(Shards { names: shards, index: Some(path), wanted: Some(parsed.weight_map) })
}
