//! Statements of a file on its plan, its calibration and its quality: three keys of its metadata, JSON text in the form of
//! `FORMAT.md`. Others may have written them: whatever they are, a file opens, and what is not in that form is not there.

use std::collections::BTreeMap;

use serde_json::Value;
use wcodec::{CALIBRATION_KEY, PLAN_KEY, QUALITY_KEY};

use crate::draw::text::{count, general};

/// The steps of a candidate that others are measured against: as far apart as the weights alone say.
pub const WEIGHTS_ALONE: &str = "weights alone";

type Metadata = BTreeMap<String, String>;

/// A statement, or a part of one: an object, in which other keys than those of `FORMAT.md` may be anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement(pub Value);

impl Statement {
    /// The one that a key of the metadata holds, if it is in the form of `FORMAT.md`.
    pub fn of(metadata: &Metadata, key: &str) -> Option<Self> {
        let found: Value = serde_json::from_str(metadata.get(key)?).ok()?;
        let fits = match key {
            CALIBRATION_KEY => found.get("tokens").is_some_and(Value::is_u64),
            PLAN_KEY => ["recipe", "target"].iter().all(|k| found.get(k).is_some_and(Value::is_string)),
            _ => ["kl", "perplexity", "original_perplexity", "top1_agreement", "tokens"]
                .iter()
                .all(|k| found.get(k).is_some_and(Value::is_number)),
        };
        fits.then_some(Self(found))
    }

    /// A text.
    pub fn words(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    /// A number that [`of`](Self::of) demands.
    pub fn figure(&self, key: &str) -> f64 {
        self.number(key).unwrap_or(f64::NAN)
    }

    /// A whole number.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_u64()
    }

    /// Whether something is so.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    /// The candidates that a plan says were tried.
    pub fn candidates(&self) -> Vec<Self> {
        let all = self.0.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        all.iter().cloned().map(Self).filter(|c| c.words("recipe").is_some()).collect()
    }

    /// The damage of the steps by the weights alone, if a plan says that it was measured.
    pub fn weights_alone(&self) -> Option<f64> {
        let candidates = self.candidates();
        candidates.iter().find(|c| c.words("recipe") == Some(WEIGHTS_ALONE))?.number("kl").filter(|&kl| kl > 0.0)
    }

    /// The tokens of a measured quality, written out.
    pub fn tokens(&self) -> String {
        self.whole("tokens").map_or_else(|| self.0["tokens"].to_string(), count)
    }

    /// The beginning of the hash of the token ids of a measured quality's text.
    pub fn text(&self) -> String {
        self.words("text_sha256").map_or_else(|| "?".to_owned(), |t| t.chars().take(16).collect())
    }
}

/// The plan in a line.
pub fn plan_line(plan: &Statement) -> String {
    format!("{}, for {}", plan.words("recipe").unwrap_or_default(), plan.words("target").unwrap_or_default())
}

/// The calibration in a line; its source is `self` where the model wrote the text, and `mixed` for many kinds.
pub fn calibration_line(calibration: &Statement) -> String {
    let source = match calibration.words("source") {
        Some("self") => " that the model wrote",
        Some("mixed") => " of many kinds of text",
        _ => "",
    };
    format!("on {} tokens{source}", count(calibration.whole("tokens").unwrap_or(0)))
}

/// The measured quality in a line.
pub fn quality_line(quality: &Statement) -> String {
    format!(
        "KL {} nats/token, perplexity {:.4} -> {:.4}, same top token {:.2} %, of {} tokens (text {})",
        general(quality.figure("kl"), 3),
        quality.figure("original_perplexity"),
        quality.figure("perplexity"),
        100.0 * quality.figure("top1_agreement"),
        quality.tokens(),
        quality.text()
    )
}

/// Facts for people, in the words of `wcodec inspect`: of what metadata have them, the plan, the calibration and what was measured.
pub fn lines(metadata: &Metadata) -> Vec<(&'static str, String)> {
    type Line = fn(&Statement) -> String;
    let lines: [(_, _, Line); 3] = [
        ("plan", PLAN_KEY, plan_line),
        ("calibrated", CALIBRATION_KEY, calibration_line),
        ("measured", QUALITY_KEY, quality_line),
    ];
    lines.into_iter().filter_map(|(name, key, line)| Some((name, line(&Statement::of(metadata, key)?)))).collect()
}
