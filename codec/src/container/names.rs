//! Lookup of tensors by name.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::index::{Index, TensorEntry};
use crate::error::Result;

/// The positions of an index's tensors by name. It holds positions, not names: a hostile index may have millions of
/// names.
#[derive(Debug)]
pub struct Names {
    places: HashTable<usize>,
    hasher: RandomState,
}

impl Names {
    /// The names of `index`.
    ///
    /// # Errors
    /// [`ErrorKind::Format`](crate::ErrorKind::Format): a name is empty or not unique, or an alias has no tensor.
    pub fn of(index: &Index) -> Result<Self> {
        let tensors = &index.tensors;
        let mut names = Self { places: HashTable::with_capacity(tensors.len()), hasher: RandomState::new() };
        for (place, tensor) in tensors.iter().enumerate() {
            if tensor.name.is_empty() || names.of_tensor(tensors, &tensor.name).is_some() {
                return Err(coded!(BAD_NAMES, "the name of a tensor is empty or not unique").tensor(&tensor.name));
            }
            let hash = |&place: &usize| names.hasher.hash_one(&tensors[place].name);
            names.places.insert_unique(hash(&place), place, hash);
        }
        for (alias, target) in &index.aliases {
            // The target must be a tensor, so an alias of an alias is refused.
            if names.of_tensor(tensors, target).is_none() {
                return Err(coded!(BAD_NAMES, "an alias of '{target}', which is not there").tensor(alias));
            }
            if alias.is_empty() || names.of_tensor(tensors, alias).is_some() {
                return Err(coded!(BAD_NAMES, "the name of an alias is empty or not unique").tensor(alias));
            }
        }
        Ok(names)
    }

    /// The position in `index` of the tensor `name`, or of the one that it is an alias of.
    pub fn find(&self, index: &Index, name: &str) -> Option<usize> {
        self.of_tensor(&index.tensors, name).or_else(|| self.of_tensor(&index.tensors, index.aliases.get(name)?))
    }

    fn of_tensor(&self, tensors: &[TensorEntry], name: &str) -> Option<usize> {
        self.places.find(self.hasher.hash_one(name), |&place| tensors[place].name == name).copied()
    }
}
