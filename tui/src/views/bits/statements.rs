//! The plan, what was measured, and what else was tried.

use ratatui::text::Span;

use crate::draw::page::Page;
use crate::draw::text;
use crate::estimate;
use crate::model::rates::Rates;
use crate::model::statements::{Candidate, Plan, Quality, WEIGHTS_ALONE};
use crate::state::State;
use crate::stats::Fetch;

/// Candidates at most: a hostile file may have very many.
const MOST: usize = 20;
/// Characters at most of what a file says.
const LONGEST: usize = 300;

/// Writes them.
pub fn draw(page: &mut Page, state: &State, rates: &Rates) {
    let look = page.look;
    if let Some(original) = state.file.original() {
        page.heading("Not encoded", original.kind(), look.dim());
        page.sentence(&would(state), look.text());
        return;
    }
    page.heading("How bits were chosen", "", look.dim());
    if let Some(plan) = &rates.plan {
        plan_of(page, plan);
    }
    match &rates.calibration {
        Some(calibration) => page.sentence(
            &format!("calibrated {}: weights that matter more have more bits, and a smaller error", calibration.line()),
            look.text(),
        ),
        None if rates.plan.is_none() => page.sentence(by_scheme(rates), look.text()),
        None => {}
    }
    page.heading("Measured", "", look.dim());
    match &rates.quality {
        Some(quality) => quality_of(page, quality),
        None => page.sentence("the file does not say: wcodec eval compares it with the original", look.dim()),
    }
    if let Some(plan) = rates.plan.as_ref().filter(|p| !p.candidates.is_empty()) {
        page.heading("Tried", &text::plural(plan.candidates.len(), "candidate"), look.dim());
        candidates(page, plan);
    }
}

/// A file that has neither a plan nor a calibration.
fn by_scheme(rates: &Rates) -> &'static str {
    let rate = rates.all.schemes.split(", ").any(|s| s == "rate");
    match rate {
        true => "by the weights alone; wcodec encode --calibrate goes by what the model does",
        false => "by the scheme: each tensor takes the bits that its symbols need",
    }
}

/// The sizes that encoding a checkpoint would give.
fn would(state: &State) -> String {
    match &state.encode.would {
        Fetch::Ready(found) if !found.is_empty() => {
            let (int8, four) = estimate::totals(&state.file, found);
            let (int8, four) = (text::size(int8), text::size(four));
            format!("it would take {int8} with int8 and {four} with 4 bits, estimated from samples; E encodes")
        }
        Fetch::Running(part) => format!("sampling rows: {:.0} %", 100.0 * part),
        Fetch::Failed(why) => text::clean(state.look, why).into_owned(),
        _ => "its bytes by role and by layer".to_owned(),
    }
}

/// A statement of a file, with escapes for characters that would upset the terminal.
fn clean(page: &Page, words: &str) -> String {
    let part: String = words.chars().take(LONGEST).collect();
    text::clean(page.look, &part).into_owned()
}

fn plan_of(page: &mut Page, plan: &Plan) {
    let line = clean(page, &plan.line());
    page.sentence(&line, page.look.text());
    let mut items = Vec::new();
    if let Some(scheme) = &plan.scheme {
        items.push(("scheme", clean(page, scheme)));
    }
    if let Some(bits) = plan.bits {
        items.push(("asked", format!("{} bits/weight", text::figure(bits))));
    }
    if let Some(trellis) = plan.trellis {
        items.push(("trellis", if trellis { "yes" } else { "no" }.to_owned()));
    }
    page.items(&items);
}

fn quality_of(page: &mut Page, quality: &Quality) {
    let look = page.look;
    let error =
        quality.kl_error.map_or_else(String::new, |e| format!(" {} {}", look.sign("±", "+-"), text::general(e, 2)));
    let more = match quality.original_perplexity {
        p if p > 0.0 => format!(" ({})", text::change(quality.perplexity / p - 1.0)),
        _ => String::new(),
    };
    let arrow = look.sign("→", "->");
    let windows = match (quality.windows, quality.window) {
        (Some(n), Some(each)) => format!(" in {} windows of {}", text::count(n), text::count(each)),
        _ => String::new(),
    };
    let mut items = vec![
        ("KL", format!("{}{error} nats/token", text::general(quality.kl, 3))),
        (
            "perplexity",
            format!("{} {arrow} {}{more}", perplexity(quality.original_perplexity), perplexity(quality.perplexity)),
        ),
        ("same top token", format!("{:.2} %", 100.0 * quality.top1_agreement)),
        ("of", format!("{} tokens{windows}", quality.tokens)),
        ("text", clean(page, &quality.text)),
    ];
    if let Some(dtype) = &quality.dtype {
        items.push(("computed in", clean(page, dtype)));
    }
    // A hostile file's numbers may have hundreds of digits.
    items.iter_mut().for_each(|(_, value)| *value = text::cut(look, value, page.width.max(8)).into_owned());
    page.items(&items);
}

/// As many digits as `wcodec inspect` gives it, unless it is beyond all measure.
fn perplexity(value: f64) -> String {
    if value.abs() < 1e5 { format!("{value:.4}") } else { text::general(value, 5) }
}

/// A column: its title, how wide it is, and what stands there.
type Column = (&'static str, usize, fn(&Page, &Plan, &Candidate) -> String);

/// Columns by what they tell: the first one is the last to go.
const COLUMNS: [Column; 7] = [
    ("KL", 10, |page, _, c| number(page, c.kl, |v| text::general(v, 5))),
    ("change", 8, |page, plan, c| {
        let part = plan.weights_alone().zip(c.kl).map(|(first, kl)| kl / first - 1.0);
        if c.recipe == WEIGHTS_ALONE { String::new() } else { number(page, part, text::change) }
    }),
    ("perplexity", 10, |page, _, c| number(page, c.perplexity, perplexity)),
    ("same top", 8, |page, _, c| number(page, c.top1_agreement, |v| format!("{:.2} %", 100.0 * v))),
    ("bits", 6, |page, _, c| number(page, c.bits_stored, text::figure)),
    ("file", 10, |page, _, c| c.file_bytes.map_or_else(|| none(page), text::size)),
    ("asked", 6, |page, _, c| number(page, c.bits_asked, text::figure)),
];

fn none(page: &Page) -> String {
    page.look.sign("·", "-").to_owned()
}

fn number(page: &Page, value: Option<f64>, write: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| none(page), write)
}

/// A line for each candidate, that which was taken marked.
fn candidates(page: &mut Page, plan: &Plan) {
    let look = page.look;
    const MARK: usize = 2;
    const GAP: usize = 2;
    let shown: Vec<&Candidate> = plan.candidates.iter().take(MOST).collect();
    let names: Vec<String> = shown.iter().map(|c| clean(page, &c.recipe)).collect();
    let widest = names.iter().map(|n| text::width(n)).max().unwrap_or(0).clamp(6, 24);
    let mut left = page.width.saturating_sub(MARK + widest);
    let fits = |&(_, width, _): &Column| {
        let needed = width + GAP;
        let fits = needed <= left;
        left = if fits { left - needed } else { 0 };
        fits
    };
    let columns: Vec<Column> = COLUMNS.into_iter().take_while(fits).collect();
    let cell = |value: &str, width: usize| {
        let value = text::cut(look, value, width);
        format!("{}{value}", " ".repeat(GAP + width - text::width(&value)))
    };
    let head: String = columns.iter().map(|(title, width, _)| cell(title, *width)).collect();
    page.line(vec![Span::styled(format!("  {:widest$}{head}", "recipe"), look.dim())]);
    for (candidate, name) in shown.iter().zip(&names) {
        let name = text::cut(look, name, widest);
        let name = format!("{name}{}", " ".repeat(widest - text::width(&name)));
        let mark = if candidate.taken { look.sign("✓ ", "* ") } else { "  " };
        let figures: String = columns.iter().map(|(_, width, of)| cell(&of(page, plan, candidate), *width)).collect();
        let style = if candidate.taken { look.good() } else { look.text() };
        page.line(vec![Span::styled(mark, style), Span::styled(name, style), Span::styled(figures, style)]);
    }
    if plan.candidates.len() > MOST {
        page.sentence(&format!("{} more", text::count((plan.candidates.len() - MOST) as u64)), look.dim());
    }
    if plan.weights_alone().is_some() && columns.len() > 1 {
        let line = format!("{} taken; change: KL against that of '{WEIGHTS_ALONE}'", look.sign("✓", "*"));
        page.sentence(&line, look.dim());
    }
}
