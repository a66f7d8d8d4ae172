//! `--plain`: the table of layers, once, and what differs from a second file.

use std::fmt::Write as _;

use wcodec::{CompareStatus, Comparisons, TensorInfo};

use crate::draw::text;
use crate::draw::theme::Look;
use crate::model::FileModel;

const HEADINGS: [&str; 10] =
    ["tensor", "shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits/weight", "entropy"];
/// So many columns are flush left, the others, numbers, flush right.
const LEFT: usize = 5;

/// The table of these tensors, given by their places in the file, then the sums of the whole file.
pub fn table(file: &FileModel, shown: &[usize], look: Look) -> String {
    let tensors: Vec<&TensorInfo> = shown.iter().filter_map(|&i| file.tensors.get(i)).collect();
    let rows = tensors.iter().map(|t| row(t, look));
    let mut out = aligned(std::iter::once(HEADINGS.map(str::to_owned)).chain(rows).collect(), LEFT);
    for (alias, target) in &file.aliases {
        if tensors.iter().any(|t| t.name == *target) {
            let _ = writeln!(out, "{} is tied to {}", text::clean(look, alias), text::clean(look, target));
        }
    }
    let all = file.tensors.len();
    out.push('\n');
    if tensors.len() < all {
        let (shown, all) = (text::plural(tensors.len(), "tensor"), text::count(all as u64));
        let _ = writeln!(out, "{shown} of {all} shown; totals are of the whole file");
    }
    out + &totals(file, look)
}

/// Sums, overhead and versions, as `wcodec inspect` prints them.
fn totals(file: &FileModel, look: Look) -> String {
    let (sums, stored) = (&file.totals, file.file_bytes());
    let tied = match file.aliases.len() {
        0 => String::new(),
        n => format!(" ({} more tied)", text::count(n as u64)),
    };
    let part = |a: u64, b: u64| if b == 0 { "-".to_owned() } else { format!("{:.3}", a as f64 / b as f64) };
    let (major, minor) = file.container.version();
    format!(
        "{}{tied}, {} weights: {} -> {}, ratio {}, {} bits/weight\nindex, header and padding: {}; format {major}.{minor}, written by {}\n",
        text::plural(sums.tensors, "tensor"),
        text::count(sums.elements),
        text::size(sums.original_bytes),
        text::size(stored),
        part(sums.original_bytes, stored),
        part(stored.saturating_mul(8), sums.elements),
        text::size(stored.saturating_sub(sums.stored_bytes)),
        text::clean(look, file.container.writer()),
    )
}

fn row(t: &TensorInfo, look: Look) -> [String; 10] {
    let with = |a: &str, b: Option<&str>| b.map_or_else(|| a.to_owned(), |b| format!("{a}/{b}"));
    let mut coder = with(&t.coder, t.layout.as_deref());
    if !matches!(t.filter.as_str(), "" | "none") {
        coder = format!("{coder}/{}", t.filter);
    }
    let number = |value: f64, there: bool| if there { format!("{value:.3}") } else { "-".to_owned() };
    [
        text::clean(look, &t.name).into_owned(),
        text::shape(&t.shape),
        t.dtype.name().to_owned(),
        with(&t.scheme, t.scales.as_deref()),
        coder,
        text::size(t.original_bytes),
        text::size(t.stored_bytes),
        number(t.ratio(), t.stored_bytes > 0),
        number(t.bits_per_weight(), t.elements > 0),
        number(t.entropy.unwrap_or(0.0), t.entropy.is_some()),
    ]
}

/// What differs between two files, a line for each tensor.
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

/// Rows with columns of equal width, two spaces apart.
fn aligned<const N: usize>(rows: Vec<[String; N]>, left: usize) -> String {
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = text::width(cell).max(*width);
        }
    }
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[i] - text::width(cell));
            line.push_str(if i == 0 { "" } else { "  " });
            if i < left {
                line.push_str(cell);
                line.push_str(&gap);
            } else {
                line.push_str(&gap);
                line.push_str(cell);
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_their_width_on_the_screen() {
        let rows = [["tensor", "bytes"], ["a", "10"], ["größe", "5"]];
        let text = aligned(rows.iter().map(|r| r.map(str::to_owned)).collect(), 1);
        assert_eq!(text, "tensor  bytes\na          10\ngröße       5\n");
    }
}
