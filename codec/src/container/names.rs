//! Finding tensors by their names.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::index::{Index, TensorEntry};
use crate::error::{Error, Result};

/// Where the tensors of an index are. It holds places, not names, of which a hostile index may have millions.
#[derive(Debug)]
pub struct Names {
    places: HashTable<usize>,
    hasher: RandomState,
}

impl Names {
    /// The names of `index`.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): a name is empty or not unique, or an alias is one of no tensor.
    pub fn of(index: &Index) -> Result<Self> {
        let tensors = &index.tensors;
        let mut names = Self { places: HashTable::with_capacity(tensors.len()), hasher: RandomState::new() };
        for (place, tensor) in tensors.iter().enumerate() {
            if tensor.name.is_empty() || names.of_tensor(tensors, &tensor.name).is_some() {
                return Err(Error::format("the name of a tensor is empty or not unique").tensor(&tensor.name));
            }
            let hash = |&place: &usize| names.hasher.hash_one(&tensors[place].name);
            names.places.insert_unique(hash(&place), place, hash);
        }
        for (alias, target) in &index.aliases {
            // An alias of an alias is no tensor's name.
            if names.of_tensor(tensors, target).is_none() {
                return Err(Error::format(format!("an alias of '{target}', which is not there")).tensor(alias));
            }
            if alias.is_empty() || names.of_tensor(tensors, alias).is_some() {
                return Err(Error::format("the name of an alias is empty or not unique").tensor(alias));
            }
        }
        Ok(names)
    }

    /// Where the tensor `name` of `index` is, or the one that it is an alias of.
    pub fn find(&self, index: &Index, name: &str) -> Option<usize> {
        self.of_tensor(&index.tensors, name).or_else(|| self.of_tensor(&index.tensors, index.aliases.get(name)?))
    }

    fn of_tensor(&self, tensors: &[TensorEntry], name: &str) -> Option<usize> {
        self.places.find(self.hasher.hash_one(name), |&place| tensors[place].name == name).copied()
    }
}
