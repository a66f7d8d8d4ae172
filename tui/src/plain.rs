//! `--plain`: the table of layers or the rates, once, and what differs from a second file.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use wcodec::{CompareStatus, Comparisons, TensorInfo};

use crate::draw::{Look, digits, text};
use crate::estimate::Would;
use crate::model::{FileModel, Group, Original, statements::lines};
use crate::timing::LayerTime;
use crate::views::speed::LaneState;

/// A column of a table: its title, and its text for a row.
type Column<'a, R> = (&'static str, &'a dyn Fn(&R) -> String);

/// The table of these tensors, given by their places in the file, then the sums of the whole file.
pub fn table(file: &FileModel, shown: &[usize], look: Look) -> String {
    let tensors: Vec<&TensorInfo> = shown.iter().filter_map(|&i| file.tensors.get(i)).collect();
    let mut out = listing(&tensors, look, true);
    let names: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    for (alias, target) in &file.aliases {
        if names.contains(target.as_str()) {
            let _ = writeln!(out, "{} is tied to {}", text::clean(look, alias), text::clean(look, target));
        }
    }
    let all = file.tensors.len();
    out.push('\n');
    out.push_str(&statements(file, look));
    if tensors.len() < all {
        let (shown, all) = (text::plural(tensors.len(), "tensor"), text::count(all as u64));
        let _ = writeln!(out, "{shown} of {all} shown; totals are of the whole file");
    }
    out + &totals(file, look)
}

/// The plan, the measured quality, and sums by role and by layer, then those of the whole file.
pub fn rates(file: &FileModel, look: Look) -> String {
    let found = file.rates();
    let mut out = statements(file, look);
    out.push_str(if out.is_empty() { "" } else { "\n" });
    for (what, groups) in [("role", &found.roles), ("layer", &found.layers)] {
        let part = |g: &Group| g.totals.stored_bytes as f64 / file.file_bytes().max(1) as f64;
        out.push_str(&aligned(
            groups,
            2,
            &[
                (what, &|g| text::clean(look, &g.name).into_owned()),
                ("scheme", &|g| text::clean(look, &g.schemes).into_owned()),
                ("tensors", &|g| text::count(g.totals.tensors as u64)),
                ("weights", &|g| text::count(g.totals.elements)),
                ("stored", &|g| text::size(g.totals.stored_bytes)),
                ("of file", &|g| text::percent(part(g))),
                ("error", &|g| g.error.map_or_else(dash, digits)),
                ("bits/weight", &|g| number(g.totals.bits_per_weight(), g.totals.elements > 0)),
            ],
        ));
        out.push('\n');
    }
    out + &totals(file, look)
}

/// Statements of the file on its plan, its calibration and its quality, a line each.
fn statements(file: &FileModel, look: Look) -> String {
    lines(&file.metadata).into_iter().map(|(name, fact)| format!("{name}: {}\n", text::clean(look, &fact))).collect()
}

/// The times of some rounds on a device, and of each tensor, the slowest first.
pub fn timing(file: &FileModel, lane: &LaneState, look: Look) -> String {
    let name =
        |l: &LayerTime| text::clean(look, file.tensors.get(l.tensor).map_or("", |t| t.name.as_str())).into_owned();
    let mut out = aligned(
        &lane.layers,
        1,
        &[
            ("tensor", &name),
            ("median ms", &|l| l.ms.map_or_else(dash, |ms| format!("{ms:.4}"))),
            ("GB/s", &|l| number(l.gb_per_s().unwrap_or(0.0), l.gb_per_s().is_some())),
            ("output", &|l| text::size(l.bytes)),
        ],
    );
    for l in lane.layers.iter() {
        if let Some(why) = &l.error {
            let _ = writeln!(out, "{}: left out: {}", name(l), text::clean(look, why));
        }
    }
    if let Some(s) = lane.series.summary() {
        let speed = s.gb_per_s.map_or_else(String::new, |v| format!(", {v:.3} GB/s"));
        let _ = writeln!(
            out,
            "\n{}: {} in {}, median {:.4} ms, 95th percentile {:.4} ms{speed}",
            lane.lane,
            text::plural(lane.layers.len(), "tensor"),
            text::plural(s.runs as usize, "round"),
            s.p50,
            s.p95,
        );
    }
    out
}

/// Estimates of the tensors of a checkpoint, encoded; those that would be stored as they are have no line.
pub fn estimates(file: &FileModel, shown: &[usize], would: &HashMap<usize, Would>, look: Look) -> String {
    let rows: Vec<_> = shown.iter().filter_map(|i| Some((file.tensors.get(*i)?, would.get(i)?))).collect();
    let table = aligned(
        &rows,
        1,
        &[
            ("tensor", &|(t, _)| text::clean(look, &t.name).into_owned()),
            ("int8 bits/weight", &|(_, w)| number(w.int8_bits, true)),
            ("error", &|(_, w)| digits(w.int8_error)),
            ("4 bits", &|(_, w)| number(w.rate_bits, true)),
            ("error", &|(_, w)| digits(w.rate_error)),
        ],
    );
    "\nif it were encoded, estimated from samples of rows:\n".to_owned() + &table
}

/// A line for each of these tensors below the headings: their errors where one of them states its own, and the entropy where it is wanted.
pub fn listing(tensors: &[&TensorInfo], look: Look, entropy: bool) -> String {
    let clean = |s: &str| text::clean(look, s).into_owned();
    let with = |a: &str, b: Option<&str>| b.map_or_else(|| a.to_owned(), |b| format!("{a}/{b}"));
    let coder = |t: &TensorInfo| {
        let filter = t.planes.first().map(|p| p.filter.as_str()).filter(|&f| f != "none");
        with(&with(t.coder(), t.layout()), filter)
    };
    let columns: [Column<'_, &TensorInfo>; 11] = [
        ("tensor", &|t| clean(&t.name)),
        ("shape", &|t| text::shape(&t.shape)),
        ("dtype", &|t| t.dtype.name().to_owned()),
        ("scheme", &|t| clean(&with(&with(&t.scheme, t.scales.as_deref()), t.columns.then_some("column")))),
        ("coder", &|t| clean(&coder(t))),
        ("original", &|t| text::size(t.original_bytes)),
        ("stored", &|t| text::size(t.stored_bytes)),
        ("ratio", &|t| number(t.ratio(), t.stored_bytes > 0)),
        ("bits/weight", &|t| bits(t)),
        ("error", &|t| t.error.map_or_else(dash, |error| format!("{error:.4}"))),
        ("entropy", &|t| number(t.entropy.unwrap_or(0.0), t.entropy.is_some())),
    ];
    let errors = tensors.iter().any(|t| t.error.is_some());
    let shown = |(title, _): &Column<'_, _>| (errors || *title != "error") && (entropy || *title != "entropy");
    aligned(tensors, 5, &columns.into_iter().filter(shown).collect::<Vec<_>>())
}

/// Sums, overhead and versions, as `wcodec inspect` prints them.
fn totals(file: &FileModel, look: Look) -> String {
    let (sums, stored) = (&file.totals, file.file_bytes());
    let tied = match file.aliases.len() {
        0 => String::new(),
        n => format!(" ({} more tied)", text::count(n as u64)),
    };
    let part = |a: u64, b: u64| if b == 0 { "-".to_owned() } else { format!("{:.3}", a as f64 / b as f64) };
    let written = match file.container() {
        Ok(c) => format!("format {}.{}, written by {}", c.version().0, c.version().1, text::clean(look, c.writer())),
        Err(_) => file.original().map_or(String::new(), Original::described),
    };
    format!(
        "{}{tied}, {} weights: {} -> {}, ratio {}, {} bits/weight\nindex, header and padding: {}; {written}\n",
        text::plural(sums.tensors, "tensor"),
        text::count(sums.elements),
        text::size(sums.original_bytes),
        text::size(stored),
        part(sums.original_bytes, stored),
        part(stored.saturating_mul(8), sums.elements),
        text::size(stored.saturating_sub(sums.stored_bytes)),
    )
}

fn dash() -> String {
    "-".to_owned()
}

fn number(value: f64, there: bool) -> String {
    if there { format!("{value:.3}") } else { dash() }
}

fn bits(t: &TensorInfo) -> String {
    number(t.bits_per_weight(), t.elements > 0)
}

/// The differences between two files, a line for each tensor.
pub fn differences(name: &str, compared: &Comparisons, look: Look) -> String {
    let mut out = format!("\ncompared with {}:\n", text::clean(look, name));
    for t in compared.tensors.iter().filter(|t| t.status != CompareStatus::Same) {
        let what = match t.status {
            CompareStatus::OnlyA => "only in the first file",
            CompareStatus::OnlyB => "only in the second file",
            CompareStatus::Differs | CompareStatus::Same => &t.detail,
        };
        let _ = writeln!(out, "{}: {}", text::clean(look, &t.name), text::clean(look, what));
    }
    out + if compared.same() { "same\n" } else { "different\n" }
}

/// Both files' sizes of each tensor, then the differences, as `wcodec compare` prints them.
pub fn comparison(compared: &Comparisons, look: Look) -> String {
    let clean = |s: &str| text::clean(look, s).into_owned();
    let stored = |t: &Option<TensorInfo>| t.as_ref().map_or_else(dash, |t| text::size(t.stored_bytes));
    let weights = |t: &Option<TensorInfo>| t.as_ref().map_or_else(dash, bits);
    let mut out = aligned(
        &compared.tensors,
        2,
        &[
            ("tensor", &|t| clean(&t.name)),
            ("status", &|t| t.status.name().to_owned()),
            ("stored a", &|t| stored(&t.a)),
            ("stored b", &|t| stored(&t.b)),
            ("bits/weight a", &|t| weights(&t.a)),
            ("bits/weight b", &|t| weights(&t.b)),
        ],
    );
    for t in compared.tensors.iter().filter(|t| !t.detail.is_empty()) {
        let _ = writeln!(out, "{}: {}", clean(&t.name), clean(&t.detail));
    }
    out
}

/// Rows below the titles of their columns, which are two spaces apart; so many of them are flush left, the others, numbers, flush right.
fn aligned<R>(rows: &[R], left: usize, columns: &[Column<'_, R>]) -> String {
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    let width = |i: usize| lines.iter().map(|line| text::width(&line[i])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        for (i, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[i] - text::width(cell));
            let (before, behind) = if i < left { ("", &*gap) } else { (&*gap, "") };
            out.extend([if i == 0 { "" } else { "  " }, before, cell, behind]);
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_their_width_on_the_screen() {
        let rows = [("a", 10), ("größe", 5)];
        let table = aligned(&rows, 1, &[("tensor", &|r| r.0.to_owned()), ("bytes", &|r| r.1.to_string())]);
        assert_eq!(table, "tensor  bytes\na          10\ngröße       5\n");
    }
}
