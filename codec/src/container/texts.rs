//! The index as text: keys unknown to this crate are kept when a part of the index is copied.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{Error, Result};

/// The index as text, cut so that an entry can be taken out without parsing the others: a model with 50,000 tensors may
/// be taken apart tensor by tensor.
#[derive(Debug)]
pub struct IndexTexts {
    /// The keys about the file as a whole, without the lists of its contents.
    file: Box<RawValue>,
    tables: Vec<Box<RawValue>>,
    tensors: Vec<Box<RawValue>>,
}

impl IndexTexts {
    /// Cuts the text of an index that was parsed before, and is therefore known to be valid.
    pub fn new(json: &str) -> Result<Self> {
        let mut keys = Object::parse(json)?;
        let list = |key: &str| match keys.get(key) {
            Some(text) => serde_json::from_str::<Vec<Box<RawValue>>>(text.get()).map_err(bad_entry),
            None => Err(coded!(BAD_INDEX, "an index without '{key}'")),
        };
        let (tables, tensors) = (list("tables")?, list("tensors")?);
        keys.0.retain(|(key, _)| !matches!(&*key.0, "tables" | "tensors" | "aliases" | "model"));
        Ok(Self { file: raw(&keys)?, tables, tensors })
    }

    /// The keys about the file as a whole.
    pub fn file(&self) -> &str {
        self.file.get()
    }

    /// The entry of a table.
    pub fn table(&self, number: usize) -> Result<&str> {
        text_at(&self.tables, number)
    }

    /// The entry of a tensor.
    pub fn tensor(&self, place: usize) -> Result<&str> {
        text_at(&self.tensors, place)
    }
}

/// The text of an entry, which exists unless the file has changed since it was opened.
fn text_at(texts: &[Box<RawValue>], place: usize) -> Result<&str> {
    let text =
        texts.get(place).ok_or_else(|| coded!(BAD_INDEX, "the index has fewer entries than when it was opened"))?;
    Ok(text.get())
}

/// A JSON object whose values stay text: values under unknown keys may be anything, and large.
#[derive(Default)]
pub struct Object<'a>(Vec<(Key<'a>, Cow<'a, RawValue>)>);

#[derive(serde::Deserialize, serde::Serialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Object<'a> {
    /// Cuts the text of an object.
    pub fn parse(text: &'a str) -> Result<Self> {
        serde_json::from_str(text).map_err(bad_entry)
    }

    /// The value under a key, as text.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().find(|(k, _)| k.0 == key).map(|(_, value)| &**value)
    }

    /// Adds the entries of another object whose keys this one lacks.
    pub fn add_missing(&mut self, other: Self) {
        for (key, value) in other.0 {
            if self.get(&key.0).is_none() {
                self.0.push((key, value));
            }
        }
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &'a str, value: &impl Serialize) -> Result<()> {
        let value = Cow::Owned(raw(value)?);
        match self.0.iter_mut().find(|(k, _)| k.0 == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((Key(key.into()), value)),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut object = Object::default();
                while let Some((key, value)) = access.next_entry::<Key<'de>, &'de RawValue>()? {
                    object.0.push((key, Cow::Borrowed(value)));
                }
                Ok(object)
            }
        }
        d.deserialize_map(Entries)
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// Converts serde's error about an entry.
pub fn bad_entry(e: serde_json::Error) -> Error {
    coded!(BAD_INDEX, "an entry of the index: {e}")
}

/// A value as text.
pub fn raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    to_raw_value(value).map_err(|e| coded!(FORMAT, "the index cannot be written: {e}"))
}
