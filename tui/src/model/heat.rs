//! Tensors as a grid: layers are its rows, what tensors are for its columns.

use std::collections::HashMap;

use wcodec::TensorInfo;
use wcodec::names::natural;

use super::FileModel;
use super::rates::{layer_of, role_of};
use super::totals::Totals;

/// The tensors of a cell of the grid: one, or those of all experts of a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatCell {
    /// Sums over them.
    pub totals: Totals,
    /// Their places in the file.
    pub tensors: Vec<usize>,
}

impl HeatCell {
    fn add(&mut self, place: usize, tensor: &TensorInfo) {
        self.totals.add(tensor);
        self.tensors.push(place);
    }
}

/// A row of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// The layer, or the tensor that is in none.
    pub name: String,
    /// The text before the row: the layer's number, if all layers are of one stack.
    pub label: String,
    /// Cells by their columns, which ascend. A tensor in no layer has one, in column 0.
    pub cells: Vec<(usize, HeatCell)>,
    /// All of a layer.
    pub all: HeatCell,
}

impl HeatRow {
    /// The cell in a column.
    pub fn cell(&self, column: usize) -> Option<&HeatCell> {
        let at = self.cells.binary_search_by_key(&column, |(c, _)| *c).ok()?;
        Some(&self.cells[at].1)
    }
}

/// A column of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatColumn {
    /// The names that it stands for, as [`role_of`] gives them without what comes before the layer's number.
    pub role: String,
    /// A word for it.
    pub label: String,
    /// All layers.
    pub all: HeatCell,
}

/// The grid.
#[derive(Debug, Default)]
pub struct Heat {
    /// Matrices first, in the order of a layer's work; vectors after them.
    pub columns: Vec<HeatColumn>,
    /// Layers in natural order, then tensors in no layer, each for itself.
    pub rows: Vec<HeatRow>,
    /// The number of rows that are layers.
    pub layers: usize,
}

impl Heat {
    /// The grid of a file.
    pub fn new(file: &FileModel) -> Self {
        Self::of(&file.tensors, &file.natural)
    }

    /// The grid of tensors, of which `order` is the natural order.
    fn of(tensors: &[TensorInfo], order: &[usize]) -> Self {
        let mut roles: HashMap<String, usize> = HashMap::new();
        let mut found: Vec<(String, u8, HeatCell)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut layers: Vec<(&str, Vec<(usize, usize)>)> = Vec::new();
        let mut loose = Vec::new();
        for &i in order {
            let t = &tensors[i];
            let Some(layer) = layer_of(&t.name) else {
                loose.push(i);
                continue;
            };
            let role = role_in_layer(&t.name, layer);
            let column = *roles.entry(role).or_insert_with_key(|role| {
                found.push((role.clone(), 0, HeatCell::default()));
                found.len() - 1
            });
            // A role whose tensors are vectors everywhere comes after the matrices.
            found[column].1 = found[column].1.max(t.shape.len().min(2) as u8);
            found[column].2.add(i, t);
            let row = *places.entry(layer).or_insert_with(|| {
                layers.push((layer, Vec::new()));
                layers.len() - 1
            });
            layers[row].1.push((column, i));
        }
        layers.sort_by(|a, b| natural(a.0, b.0));
        let mut sorted: Vec<usize> = (0..found.len()).collect();
        sorted.sort_by_key(|&c| (std::cmp::Reverse(found[c].1), rank(&found[c].0), c));
        let mut place_of = vec![0; found.len()];
        sorted.iter().enumerate().for_each(|(at, &c)| place_of[c] = at);
        let labels = labels(&sorted.iter().map(|&c| found[c].0.as_str()).collect::<Vec<_>>());
        let columns = sorted
            .iter()
            .zip(labels)
            .map(|(&c, label)| HeatColumn { role: found[c].0.clone(), label, all: std::mem::take(&mut found[c].2) })
            .collect();
        let stem = |layer: &str| layer.rfind('.').map_or(0, |dot| dot + 1);
        let one_stack = layers.windows(2).all(|w| w[0].0[..stem(w[0].0)] == w[1].0[..stem(w[1].0)]);
        let mut rows: Vec<HeatRow> = layers
            .into_iter()
            .map(|(layer, tensors_of)| {
                let (mut cells, mut all) = (Vec::<(usize, HeatCell)>::new(), HeatCell::default());
                let mut of: Vec<(usize, usize)> = tensors_of.into_iter().map(|(c, i)| (place_of[c], i)).collect();
                of.sort_by_key(|&(c, _)| c);
                for (c, i) in of {
                    if cells.last().is_none_or(|(last, _)| *last != c) {
                        cells.push((c, HeatCell::default()));
                    }
                    cells.last_mut().expect("one was added").1.add(i, &tensors[i]);
                    all.add(i, &tensors[i]);
                }
                let label = if one_stack { &layer[stem(layer)..] } else { layer };
                HeatRow { name: layer.to_owned(), label: label.to_owned(), cells, all }
            })
            .collect();
        let layers = rows.len();
        rows.extend(loose.into_iter().map(|i| {
            let mut cell = HeatCell::default();
            cell.add(i, &tensors[i]);
            let name = tensors[i].name.clone();
            HeatRow { label: name.clone(), name, cells: vec![(0, cell.clone())], all: cell }
        }));
        Self { columns, rows, layers }
    }

    /// Whether there is a grid to look at: several layers of several tensors.
    pub fn is_grid(&self) -> bool {
        self.layers > 1 && self.columns.len() > 1
    }

    /// The cell at a row and a column; a tensor in no layer is in all of them.
    pub fn cell(&self, row: usize, column: usize) -> Option<&HeatCell> {
        self.rows.get(row)?.cell(if row < self.layers { column } else { 0 })
    }

    /// A cell in a word or two: layer and role, or the tensor's name without what all have.
    pub fn short(&self, (row, column): (usize, usize)) -> String {
        let Some(of) = self.rows.get(row) else { return String::new() };
        match self.columns.get(column).filter(|_| row < self.layers) {
            Some(column) => format!("{}.{}", of.label, column.label),
            None => loose(&of.name).to_owned(),
        }
    }

    /// The row and the column of a tensor.
    pub fn find(&self, tensor: usize) -> Option<(usize, usize)> {
        self.rows.iter().enumerate().find_map(|(row, of)| {
            of.cells.iter().find(|(_, cell)| cell.tensors.contains(&tensor)).map(|(column, _)| (row, *column))
        })
    }
}

/// The name without the layer: `self_attn.q_proj.weight`, `mlp.experts.*.w1.weight`.
fn role_in_layer(name: &str, layer: &str) -> String {
    role_of(name.get(layer.len()..).unwrap_or_default().trim_start_matches('.'))
}

/// Parts of names in the order in which a layer works, as models and GGUF files call them.
const ORDER: &str = "\
    q_proj query attn_q k_proj key attn_k v_proj value attn_v \
    qkv_proj query_key_value c_attn attn_qkv \
    o_proj out_proj attn_output attn.c_proj attention.output.dense attention.dense \
    gate_proj ffn_gate w1 up_proj ffn_up w3 gate_up_proj c_fc intermediate.dense \
    down_proj ffn_down w2";

/// The place of a role among the others of its kind.
fn rank(role: &str) -> usize {
    let bare = role.strip_suffix(".weight").or(role.strip_suffix(".bias")).unwrap_or(role);
    ORDER.split(' ').position(|o| bare == o || bare.ends_with(&format!(".{o}"))).unwrap_or(usize::MAX)
}

/// A word for each role, no two of them the same if that can be: the last part of its name, more of them where it takes that.
fn labels(roles: &[&str]) -> Vec<String> {
    let word = |role: &str, parts: usize| {
        let (bare, bias) = match role.strip_suffix(".bias") {
            Some(bare) => (bare, true),
            None => (role.strip_suffix(".weight").unwrap_or(role), false),
        };
        let all: Vec<&str> = bare.split('.').filter(|p| *p != "*" && !p.is_empty()).collect();
        let taken = &all[all.len().saturating_sub(parts)..];
        let short = taken.iter().map(|p| shorter(p)).collect::<Vec<_>>().join(".");
        if bias { format!("{short} bias") } else { short }
    };
    roles
        .iter()
        .map(|role| {
            let unique = |parts: usize| {
                let mine = word(role, parts);
                (roles.iter().filter(|r| word(r, parts) == mine).count() == 1).then_some(mine)
            };
            (1..4).find_map(unique).unwrap_or_else(|| (*role).to_owned())
        })
        .collect()
}

/// The name of a tensor in no layer as short as people say it.
pub fn loose(name: &str) -> &str {
    let bare = name.strip_suffix(".weight").unwrap_or(name);
    let last = bare.rsplit('.').next().unwrap_or(bare);
    match last {
        "embed_tokens" | "token_embd" | "wte" => "embed",
        "" => name,
        last => last,
    }
}

/// A part of a name as short as people say it.
fn shorter(part: &str) -> &str {
    match part {
        "input_layernorm" => "norm 1",
        "post_attention_layernorm" => "norm 2",
        "attn_output" => "o",
        _ => {
            let bare = part.strip_prefix("attn_").or(part.strip_prefix("ffn_")).unwrap_or(part);
            bare.strip_suffix("_proj").unwrap_or(bare)
        }
    }
}
