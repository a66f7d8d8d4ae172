//! `--plain`: the table of layers or the rates, once, and what differs from a second file.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use wcodec::{CompareStatus, Comparisons, TensorInfo};

use crate::draw::page::digits;
use crate::draw::text;
use crate::draw::theme::Look;
use crate::estimate::Would;
use crate::model::FileModel;
use crate::model::original::Original;
use crate::model::rates::Rates;
use crate::model::statements::lines;
use crate::views::speed::LaneState;

const HEADINGS: [&str; 11] =
    ["tensor", "shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits/weight", "error", "entropy"];
/// So many columns are flush left, the others, numbers, flush right.
const LEFT: usize = 5;

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
    for (name, fact) in lines(&file.metadata) {
        let _ = writeln!(out, "{name}: {}", text::clean(look, &fact));
    }
    if tensors.len() < all {
        let (shown, all) = (text::plural(tensors.len(), "tensor"), text::count(all as u64));
        let _ = writeln!(out, "{shown} of {all} shown; totals are of the whole file");
    }
    out + &totals(file, look)
}

/// The plan, the measured quality, and sums by role and by layer, then those of the whole file.
pub fn rates(file: &FileModel, look: Look) -> String {
    let found = Rates::new(file);
    let mut out = String::new();
    for (name, fact) in lines(&file.metadata) {
        let _ = writeln!(out, "{name}: {}", text::clean(look, &fact));
    }
    out.push_str(if out.is_empty() { "" } else { "\n" });
    for (what, groups) in [("role", &found.roles), ("layer", &found.layers)] {
        let headings = [what, "scheme", "tensors", "weights", "stored", "of file", "error", "bits/weight"];
        let rows = groups.iter().map(|g| {
            vec![
                text::clean(look, &g.name).into_owned(),
                text::clean(look, &g.schemes).into_owned(),
                text::count(g.totals.tensors as u64),
                text::count(g.totals.elements),
                text::size(g.totals.stored_bytes),
                text::percent(g.totals.stored_bytes as f64 / file.file_bytes().max(1) as f64),
                g.error.map_or_else(|| "-".to_owned(), digits),
                number(g.totals.bits_per_weight(), g.totals.elements > 0),
            ]
        });
        out.push_str(&under(headings, rows, 2));
        out.push('\n');
    }
    out + &totals(file, look)
}

/// The times of some rounds on a device, and of each tensor, the slowest first.
pub fn timing(file: &FileModel, lane: &LaneState, look: Look) -> String {
    let rows = lane.layers.iter().map(|l| {
        let name = file.tensors.get(l.tensor).map_or("", |t| t.name.as_str());
        let speed = l.gb_per_s();
        vec![
            text::clean(look, name).into_owned(),
            l.ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.4}")),
            number(speed.unwrap_or(0.0), speed.is_some()),
            text::size(l.bytes),
        ]
    });
    let mut out = under(["tensor", "median ms", "GB/s", "output"], rows, 1);
    for l in lane.layers.iter() {
        let name = file.tensors.get(l.tensor).map_or("", |t| t.name.as_str());
        if let Some(why) = &l.error {
            let _ = writeln!(out, "{}: left out: {}", text::clean(look, name), text::clean(look, why));
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
    let headings = ["tensor", "int8 bits/weight", "error", "4 bits", "error"];
    let rows = shown.iter().filter_map(|i| Some((file.tensors.get(*i)?, would.get(i)?))).map(|(t, w)| {
        let name = text::clean(look, &t.name).into_owned();
        vec![name, number(w.int8_bits, true), digits(w.int8_error), number(w.rate_bits, true), digits(w.rate_error)]
    });
    "\nif it were encoded, estimated from samples of rows:\n".to_owned() + &under(headings, rows, 1)
}

/// A line for each of these tensors below the headings: their errors where one of them states its own, and the entropy where it is wanted.
pub fn listing(tensors: &[&TensorInfo], look: Look, entropy: bool) -> String {
    let errors = tensors.iter().any(|t| t.error.is_some());
    let shown = |cells: Vec<String>| {
        let wanted = |name: &str| match name {
            "error" => errors,
            "entropy" => entropy,
            _ => true,
        };
        cells.into_iter().zip(HEADINGS).filter(|(_, name)| wanted(name)).map(|(cell, _)| cell).collect::<Vec<_>>()
    };
    let headings = shown(HEADINGS.map(str::to_owned).to_vec());
    let rows = tensors.iter().map(|t| shown(row(t, look).to_vec()));
    aligned(&std::iter::once(headings).chain(rows).collect::<Vec<_>>(), LEFT)
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

fn row(t: &TensorInfo, look: Look) -> [String; 11] {
    let clean = |s: String| match text::clean(look, &s) {
        Cow::Owned(cleaned) => cleaned,
        Cow::Borrowed(_) => s,
    };
    let with = |a: &str, b: Option<&str>| b.map_or_else(|| a.to_owned(), |b| format!("{a}/{b}"));
    let filter = t.planes.first().map(|p| p.filter.as_str()).filter(|&f| f != "none");
    let coder = with(&with(t.coder(), t.layout()), filter);
    [
        text::clean(look, &t.name).into_owned(),
        text::shape(&t.shape),
        t.dtype.name().to_owned(),
        clean(with(&t.scheme, t.scales.as_deref())),
        clean(coder),
        text::size(t.original_bytes),
        text::size(t.stored_bytes),
        number(t.ratio(), t.stored_bytes > 0),
        bits(t),
        t.error.map_or_else(|| "-".to_owned(), |error| format!("{error:.4}")),
        number(t.entropy.unwrap_or(0.0), t.entropy.is_some()),
    ]
}

fn number(value: f64, there: bool) -> String {
    if there { format!("{value:.3}") } else { "-".to_owned() }
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
    let headings = ["tensor", "status", "stored a", "stored b", "bits/weight a", "bits/weight b"];
    let clean = |s: &str| text::clean(look, s).into_owned();
    let cell = |t: Option<&TensorInfo>, f: fn(&TensorInfo) -> String| t.map_or_else(|| "-".to_owned(), f);
    let rows = compared.tensors.iter().map(|t| {
        let (a, b) = (t.a.as_ref(), t.b.as_ref());
        let (stored, bits) = (|t: &TensorInfo| text::size(t.stored_bytes), |t: &TensorInfo| bits(t));
        vec![clean(&t.name), t.status.name().to_owned(), cell(a, stored), cell(b, stored), cell(a, bits), cell(b, bits)]
    });
    let mut out = under(headings, rows, 2);
    for t in compared.tensors.iter().filter(|t| !t.detail.is_empty()) {
        let _ = writeln!(out, "{}: {}", clean(&t.name), clean(&t.detail));
    }
    out
}

/// Rows below their headings.
fn under<const N: usize>(headings: [&str; N], rows: impl Iterator<Item = Vec<String>>, left: usize) -> String {
    let headings = headings.map(str::to_owned).to_vec();
    aligned(&std::iter::once(headings).chain(rows).collect::<Vec<_>>(), left)
}

/// Rows with columns of equal width, two spaces apart.
pub fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = text::width(cell).max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let gap = widths[i] - text::width(cell);
            out.push_str(if i == 0 { "" } else { "  " });
            if i < left {
                out.push_str(cell);
                out.extend(std::iter::repeat_n(' ', gap));
            } else {
                out.extend(std::iter::repeat_n(' ', gap));
                out.push_str(cell);
            }
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
        let rows = [["tensor", "bytes"], ["a", "10"], ["größe", "5"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows, 1), "tensor  bytes\na          10\ngröße       5\n");
    }
}
