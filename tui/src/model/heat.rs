//! Tensors as a grid: layers are its rows, what tensors are for its columns.

use std::cmp::Reverse;

use wcodec::TensorInfo;
use wcodec::names::natural;

use super::FileModel;
use super::rates::{gather, layer_of, role_of};
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
    fn of(all: &[TensorInfo], tensors: Vec<usize>) -> Self {
        Self { totals: Totals::of(tensors.iter().map(|&i| &all[i])), tensors }
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
        let (tensors, order) = (&file.tensors, &file.natural);
        let in_layers = || order.iter().filter_map(|&i| Some((i, layer_of(&tensors[i].name)?)));
        // A role is the name without the layer: `self_attn.q_proj.weight`, `mlp.experts.*.w1.weight`.
        let role = |name: &str, layer: &str| role_of(name[layer.len()..].trim_start_matches('.'));
        let mut roles = gather(in_layers().map(|(i, layer)| (role(&tensors[i].name, layer), i)));
        // A role whose tensors are vectors everywhere comes after the matrices.
        let dimensions = |of: &[usize]| of.iter().map(|&i| tensors[i].shape.len().min(2)).max();
        roles.sort_by_cached_key(|(role, of)| (Reverse(dimensions(of)), rank(role)));
        let mut column_of = vec![0; tensors.len()];
        for (column, (_, of)) in roles.iter().enumerate() {
            of.iter().for_each(|&i| column_of[i] = column);
        }
        let labels = labels(&roles.iter().map(|(role, _)| role.as_str()).collect::<Vec<_>>());
        let column = |((role, of), label)| HeatColumn { role, label, all: HeatCell::of(tensors, of) };
        let columns = roles.into_iter().zip(labels).map(column).collect();
        let mut layers = gather(in_layers().map(|(i, layer)| (layer.to_owned(), i)));
        layers.sort_by(|a, b| natural(&a.0, &b.0));
        let stem = |layer: &str| layer.rfind('.').map_or(0, |dot| dot + 1);
        let one_stack = layers.windows(2).all(|w| w[0].0[..stem(&w[0].0)] == w[1].0[..stem(&w[1].0)]);
        let row = |(name, mut of): (String, Vec<usize>)| {
            of.sort_by_key(|&i| column_of[i]);
            let roles = of.chunk_by(|&a, &b| column_of[a] == column_of[b]);
            let cells = roles.map(|of| (column_of[of[0]], HeatCell::of(tensors, of.to_vec()))).collect();
            let label = if one_stack { &name[stem(&name)..] } else { &name };
            HeatRow { label: label.to_owned(), name, cells, all: HeatCell::of(tensors, of) }
        };
        let mut rows: Vec<HeatRow> = layers.into_iter().map(row).collect();
        let layers = rows.len();
        let loose = order.iter().filter(|&&i| layer_of(&tensors[i].name).is_none());
        rows.extend(loose.map(|&i| {
            let (name, cell) = (tensors[i].name.clone(), HeatCell::of(tensors, vec![i]));
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
