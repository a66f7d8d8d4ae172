//! Bits by role of the tensors, and by the layer that they are in.

use std::collections::HashMap;

use wcodec::names::natural;
use wcodec::{CALIBRATION_KEY, PLAN_KEY, QUALITY_KEY, TensorInfo};

use super::FileModel;
use super::statements::Statement;
use super::totals::Totals;
use crate::draw::text::width;

/// The role of a tensor, which those of all layers and experts share: the name without numbers that stand alone, as `wcodec plan` names roles.
///
/// ```
/// use wcodec_tui::model::rates::role_of;
/// assert_eq!(role_of("model.layers.11.mlp.experts.3.w1.weight"), "model.layers.*.mlp.experts.*.w1.weight");
/// assert_eq!(role_of("lm_head.weight"), "lm_head.weight");
/// ```
pub fn role_of(name: &str) -> String {
    let mut role = String::with_capacity(name.len());
    for (i, part) in name.split('.').enumerate() {
        role.push_str(if i > 0 { "." } else { "" });
        role.push_str(if is_number(part) { "*" } else { part });
    }
    role
}

/// The layer that a tensor is in: its name up to the first number that stands alone.
///
/// ```
/// use wcodec_tui::model::rates::layer_of;
/// assert_eq!(layer_of("model.layers.11.mlp.experts.3.w1.weight"), Some("model.layers.11"));
/// assert_eq!(layer_of("lm_head.weight"), None);
/// ```
pub fn layer_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if is_number(part) {
            return name.get(..end);
        }
        end += 1;
    }
    None
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// Tensors that have something in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The role or layer that they share.
    pub name: String,
    /// Sums over them.
    pub totals: Totals,
    /// Their schemes, in the order of the file.
    pub schemes: String,
    /// Root of the mean square of what their stated errors say, each weight once; none where none is stated.
    pub error: Option<f64>,
}

/// The file's statements on its bits, and sums of them.
#[derive(Debug, Default)]
pub struct Rates {
    /// The plan by which they were chosen, if the file says so.
    pub plan: Option<Statement>,
    /// Its calibration, if it says so.
    pub calibration: Option<Statement>,
    /// The measured quality, if it says so.
    pub quality: Option<Statement>,
    /// By role, the most stored bytes first.
    pub roles: Vec<Group>,
    /// By layer, in natural order; tensors in none come last, together.
    pub layers: Vec<Group>,
    /// All tensors.
    pub all: Group,
    /// Columns that the longest name takes.
    pub widest: usize,
    /// And the longest list of schemes.
    pub schemes: usize,
    /// Tensors of a calibrated file, the most important first: those with the smallest stated errors.
    important: Vec<usize>,
}

/// The name for all tensors in no layer.
pub const NO_LAYER: &str = "in no layer";

impl Rates {
    /// Those of a file.
    pub fn new(file: &FileModel) -> Self {
        let (roles, layers) = (roles(&file.tensors), layers(&file.tensors));
        let all = groups(&file.tensors, |_| String::new()).pop().unwrap_or_default();
        let all = Group { name: "all tensors".to_owned(), ..all };
        let groups = || roles.iter().chain(&layers).chain([&all]);
        let widest = groups().map(|g| width(&g.name)).max().unwrap_or(0);
        let schemes = groups().map(|g| width(&g.schemes)).max().unwrap_or(0);
        let [plan, quality, calibration] =
            [PLAN_KEY, QUALITY_KEY, CALIBRATION_KEY].map(|key| Statement::of(&file.metadata, key));
        let stated = file.tensors.iter().enumerate().filter_map(|(i, t)| Some((i, t.error?)));
        let mut stated: Vec<(usize, f64)> = stated.filter(|_| calibration.is_some()).collect();
        stated.sort_by(|a, b| a.1.total_cmp(&b.1));
        let important = stated.into_iter().map(|(i, _)| i).collect();
        Self { plan, calibration, quality, roles, layers, all, widest, schemes, important }
    }

    /// The place of a tensor among all by importance, from 1 on, and how many there are; none where nobody knows. Calibration gives a tensor
    /// the larger error the less its weights matter.
    pub fn rank(&self, tensor: usize) -> Option<(usize, usize)> {
        let at = self.important.iter().position(|&i| i == tensor)?;
        Some((at + 1, self.important.len()))
    }
}

/// Sums by role, the most stored bytes first.
pub fn roles(tensors: &[TensorInfo]) -> Vec<Group> {
    by_size(groups(tensors, |t| role_of(&t.name)))
}

/// Groups, the most stored bytes first.
pub fn by_size(mut found: Vec<Group>) -> Vec<Group> {
    found.sort_by_key(|g| std::cmp::Reverse(g.totals.stored_bytes));
    found
}

/// Sums by layer, in natural order; tensors in none come last, together.
pub fn layers(tensors: &[TensorInfo]) -> Vec<Group> {
    let mut found = groups(tensors, |t| layer_of(&t.name).unwrap_or_default().to_owned());
    // No layer has an empty name: a number is in it.
    found.sort_by(|a, b| a.name.is_empty().cmp(&b.name.is_empty()).then_with(|| natural(&a.name, &b.name)));
    if let Some(last) = found.last_mut().filter(|g| g.name.is_empty()) {
        last.name = NO_LAYER.to_owned();
    }
    found
}

/// Sums over tensors that share something, in the order of the file. There may be as many of these as tensors.
pub fn groups(tensors: &[TensorInfo], what: impl Fn(&TensorInfo) -> String) -> Vec<Group> {
    let group = |(name, of): (String, Vec<usize>)| {
        let of = || of.iter().map(|&i| &tensors[i]);
        let (mut schemes, mut squares, mut weights) = (Vec::new(), 0.0, 0u64);
        for t in of() {
            if !schemes.contains(&t.scheme.as_str()) {
                schemes.push(&t.scheme);
            }
            if let Some(error) = t.error {
                squares += error * error * t.elements as f64;
                weights = weights.saturating_add(t.elements);
            }
        }
        let error = (weights > 0).then(|| (squares / weights as f64).sqrt());
        Group { name, totals: Totals::of(of()), schemes: schemes.join(", "), error }
    };
    gather(tensors.iter().enumerate().map(|(i, t)| (what(t), i))).into_iter().map(group).collect()
}

/// Tensors by what they share, in the order of the first one of each.
pub fn gather(tensors: impl Iterator<Item = (String, usize)>) -> Vec<(String, Vec<usize>)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut found: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, i) in tensors {
        let at = *places.entry(name).or_insert_with_key(|name| {
            found.push((name.clone(), Vec::new()));
            found.len() - 1
        });
        found[at].1.push(i);
    }
    found
}
