//! Schemes: how a float tensor becomes symbols. `FORMAT.md` section 2.
//!
//! Scheme `raw` keeps a tensor's bytes and needs no code.

pub mod int8;
