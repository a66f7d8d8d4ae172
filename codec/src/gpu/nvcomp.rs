//! nvCOMP, NVIDIA's library of decoders: loaded at run time from the user's installation, versions 3.0 to 6.x.
//!
//! Three incompatible interfaces go by the same name. They differ in the number of arguments, in what is passed by value,
//! and one function name means two of them ([`Family`]). A symbol that is found therefore proves nothing: the version that
//! the library reports and the set of symbols that it has must agree, and what is newer than what was tried is refused.
//!
//! ```
//! use wcodec::gpu::nvcomp::Nvcomp;
//! match Nvcomp::load(None, &[], None) {
//!     Ok(nvcomp) => println!("nvCOMP {} in {}", nvcomp.version(), nvcomp.path().display()),
//!     Err(e) => println!("{e}"), // says where it was looked for and how to get it
//! }
//! ```
//!
//! # Parts
//! `find` knows where it may be, `family` which interface it has, `sys` the foreign functions, `result` what they
//! return, `safe` what the rest of the crate uses.
//!
//! # What nvCOMP does not promise
//! Its decoders are not made for hostile input: damaged frames may hang or write elsewhere, and status 0 alone proves
//! little. Frames have to be verified before they are decoded, and the decoded lengths afterwards.

mod family;
mod find;
mod result;
mod safe;
mod sys;

pub use family::{Family, Version};
pub use find::ENVIRONMENT;
pub use result::status_name;
pub use safe::{Alignments, AnsMode, CompressBatch, DeviceBatch, Nvcomp};
