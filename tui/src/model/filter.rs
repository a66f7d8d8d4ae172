//! Which tensors are shown.

use regex::{Regex, RegexBuilder};

/// The text that a user typed to narrow a list: text that names contain, or a regular expression where it is one.
///
/// ```
/// use wcodec_tui::model::filter::Filter;
/// assert!(Filter::new("q_proj").matches("model.layers.0.self_attn.q_proj.weight"));
/// assert!(Filter::new(r"layers\.(1|2)\.").matches("model.layers.1.mlp.up_proj.weight"));
/// assert!(Filter::new("MLP").matches("model.layers.1.mlp.up_proj.weight"));
/// assert!(!Filter::new("layers.1.").matches("model.layers.10.mlp.up_proj.weight")); // a dot is a dot
/// assert!(Filter::new("a(b").matches("A(B"));
/// ```
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    regex: Option<Regex>,
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Largest compiled expression, bytes: what is typed must not take the memory.
const MOST: usize = 1 << 20;

impl Filter {
    /// Text without `\ ^ $ * + ? | [ ]` is looked for as it is, whatever its case. Anything else is a regular expression, unless it
    /// is none: then it is text, too.
    pub fn new(text: &str) -> Self {
        let plain = !text.contains(['\\', '^', '$', '*', '+', '?', '|', '[', ']']);
        let build = |pattern: &str| RegexBuilder::new(pattern).case_insensitive(true).size_limit(MOST).build().ok();
        let regex = if plain { None } else { build(text) };
        Self { text: text.to_owned(), regex: regex.or_else(|| build(&regex::escape(text))) }
    }

    /// The typed text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a name is shown.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_none_or(|r| r.is_match(name))
    }
}
