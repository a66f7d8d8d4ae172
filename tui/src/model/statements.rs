//! Statements of a file on its plan, its calibration and its quality: three keys of its metadata, JSON text in the form of
//! `FORMAT.md`. Others may have written them: whatever they are, a file opens, and what is not in that form is not there.

use std::collections::BTreeMap;

use serde_json::Value;
use wcodec::{CALIBRATION_KEY, PLAN_KEY, QUALITY_KEY};

use crate::draw::text::{count, general};

/// The steps of a candidate that others are measured against: as far apart as the weights alone say.
pub const WEIGHTS_ALONE: &str = "weights alone";

/// The choice of bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The way that was taken, for people.
    pub recipe: String,
    /// The target that it was to meet, for people.
    pub target: String,
    /// The scheme of what is encoded.
    pub scheme: Option<String>,
    /// Bits per weight that were asked for.
    pub bits: Option<f64>,
    /// Whether levels are chosen by a trellis.
    pub trellis: Option<bool>,
    /// The candidates that were tried.
    pub candidates: Vec<Candidate>,
}

/// A way that was tried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub recipe: String,
    /// Bits per weight that were asked for.
    pub bits_asked: Option<f64>,
    /// Bits per weight that were stored.
    pub bits_stored: Option<f64>,
    /// Bytes of the file.
    pub file_bytes: Option<u64>,
    /// The divergence, as in [`Quality`].
    pub kl: Option<f64>,
    /// The perplexity of the decoded model.
    pub perplexity: Option<f64>,
    /// The part of tokens with the same most probable successor.
    pub top1_agreement: Option<f64>,
    /// Whether the file is made so.
    pub taken: bool,
}

/// The measured quality of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// Mean of KL(original || decoded), nats per token.
    pub kl: f64,
    /// Its standard error.
    pub kl_error: Option<f64>,
    /// Perplexity of the decoded model, on the text.
    pub perplexity: f64,
    /// Perplexity of the original.
    pub original_perplexity: f64,
    /// Part of the tokens whose most probable successor is the same, 0 to 1.
    pub top1_agreement: f64,
    /// Tokens, written out.
    pub tokens: String,
    /// Windows of the text.
    pub windows: Option<u64>,
    /// Tokens of each.
    pub window: Option<u64>,
    /// The beginning of the hash of the text's token ids.
    pub text: String,
    /// The dtype that the model computed in.
    pub dtype: Option<String>,
}

/// The text that the file's steps and levels were calibrated on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Tokens.
    pub tokens: u64,
    /// The text: `self` for one that the model wrote.
    pub source: Option<String>,
}

type Metadata = BTreeMap<String, String>;

/// The object that a key holds, if it is in the form of `FORMAT.md`.
pub fn statement(metadata: &Metadata, key: &str) -> Option<Value> {
    let found: Value = serde_json::from_str(metadata.get(key)?).ok()?;
    let fits = match key {
        CALIBRATION_KEY => found.get("tokens").is_some_and(Value::is_u64),
        PLAN_KEY => ["recipe", "target"].iter().all(|k| found.get(k).is_some_and(Value::is_string)),
        _ => ["kl", "perplexity", "original_perplexity", "top1_agreement", "tokens"]
            .iter()
            .all(|k| found.get(k).is_some_and(Value::is_number)),
    };
    fits.then_some(found)
}

fn words(of: &Value, key: &str) -> Option<String> {
    Some(of.get(key)?.as_str()?.to_owned())
}

fn number(of: &Value, key: &str) -> Option<f64> {
    of.get(key)?.as_f64()
}

impl Plan {
    /// The plan, if the metadata have one.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let found = statement(metadata, PLAN_KEY)?;
        let candidates = found.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Some(Self {
            recipe: words(&found, "recipe")?,
            target: words(&found, "target")?,
            scheme: words(&found, "scheme"),
            bits: number(&found, "bits"),
            trellis: found.get("trellis").and_then(Value::as_bool),
            candidates: candidates.iter().filter_map(Candidate::of).collect(),
        })
    }

    /// It in a line.
    pub fn line(&self) -> String {
        format!("{}, for {}", self.recipe, self.target)
    }

    /// The damage of the steps by the weights alone, if it was measured.
    pub fn weights_alone(&self) -> Option<f64> {
        self.candidates.iter().find(|c| c.recipe == WEIGHTS_ALONE)?.kl.filter(|&kl| kl > 0.0)
    }
}

impl Calibration {
    /// The calibration, if the metadata say it.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let found = statement(metadata, CALIBRATION_KEY)?;
        Some(Self { tokens: found.get("tokens")?.as_u64()?, source: words(&found, "source") })
    }

    /// It in a line.
    pub fn line(&self) -> String {
        let source = match self.source.as_deref() {
            Some("self") => " that the model wrote",
            _ => "",
        };
        format!("on {} tokens{source}", count(self.tokens))
    }
}

impl Candidate {
    fn of(found: &Value) -> Option<Self> {
        Some(Self {
            recipe: words(found, "recipe")?,
            bits_asked: number(found, "bits_asked"),
            bits_stored: number(found, "bits_stored"),
            file_bytes: found.get("file_bytes").and_then(Value::as_u64),
            kl: number(found, "kl"),
            perplexity: number(found, "perplexity"),
            top1_agreement: number(found, "top1_agreement"),
            taken: found.get("taken").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

impl Quality {
    /// The measured quality, if the metadata say it.
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let found = statement(metadata, QUALITY_KEY)?;
        let whole = |key: &str| found.get(key).and_then(Value::as_u64);
        Some(Self {
            kl: number(&found, "kl")?,
            kl_error: number(&found, "kl_error"),
            perplexity: number(&found, "perplexity")?,
            original_perplexity: number(&found, "original_perplexity")?,
            top1_agreement: number(&found, "top1_agreement")?,
            tokens: whole("tokens").map_or_else(|| found["tokens"].to_string(), count),
            windows: whole("windows"),
            window: whole("window"),
            text: words(&found, "text_sha256").map_or_else(|| "?".to_owned(), |t| t.chars().take(16).collect()),
            dtype: words(&found, "dtype"),
        })
    }

    /// It in a line.
    pub fn line(&self) -> String {
        format!(
            "KL {} nats/token, perplexity {:.4} -> {:.4}, same top token {:.2} %, of {} tokens (text {})",
            general(self.kl, 3),
            self.original_perplexity,
            self.perplexity,
            100.0 * self.top1_agreement,
            self.tokens,
            self.text
        )
    }
}

/// Facts for people, in the words of `wcodec inspect`: of what metadata have them, the plan, the calibration and what was measured.
pub fn lines(metadata: &Metadata) -> Vec<(&'static str, String)> {
    let plan = Plan::of(metadata).map(|p| ("plan", p.line()));
    let calibration = Calibration::of(metadata).map(|c| ("calibrated", c.line()));
    plan.into_iter().chain(calibration).chain(Quality::of(metadata).map(|q| ("measured", q.line()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(plan: &str, quality: &str) -> Metadata {
        Metadata::from([(PLAN_KEY.to_owned(), plan.to_owned()), (QUALITY_KEY.to_owned(), quality.to_owned())])
    }

    const MEASURED: &str = r#"{"kl": 0.130254, "perplexity": 5.57072, "original_perplexity": 4.94055,
        "top1_agreement": 0.855713, "tokens": 12288, "text_sha256": "80297662a7964a65f0ed"}"#;

    #[test]
    fn lines_are_those_of_inspect() {
        let plan = r#"{"recipe": "measured roles", "target": "4 bits", "candidates": [{"recipe": "weights alone", "kl": 0.5}, 7]}"#;
        let found = metadata(plan, MEASURED);
        let quality = "KL 0.13 nats/token, perplexity 4.9405 -> 5.5707, same top token 85.57 %, of 12,288 tokens \
             (text 80297662a7964a65)";
        assert_eq!(
            lines(&found),
            [("plan", "measured roles, for 4 bits".to_owned()), ("measured", quality.to_owned())]
        );
        let calibrated = |text: &str| Metadata::from([(CALIBRATION_KEY.to_owned(), text.to_owned())]);
        let found_of = |text: &str| lines(&calibrated(text));
        assert_eq!(found_of(r#"{"tokens": 2048}"#), [("calibrated", "on 2,048 tokens".to_owned())]);
        let own = [("calibrated", "on 512 tokens that the model wrote".to_owned())];
        assert_eq!(found_of(r#"{"version": 1, "tokens": 512, "source": "self"}"#), own);
        assert_eq!(found_of(r#"{"tokens": -1}"#), []);
        let plan = Plan::of(&found).unwrap();
        assert_eq!((plan.candidates.len(), plan.weights_alone()), (1, Some(0.5)));
    }

    #[test]
    fn what_is_in_no_known_form_is_not_there() {
        let deep = "[".repeat(100_000);
        for text in ["", "{}", "[]", "3", "null", "{\"recipe\": 3, \"target\": \"x\"}", "{\"kl\": NaN}", "\u{0}", &deep]
        {
            assert_eq!(lines(&metadata(text, text)), [], "{text:.30}");
        }
        let wrong = MEASURED.replace("0.130254", "true");
        assert_eq!(Quality::of(&metadata("", &wrong)), None);
        assert_eq!(Quality::of(&metadata("", &MEASURED.replace("0.130254", "1e999"))), None);
        // Other keys beside it may be anything.
        let odd =
            r#"{"recipe": "a", "target": "b", "bits": "x", "trellis": 3, "candidates": {"recipe": "c"}, "scheme": []}"#;
        let plan = Plan { recipe: "a".into(), target: "b".into(), ..Plan::default() };
        assert_eq!(Plan::of(&metadata(odd, "")), Some(plan));
        let odd = MEASURED.replace("12288", "-1.5").replace("\"80297662a7964a65f0ed\"", "null");
        let found = Quality::of(&metadata("", &odd)).unwrap();
        assert_eq!((found.tokens.as_str(), found.text.as_str(), found.windows), ("-1.5", "?", None));
    }
}
