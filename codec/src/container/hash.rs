//! Hashes of stored and of decoded bytes.

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A 64-bit hash; 16 hexadecimal digits in the index, since JSON numbers lose the last bits in many readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hash(pub u64);

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Hash;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("16 lower-case hexadecimal digits")
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Hash, E> {
                let digits = s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                match u64::from_str_radix(s, 16) {
                    Ok(n) if digits && s.len() == 16 => Ok(Hash(n)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(s), &self)),
                }
            }
        }
        d.deserialize_str(Visitor)
    }
}

impl Hash {
    /// Checks that decoded bytes have this hash.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
    pub fn check(self, computed: Hash) -> Result<()> {
        if computed == self {
            return Ok(());
        }
        Err(coded!(DECODED_HASH, "the decoded bytes do not match their hash").advice("encode the model again"))
    }
}

/// XXH3-64 of `bytes`.
pub fn hash(bytes: &[u8]) -> Hash {
    Hash(xxhash_rust::xxh3::xxh3_64(bytes))
}

/// [`hash()`] of bytes that arrive in parts.
#[derive(Default)]
pub(crate) struct Hasher(xxhash_rust::xxh3::Xxh3Default);

impl Hasher {
    /// Adds the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all parts.
    pub fn hash(&self) -> Hash {
        Hash(self.0.digest())
    }
}
