//! Terminal inspector of `.wcodec` containers: what is inside, how well each layer compresses and why, how fast it decodes here.
//!
//! State, update and view are apart. [`update::update`] turns a [`State`](state::State) and an [`Action`](action::Action) into the next
//! state and [`Effect`](effect::Effect)s; [`workers`] do the effects on threads of their own and report with actions; [`draw`]
//! reads the state only. So a key is answered within a frame while a layer of a gigabyte decodes.
//!
//! ```no_run
//! // What the program `wcodec-tui` does:
//! std::process::exit(wcodec_tui::run(std::env::args_os()).into());
//! ```

#[macro_use]
mod words;

pub mod action;
pub mod cli;
pub mod draw;
pub mod effect;
pub mod encode;
pub mod estimate;
pub mod json;
pub mod keymap;
pub mod menu;
pub mod model;
pub mod plain;
pub mod run;
pub mod state;
pub mod stats;
pub mod terminal;
pub mod timing;
pub mod update;
pub mod views;
pub mod workers;

pub use run::{run, run_with};
