//! The screen of timings: what is timed, the devices, the tensors by time, and the last rounds.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Scope, chart, devices, tensors};
use crate::draw::text;
use crate::draw::theme::Look;
use crate::draw::widgets::Pen;
use crate::state::State;
use crate::timing::series::percentile;

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let heights = state.views.speed.heights(usize::from(area.height));
    headline(Pen::new(buffer, area, 0), state);
    devices::draw(buffer, rows(area, 1, heights.devices + 1), state);
    let at = 2 + heights.devices + heights.gap;
    if heights.gap > 0 {
        note(Pen::new(buffer, area, at - 1), state);
    }
    tensors::draw(buffer, rows(area, at, heights.layers + 1), state);
    if heights.chart > 0 {
        chart::draw(buffer, rows(area, at + 2 + heights.layers, heights.chart + 1), state);
    }
}

/// Some rows of an area, as far as it has them.
fn rows(area: Rect, from: usize, count: usize) -> Rect {
    let clip = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).min(area.height);
    let from = clip(from);
    Rect { y: area.y + from, height: clip(count).min(area.height - from), ..area }
}

/// The subject of timing, the device, and whether it runs.
fn headline(mut pen: Pen<'_>, state: &State) {
    let (look, timing) = (state.look, &state.views.speed);
    pen.skip(1);
    let (sign, word, style) = match (timing.running, timing.paused, timing.current().and_then(|l| l.failed.as_ref())) {
        (Some(_), ..) => (look.sign("▶", ">"), "running", look.good()),
        (None, true, _) => (look.sign("■", "="), "paused", look.warn()),
        (None, false, Some(_)) => (look.sign("✗", "!"), "stopped", look.bad()),
        (None, false, None) => (look.sign("·", "."), "waiting", look.dim()),
    };
    let mut facts = vec![timing.lane().to_string()];
    if let Some(lane) = timing.current().filter(|_| timing.running.is_some()) {
        let (done, all) = lane.done;
        let (done, all) = (text::count(done as u64), text::count(all as u64));
        if lane.verifying {
            facts.push(format!("verifying {done}/{all}"));
        } else if lane.done.1 > 1 {
            facts.push(format!("{done}/{all} of a round"));
        }
    }
    let between = look.sign(" · ", " | ");
    if pen.left() >= 40 {
        pen.at_end(&facts.join(between), look.text());
    }
    pen.put(sign, style).put(" ", look.text()).put(word, style).skip(2);
    let Some(subject) = &timing.subject else { return };
    pen.put(subject.scope.name(), look.dim()).skip(1);
    let tensors = match subject.tensors.len() {
        1 => String::new(),
        n => format!(" ({})", text::plural(n, "tensor")),
    };
    let title = text::clean(look, &subject.title);
    let room = pen.left().saturating_sub(tensors.len());
    let title = text::short_name(look, &title, room);
    pen.put(&title, look.title()).put(&tensors, look.dim());
}

/// The tensors that are left out, or else words on the figures.
fn note(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    pen.skip(1);
    let Some((count, why)) = state.views.speed.current().and_then(|l| l.left_out.as_ref()) else {
        match bound(state) {
            Some(words) => {
                const UNLESS: &str = ", unless decoded layers are kept";
                let more = if text::width(&words) + UNLESS.len() <= pen.left() { UNLESS } else { "" };
                pen.put(&words, look.good()).put(more, look.dim())
            }
            None => {
                let about = "GB/s of decoded output; copy: stored bytes to the device";
                pen.put(text::start(about, pen.left()), look.dim())
            }
        };
        return;
    };
    let note = format!("{} left out: {why}", text::plural(*count, "tensor"));
    pen.put(look.sign("✗ ", "! "), look.bad()).cut(look, &note, look.warn());
}

/// The time of the whole file in tokens a second: each token takes a pass over all weights where none is kept decoded.
fn bound(state: &State) -> Option<String> {
    let subject = state.views.speed.subject.as_ref().filter(|s| s.scope == Scope::File && s.tensors.len() > 1)?;
    let summary = state.views.speed.current()?.series.summary().filter(|s| s.p50 > 0.0)?;
    let arrow = state.look.sign("→", "->");
    let all = if subject.tensors.len() == state.file.tensors.len() { "all weights" } else { "these weights" };
    let tokens = text::general(1000.0 / summary.p50, 2);
    Some(format!("one pass over {all}: {} ms {arrow} {tokens} tokens/s at most", ms(summary.p50)))
}

/// Milliseconds.
pub fn ms(value: f64) -> String {
    if value < 1.0 { format!("{value:.4}") } else { text::figure(value) }
}

/// A figure that may be missing.
pub fn optional(look: Look, value: Option<f64>) -> String {
    value.map_or_else(|| look.sign("–", "-").to_owned(), text::figure)
}

/// The largest of some times, or less where a few are far beyond the others: what is longer is drawn as cut.
pub fn clip(times: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = times.filter(|t| t.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let most = sorted.last().copied().unwrap_or(0.0).max(0.0);
    // Among few times none is an outlier.
    match percentile(&sorted, 0.9).filter(|_| sorted.len() >= 8) {
        Some(usual) if most > 2.5 * usual && usual > 0.0 => 1.5 * usual,
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_far_beyond_is_cut() {
        assert_eq!(clip([].into_iter()), 0.0);
        assert_eq!(clip([1.0, 100.0].into_iter()), 100.0);
        assert_eq!(clip((1..=20).map(f64::from)), 20.0);
        assert_eq!(clip((0..20).map(|i| if i == 3 { 50.0 } else { 2.0 })), 3.0);
        assert_eq!(clip([f64::NAN; 9].into_iter()), 0.0);
    }
}
