//! The plan, what was measured, and what else was tried.

use crate::draw::{Column, Page, Room, text};
use crate::estimate;
use crate::model::Rates;
use crate::model::statements::{Statement, WEIGHTS_ALONE, calibration_line, plan_line};
use crate::state::State;
use crate::stats::Fetch;

/// Candidates at most: a hostile file may have very many.
const MOST: usize = 20;
/// Characters at most of what a file says.
const LONGEST: usize = 300;

/// Writes them.
pub fn draw(page: &mut Page, state: &State) {
    let (look, rates) = (page.look, state.file.rates());
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
        Some(calibration) => {
            let said = calibration_line(calibration);
            let words = format!("calibrated {said}: weights that matter more have more bits, and a smaller error");
            page.sentence(&words, look.text());
        }
        None if rates.plan.is_none() => page.sentence(by_scheme(rates), look.text()),
        None => {}
    }
    page.heading("Measured", "", look.dim());
    match &rates.quality {
        Some(quality) => quality_of(page, quality),
        None => page.sentence("the file does not say: wcodec eval compares it with the original", look.dim()),
    }
    if let Some(plan) = &rates.plan {
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
        Fetch::Running(_) => state.encode.sampling(),
        Fetch::Failed(why) => why.clone(),
        _ => "its bytes by role and by layer".to_owned(),
    }
}

/// A statement of a file, as far as anybody would read it.
fn short(words: &str) -> String {
    words.chars().take(LONGEST).collect()
}

fn plan_of(page: &mut Page, plan: &Statement) {
    page.sentence(&short(&plan_line(plan)), page.look.text());
    let scheme = plan.words("scheme").map(|scheme| ("scheme", short(scheme)));
    let bits = plan.number("bits").map(|bits| ("asked", format!("{} bits/weight", text::figure(bits))));
    let trellis = plan.flag("trellis").map(|trellis| ("trellis", if trellis { "yes" } else { "no" }.to_owned()));
    page.items(&[scheme, bits, trellis].into_iter().flatten().collect::<Vec<_>>());
}

fn quality_of(page: &mut Page, quality: &Statement) {
    let look = page.look;
    let error = quality.number("kl_error").map(|e| format!(" {} {}", look.sign("±", "+-"), text::general(e, 2)));
    let [before, after] = ["original_perplexity", "perplexity"].map(|key| quality.figure(key));
    let more = if before > 0.0 { format!(" ({})", text::change(after / before - 1.0)) } else { String::new() };
    let arrow = look.sign("→", "->");
    let windows = match (quality.whole("windows"), quality.whole("window")) {
        (Some(n), Some(each)) => format!(" in {} windows of {}", text::count(n), text::count(each)),
        _ => String::new(),
    };
    let mut items = vec![
        ("KL", format!("{}{} nats/token", text::general(quality.figure("kl"), 3), error.unwrap_or_default())),
        ("perplexity", format!("{} {arrow} {}{more}", perplexity(before), perplexity(after))),
        ("same top token", format!("{:.2} %", 100.0 * quality.figure("top1_agreement"))),
        ("of", format!("{} tokens{windows}", quality.tokens())),
        ("text", short(&quality.text())),
    ];
    items.extend(quality.words("dtype").map(|dtype| ("computed in", short(dtype))));
    page.items(&items);
}

/// As many digits as `wcodec inspect` gives it, unless it is beyond all measure.
fn perplexity(value: f64) -> String {
    if value.abs() < 1e5 { format!("{value:.4}") } else { text::general(value, 5) }
}

/// A column, and its text for a candidate of a plan.
type Figure = (Column, fn(&Page, &Statement, &Statement) -> String);

/// The columns by what they tell: the first one is the last to go.
const COLUMNS: [Figure; 7] = [
    (Column::number("KL", 10), |page, _, c| number(page, c.number("kl"), |v| text::general(v, 5))),
    (Column::number("change", 8), |page, plan, c| {
        let part = plan.weights_alone().zip(c.number("kl")).map(|(first, kl)| kl / first - 1.0);
        if c.words("recipe") == Some(WEIGHTS_ALONE) { String::new() } else { number(page, part, text::change) }
    }),
    (Column::number("perplexity", 10), |page, _, c| number(page, c.number("perplexity"), perplexity)),
    (Column::number("same top", 8), |page, _, c| {
        number(page, c.number("top1_agreement"), |v| format!("{:.2} %", 100.0 * v))
    }),
    (Column::number("bits", 6), |page, _, c| number(page, c.number("bits_stored"), text::figure)),
    (Column::number("file", 10), |page, _, c| number(page, c.whole("file_bytes"), text::size)),
    (Column::number("asked", 6), |page, _, c| number(page, c.number("bits_asked"), text::figure)),
];

fn number<T>(page: &Page, value: Option<T>, write: impl Fn(T) -> String) -> String {
    value.map_or_else(|| page.look.unknown().to_owned(), write)
}

/// A line for each candidate, that which was taken marked.
fn candidates(page: &mut Page, plan: &Statement) {
    let (look, all) = (page.look, plan.candidates());
    if all.is_empty() {
        return;
    }
    page.heading("Tried", &text::plural(all.len(), "candidate"), look.dim());
    let name = |c: &Statement| short(c.words("recipe").unwrap_or_default());
    let shown: Vec<(&Statement, String)> = all.iter().take(MOST).map(|c| (c, name(c))).collect();
    let widest = shown.iter().map(|(_, name)| text::width(name)).max().unwrap_or(0).clamp(6, 24);
    let first = [Column::text("", 2).after(0), Column::text("recipe", widest).after(0)];
    let mut left = Room(page.width.saturating_sub(2 + widest));
    let columns: Vec<_> = COLUMNS.into_iter().take_while(|(column, _)| left.take(column.needs())).collect();
    page.row(first.into_iter().chain(columns.iter().map(|c| c.0)).map(|column| (column, column.title, look.dim())));
    for (candidate, name) in shown {
        let (mark, style) = match candidate.flag("taken") {
            Some(true) => (look.sign("✓", "*"), look.good()),
            _ => ("", look.text()),
        };
        let mut cells = vec![(first[0], mark.to_owned(), style), (first[1], name, style)];
        cells.extend(columns.iter().map(|(column, write)| (*column, write(page, plan, candidate), style)));
        page.row(cells);
    }
    if all.len() > MOST {
        page.sentence(&format!("{} more", text::count((all.len() - MOST) as u64)), look.dim());
    }
    if plan.weights_alone().is_some() && columns.len() > 1 {
        let line = format!("{} taken; change: KL against that of '{WEIGHTS_ALONE}'", look.sign("✓", "*"));
        page.sentence(&line, look.dim());
    }
}
