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
    let mut facts = vec![Fact::new("shape", text::shape(&t.shape))];
    if t.count > 1 || t.row_axis == 1 {
        let view = format!("{} of {}x{}", text::count(t.count as u64), t.rows, t.cols);
        facts.push(Fact::new("matrices", if t.row_axis == 1 { format!("{view}, transposed") } else { view }));
    }
    facts.extend([Fact::new("elements", text::count(t.elements)), Fact::new("dtype", t.dtype.name())]);
    if state.file.original().is_some() {
        // Nothing is coded: size and bits are all that there is beside shape and dtype.
        facts.extend((t.scheme != "raw").then(|| Fact::new("scheme", scheme(t))));
        facts.push(Fact::new("size", text::size(t.original_bytes)));
        facts.push(Fact::new("bits/weight", format!("{:.3}", t.bits_per_weight())));
        return page.facts(&facts);
    }
    facts.extend([Fact::new("scheme", scheme(t)), Fact::new("coder", coder(t))]);
    facts.extend([Fact::new("filter", filter(t)), Fact::new("chunks", chunks(t))]);
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
    let found = stats.filter(|_| state.has_reference);
    let mut facts = Vec::new();
    if let Some(error) = found.and_then(|s| s.error.as_ref()) {
        let snr = match error.snr_db {
            f64::INFINITY => format!("{} (nothing differs)", look.sign("∞", "inf")),
            snr => format!("{snr:.2} dB"),
        };
        facts.extend([Fact::new("max error", digits(error.max)), Fact::new("RMS error", digits(error.rms))]);
        let style = if error.fits == Some(false) { look.bad() } else { look.text() };
        facts.extend([Fact::new("SNR", snr), Fact { style, ..Fact::new("relative", relative(error.relative)) }]);
    }
    facts.extend(t.error.map(|stated| Fact::new("stated", relative(stated))));
    page.facts(&facts);
    const FARTHER: &str =
        "decoded values are farther from the reference's than the file says they are from their source's";
    let (words, style) = match found.map(|s| (s.error, s.uncompared.as_deref())) {
        None if !state.has_reference => ("none given: --ref model.safetensors".to_owned(), look.dim()),
        None => (of.wait(), look.dim()),
        Some((None, why)) => (why.unwrap_or("not compared").to_owned(), look.warn()),
        Some((Some(error), _)) if error.fits == Some(false) => (FARTHER.to_owned(), look.bad()),
        Some(_) => return,
    };
    page.sentence(&words, style);
}

/// An error as files state it: over the root of the mean square of the original.
fn relative(error: f64) -> String {
    format!("{} of the RMS", digits(error))
}

fn scheme(t: &TensorInfo) -> String {
    match t.scales.as_deref() {
        Some(per) if t.columns => format!("{}, a scale per {per} and a factor per column", t.scheme),
        Some(per) => match per.split_once(' ') {
            Some((per, n)) => format!("{}, a scale per {per} of {n}", t.scheme),
            None => format!("{}, a scale per {per}", t.scheme),
        },
        None if t.scheme == "raw" => "raw: bytes as they are, no scales".to_owned(),
        None => t.scheme.to_string(),
    }
}

fn coder(t: &TensorInfo) -> String {
    let layout = t.layout().map_or_else(String::new, |layout| format!(", layout {layout}"));
    let shift = t.planes.first().and_then(|p| p.shift).filter(|_| matches!(t.layout(), Some("pair" | "quad")));
    let shift = shift.map_or_else(String::new, |shift| format!(", shift {shift}"));
    format!("{}{layout}{shift}", t.coder())
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
