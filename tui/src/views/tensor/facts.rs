//! The index's facts on a tensor, and the distance of its values from those of the reference.

use wcodec::TensorInfo;

use super::Shown;
use crate::draw::{Fact, Page, digits, text, widgets};
use crate::stats::Fetch;

/// Most columns of the bar that shows what part of the original is stored.
const BAR: usize = 12;

/// Writes what the index says, and the entropy once it is known.
pub fn draw(page: &mut Page, of: Shown<'_>) {
    let Shown { state, tensor, t, .. } = of;
    let look = page.look;
    page.heading(if state.file.original().is_some() { "Tensor" } else { "Encoding" }, "", look.dim());
    let mut facts = vec![
        Fact::new("shape", text::shape(&t.shape)),
        Fact::new("elements", text::count(t.elements)),
        Fact::new("dtype", t.dtype.name()),
        Fact::new("scheme", scheme(t)),
        Fact::new("coder", coder(t)),
        Fact::new("filter", filter(t)),
        Fact::new("chunks", chunks(t)),
    ];
    if t.count > 1 || t.row_axis == 1 {
        let view = format!("{} of {}x{}", text::count(t.count as u64), t.rows, t.cols);
        facts.insert(1, Fact::new("matrices", if t.row_axis == 1 { format!("{view}, transposed") } else { view }));
    }
    if state.file.original().is_some() {
        // Nothing is coded: size and bits are all that there is beside shape and dtype.
        facts.retain(|f| {
            !matches!(f.label, "coder" | "filter" | "chunks") && (f.label != "scheme" || t.scheme != "raw")
        });
        facts.push(Fact::new("size", text::size(t.original_bytes)));
        facts.push(Fact::new("bits/weight", format!("{:.3}", t.bits_per_weight())));
        return page.facts(&facts);
    }
    page.facts(&facts);

    page.heading("Size", "", look.dim());
    let part = t.stored_bytes as f64 / t.original_bytes.max(1) as f64;
    let (size, percent) = (text::size(t.stored_bytes), text::percent(part));
    let columns = page.fact_room().saturating_sub(size.len() + percent.len() + 2).min(BAR);
    let (bar, rest) = widgets::part(look, part, columns);
    let stored = format!("{size} {bar}{rest} {percent}");
    let original = match t.original_bytes {
        n @ 0..1024 => text::size(n),
        n => format!("{} ({} B)", text::size(n), text::count(n)),
    };
    let bits = t.bits_per_weight();
    let mut facts = vec![
        Fact::new("original", original),
        Fact::new("stored", stored),
        Fact { style: look.bar(), ..Fact::new("ratio", format!("{:.3}", t.ratio())) },
        Fact::new("bits/weight", format!("{bits:.3}")),
    ];
    match (state.entropy(tensor), t.has_symbols()) {
        (Some(entropy), _) => {
            facts.push(Fact::new("entropy", format!("{entropy:.4} bits, order 0")));
            let over = bits - entropy;
            let part = if entropy > 0.0 { format!(", {}", text::change(over / entropy)) } else { String::new() };
            facts.push(Fact::new("over it", format!("{over:+.3} bits{part}")));
        }
        (None, true) => facts.push(Fact::new("entropy", of.wait())),
        (None, false) => facts.push(Fact { style: look.dim(), ..Fact::new("entropy", "of symbols only") }),
    }
    page.facts(&facts);
}

/// Writes what a tensor of a checkpoint would take and lose, encoded.
pub fn would(page: &mut Page, of: Shown<'_>) {
    let Shown { state, tensor, .. } = of;
    let look = page.look;
    page.heading("If it were encoded", "estimated from samples of rows", look.dim());
    let missing = state.file.missing(tensor);
    if missing > 0 {
        page.sentence(&format!("{missing} bytes of it are missing: the file was cut off"), look.bad());
        return;
    }
    match (state.would(tensor), &state.encode.would) {
        (Some(w), _) => page.facts(&[
            Fact::new("int8", format!("{:.2} bits/w, error {}", w.int8_bits, text::percent(w.int8_error))),
            Fact::new("4 bits", format!("{:.2} bits/w, error {}", w.rate_bits, text::percent(w.rate_error))),
        ]),
        (None, Fetch::Running(_)) => page.sentence(&state.encode.sampling(), look.warn()),
        (None, Fetch::Failed(why)) => page.sentence(why, look.bad()),
        (None, _) => page.sentence("it would be stored as it is", look.dim()),
    }
    page.sentence(
        "E encodes the checkpoint to a file next to it; errors are root mean squares, as parts of the weights'",
        look.dim(),
    );
}

/// Writes how far the values are from those of the reference.
pub fn reference(page: &mut Page, of: Shown<'_>) {
    let Shown { state, t, stats, .. } = of;
    let look = page.look;
    let (note, style) = match stats.and_then(|s| s.error?.fits) {
        Some(true) => (format!("{} as stated", look.sign("✓", "ok:")), look.good()),
        Some(false) => (format!("{} differs", look.sign("✗", "!!")), look.bad()),
        None => (String::new(), look.dim()),
    };
    page.heading("Against the reference", &note, style);
    let stated = t.error.map(|stated| Fact::new("stated", relative(stated)));
    if !state.has_reference {
        page.facts(stated.as_slice());
        page.sentence("none given: --ref model.safetensors", look.dim());
        return;
    }
    match stats.map(|s| (&s.error, &s.uncompared)) {
        Some((Some(error), _)) => {
            let snr = if error.snr_db == f64::INFINITY {
                format!("{} (nothing differs)", look.sign("∞", "inf"))
            } else {
                format!("{:.2} dB", error.snr_db)
            };
            let found = Fact {
                style: if error.fits == Some(false) { look.bad() } else { look.text() },
                ..Fact::new("relative", relative(error.relative))
            };
            let mut facts = vec![
                Fact::new("max error", digits(error.max)),
                Fact::new("RMS error", digits(error.rms)),
                Fact::new("SNR", snr),
                found,
            ];
            facts.extend(stated);
            page.facts(&facts);
            if error.fits == Some(false) {
                page.sentence(
                    "decoded values are farther from the reference's than the file says they are from their source's",
                    look.bad(),
                );
            }
        }
        Some((None, why)) => {
            page.facts(stated.as_slice());
            page.sentence(why.as_deref().unwrap_or("not compared"), look.warn());
        }
        None => {
            page.facts(stated.as_slice());
            page.sentence(&of.wait(), look.dim());
        }
    }
}

/// An error as files state it: over the root of the mean square of the original.
fn relative(error: f64) -> String {
    format!("{} of the RMS", digits(error))
}

fn scheme(t: &TensorInfo) -> String {
    match t.scales.as_deref() {
        Some(per) => match per.split_once(' ') {
            Some((per, n)) => format!("{}, a scale per {per} of {n}", t.scheme),
            None => format!("{}, a scale per {per}", t.scheme),
        },
        None if t.scheme == "raw" => "raw: bytes as they are, no scales".to_owned(),
        None => t.scheme.to_string(),
    }
}

fn coder(t: &TensorInfo) -> String {
    let mut words = t.coder().to_owned();
    if let Some(layout) = t.layout() {
        words.push_str(&format!(", layout {layout}"));
    }
    if let Some(shift) = t.planes.first().and_then(|p| p.shift).filter(|_| matches!(t.layout(), Some("pair" | "quad")))
    {
        words.push_str(&format!(", shift {shift}"));
    }
    words
}

fn filter(t: &TensorInfo) -> String {
    match t.planes.first().map(|p| p.filter.as_str()) {
        Some("trellis") => "trellis: two levels a symbol".to_owned(),
        found => found.unwrap_or_default().to_owned(),
    }
}

/// The number of chunks, and their size.
fn chunks(t: &TensorInfo) -> String {
    let of = match t.planes.first().map(|p| (p.tile, p.frame)) {
        Some((Some(tile), _)) => format!(", tiles of 16x{tile}"),
        Some((None, Some(bytes))) if t.coder() == "zstd" => format!(", frames of {}", text::size(bytes as u64)),
        _ => String::new(),
    };
    format!("{}{of}", text::count(t.chunks() as u64))
}
