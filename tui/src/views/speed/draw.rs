//! The screen of timings: what is timed, the devices, the tensors by time, and the last rounds.

use std::ops::Range;

use super::{LaneState, Scope};
use crate::draw::{Canvas, Column, Look, Modifier, Pen, Style, bar, chart::LEVELS, table, text};
use crate::state::State;
use crate::timing::{LayerTime, percentile};

/// Columns of the axis of the chart.
const AXIS: usize = 13;

/// A column of a table, the widths of the view in which it is shown, and its cell; the style of the row counts where it has none.
type Figure<R> = (Range<usize>, Column, fn(Look, &R) -> (String, Option<Style>));

/// The figures of a device; the last rounds stand behind them.
const DEVICE: [Figure<LaneState>; 6] = [
    (0..usize::MAX, Column::number("p50 ms", 8).after(1), |look, l| {
        (optional(look, l.series.summary().map(|s| s.p50), ms), None)
    }),
    (44..usize::MAX, Column::number("p95 ms", 8), |look, l| {
        (optional(look, l.series.summary().map(|s| s.p95), ms), None)
    }),
    (0..usize::MAX, Column::number("GB/s", 7), |look, l| {
        let speed = l.series.summary().and_then(|s| s.gb_per_s);
        (optional(look, speed, text::figure), speed.map(|_| look.good()))
    }),
    (66..100, Column::number("copy", 7), copy),
    (100..usize::MAX, Column::number("copy GB/s", 9), copy),
    (56..usize::MAX, Column::number("runs", 7), |look, l| {
        let runs = Some(l.series.runs).filter(|&n| n > 0);
        (runs.map_or_else(|| dash(look), text::millions), Some(look.dim()))
    }),
];

/// The figures of a tensor, and of the median time of a round; bars stand behind them.
const TENSOR: [Figure<(LayerTime, Option<f64>)>; 4] = [
    (0..usize::MAX, Column::number("ms", 9).after(1), |look, (l, _)| (optional(look, l.ms, ms), None)),
    (0..usize::MAX, Column::number("GB/s", 7), |look, (l, _)| (optional(look, l.gb_per_s(), text::figure), None)),
    (76..usize::MAX, Column::number("share", 8), |look, (l, round)| {
        let share = l.ms.zip(round.filter(|&r| r > 0.0)).map(|(ms, round)| (ms / round).min(1.0));
        (optional(look, share, text::percent), None)
    }),
    (110..usize::MAX, Column::number("output", 11), |_, (l, _)| (text::size(l.bytes), None)),
];

/// Draws it.
pub fn draw(canvas: &mut Canvas<'_>, state: &State) {
    if canvas.height() == 0 {
        return;
    }
    let heights = state.views.speed.heights(canvas.height());
    headline(canvas.pen(0), state);
    devices(canvas.rows(1, heights.devices + 1), state);
    let at = 2 + heights.devices + heights.gap;
    if heights.gap > 0 {
        note(canvas.pen(at - 1), state);
    }
    tensors(canvas.rows(at, heights.layers + 1), state);
    if heights.chart > 0 {
        chart(canvas.rows(at + 2 + heights.layers, heights.chart + 1), state);
    }
}

/// The columns that there is room for in a view of so many.
fn shown<R>(figures: &[Figure<R>], width: usize) -> impl Iterator<Item = &Figure<R>> {
    figures.iter().filter(move |(widths, ..)| widths.contains(&width))
}

/// Writes the cells of these columns for a row, in a view of so many columns.
fn cells<R>(pen: &mut Pen<'_>, figures: &[Figure<R>], width: usize, row: &R, style: Style) {
    let look = pen.look;
    let cell = |(_, column, cell): &Figure<R>| {
        let (text, own) = cell(look, row);
        (*column, text, own.unwrap_or(style))
    };
    table::row(pen, shown(figures, width).map(cell));
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
        let (done, all) = lane.last.done;
        let part = format!("{}/{}", text::count(done as u64), text::count(all as u64));
        if lane.last.verifying {
            facts.push(format!("verifying {part}"));
        } else if all > 1 {
            facts.push(format!("{part} of a round"));
        }
    }
    if pen.left() >= 40 {
        pen.at_end(&facts.join(look.between()), look.text());
    }
    pen.put(sign, style).put(" ", look.text()).put(word, style).skip(2);
    let Some(subject) = &timing.subject else { return };
    pen.put(subject.scope.name(), look.dim()).skip(1);
    let tensors = match subject.tensors.len() {
        1 => String::new(),
        n => format!(" ({})", text::plural(n, "tensor")),
    };
    let room = pen.left().saturating_sub(tensors.len());
    pen.put(&text::short(look, &subject.title, room), look.title()).put(&tensors, look.dim());
}

/// The tensors that are left out, or else words on the figures.
fn note(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    pen.skip(1);
    if let Some((count, why)) = state.views.speed.current().and_then(|l| l.last.left_out.as_ref()) {
        refused(&mut pen, &format!("{} left out: {why}", text::plural(*count, "tensor")));
    } else if let Some(words) = bound(state) {
        const UNLESS: &str = ", unless decoded layers are kept";
        let more = if text::width(&words) + UNLESS.len() <= pen.left() { UNLESS } else { "" };
        pen.put(&words, look.good()).put(more, look.dim());
    } else {
        pen.put("GB/s of decoded output; copy: stored bytes to the device", look.dim());
    }
}

/// The time of the whole file in tokens a second: each token takes a pass over all weights where none is kept decoded.
fn bound(state: &State) -> Option<String> {
    let subject = state.views.speed.subject.as_ref().filter(|s| s.scope == Scope::File && s.tensors.len() > 1)?;
    let summary = state.views.speed.current()?.series.summary().filter(|s| s.p50 > 0.0)?;
    let all = if subject.tensors.len() == state.file.tensors.len() { "all weights" } else { "these weights" };
    let (arrow, tokens) = (state.look.sign("→", "->"), text::general(1000.0 / summary.p50, 2));
    Some(format!("one pass over {all}: {} ms {arrow} {tokens} tokens/s at most", ms(summary.p50)))
}

/// The table of devices: its head and the rows around that of the chosen device.
fn devices(mut canvas: Canvas<'_>, state: &State) {
    let (look, timing, all) = (state.look, &state.views.speed, canvas.width());
    let width = (all / 5).clamp(14, 36);
    let mut columns = vec![Column::text("device", width).after(0)];
    columns.extend(shown(&DEVICE, all).map(|f| f.1).chain([Column::rest("last runs")]));
    table::head(canvas.pen(0).skip(3), &columns);
    let (rows, height) = (timing.device_rows(), canvas.height().saturating_sub(1));
    let chosen = Some(timing.lane());
    let at = rows.iter().position(|row| row.lane == chosen).unwrap_or(0);
    // The last row says what there is of GPUs: it is shown as long as there is room.
    let first = (at + 1).saturating_sub(height).max(rows.len().saturating_sub(height).min(at));
    for (i, row) in rows.iter().skip(first).take(height).enumerate() {
        let mut pen = canvas.pen(i + 1);
        let (style, mark) = match row.lane == chosen {
            true => (look.text().add_modifier(Modifier::BOLD), look.sign("▸", ">")),
            false => (look.text(), ""),
        };
        let name = match row.lane {
            None => "GPU".to_owned(),
            Some(lane) => format!("{lane}  {}", timing.gpu(lane).map_or("", |g| &g.name)).trim_end().to_owned(),
        };
        let is_looking = row.lane.is_none() && row.refused.is_none();
        pen.skip(1).cell(mark, 2, style).cell(&name, width, if is_looking { look.dim() } else { style });
        match (row.refused, row.results) {
            (Some(why), _) => refused(pen.skip(3), why),
            (None, Some(lane)) => {
                cells(&mut pen, &DEVICE, all, lane, style);
                let room = pen.skip(table::GAP).left().min(60);
                pen.put(&sparkline(look, lane.series.recent(), room), look.bar());
            }
            (None, None) if is_looking => {
                pen.skip(3).put("looking for GPUs", look.dim()).put(look.sign("…", "..."), look.dim());
            }
            (None, None) => drop(pen.skip(3).put("not timed yet: D chooses it", look.dim())),
        }
    }
}

fn refused(pen: &mut Pen<'_>, why: &str) {
    let look = pen.look;
    pen.put(look.sign("✗ ", "! "), look.bad()).cut(why, look.warn());
}

/// The tensors by time: the head and the rows that fit.
fn tensors(mut canvas: Canvas<'_>, state: &State) {
    let (look, timing, width) = (state.look, &state.views.speed, canvas.width());
    let name = (width * 2 / 5).clamp(16, 70).min(width.saturating_sub(20).max(8));
    let mut columns = vec![Column::text(timing.order.name(), name).after(1)];
    columns.extend(shown(&TENSOR, width).map(|f| f.1).chain([Column::rest("median time")]));
    table::head(&mut canvas.pen(0), &columns);
    let layers = timing.layers();
    if layers.is_empty() {
        let text = match (timing.subject.as_ref(), timing.running) {
            (None, _) if state.file.container().is_err() => "it is not encoded: there is nothing to decode",
            (None, _) => "no tensor is selected",
            (Some(_), Some(_)) => "the first round is under way",
            (Some(_), None) => "nothing was timed yet",
        };
        canvas.pen(1).skip(1).put(text, look.dim());
        return;
    }
    // The longest bar; much longer times have one that is cut.
    let longest = clip(layers.iter().filter_map(|l| l.ms));
    let round = timing.current().and_then(|l| l.series.summary()).map(|s| s.p50);
    let height = canvas.height().saturating_sub(1);
    for (i, layer) in layers.iter().enumerate().skip(timing.cursor.offset).take(height) {
        let mut pen = canvas.pen(i - timing.cursor.offset + 1);
        let mut over = look.text();
        if i == timing.cursor.selected {
            over = look.selected();
            pen.fill(over);
        }
        let label = state.file.tensors.get(layer.tensor).map_or("", |t| t.name.as_str());
        pen.skip(1).cell(&text::short(look, label, name), name, over);
        if let Some(why) = &layer.error {
            pen.skip(3).put(look.sign("✗ ", "! "), over.patch(look.bad())).cut(why, over.patch(look.warn()));
            continue;
        }
        cells(&mut pen, &TENSOR, width, &(layer.clone(), round), over);
        let part = layer.ms.filter(|_| longest > 0.0).map_or(0.0, |ms| ms / longest);
        let columns = pen.skip(table::GAP).left().saturating_sub(1);
        let is_cut = part > 1.0001 && columns > 1;
        pen.put(&bar(look, part, columns - usize::from(is_cut)), over.patch(look.bar()));
        pen.put(if is_cut { look.sign("▶", ">") } else { "" }, over.patch(look.warn()));
    }
}

/// The last rounds, a point in a column for each: from 0 on, or from near the shortest where all take about as long.
fn chart(mut canvas: Canvas<'_>, state: &State) {
    let look = state.look;
    let Some(lane) = state.views.speed.current() else { return };
    let Some(summary) = lane.series.summary() else { return };
    let height = canvas.height().saturating_sub(1);
    let columns = canvas.width().saturating_sub(AXIS + 1);
    let recent = lane.series.recent();
    let skipped = recent.len().saturating_sub(columns);
    let shown: Vec<f64> = recent.skip(skipped).collect();
    let (longest, top) = (shown.iter().copied().fold(0.0, f64::max), clip(shown.iter().copied()));
    if height == 0 || shown.is_empty() || top <= 0.0 {
        return;
    }
    let bottom = beginning(shown.iter().copied().fold(top, f64::min), top);
    let (beyond, line) = (look.sign("▲", "^"), look.sign("│", "|"));
    let mut pen = canvas.pen(0);
    pen.skip(1).put(&format!("the last {}, milliseconds", text::plural(shown.len(), "round")), look.title());
    match shown.iter().filter(|&&t| t > top).count() as u64 {
        0 => {}
        n => {
            let words = format!("   {beyond} {} beyond the chart, the longest {} ms", text::count(n), ms(longest));
            pen.put(&words, look.warn());
        }
    }
    // The row of the chart, from the bottom, that a time falls into; and the upper or lower half of it.
    let half_of = |time: f64| halves(time, bottom, top, height);
    for row in 0..height {
        let mut pen = canvas.pen(height - row);
        let label = match row {
            r if r == height - 1 => ms(top),
            r if r == half_of(summary.p50) / 2 => format!("p50 {}", ms(summary.p50)),
            0 if bottom == 0.0 => "0".to_owned(),
            0 => ms(bottom),
            _ => String::new(),
        };
        pen.number(&label, AXIS - 1, look.dim()).put(line, look.dim());
        for &time in &shown {
            match half_of(time) {
                _ if time > top && row + 1 == height => pen.put(beyond, look.warn()),
                half if time <= top && half / 2 == row => {
                    pen.put(look.sign(if half % 2 == 1 { "▀" } else { "▄" }, "*"), look.bar())
                }
                _ => pen.skip(1),
            };
        }
    }
}

/// The time at the bottom of the chart: 0, unless that would leave all points at the top.
fn beginning(shortest: f64, top: f64) -> f64 {
    if shortest > 0.5 * top { shortest - 0.1 * (top - shortest).max(0.05 * top) } else { 0.0 }
}

/// The half row of so many rows, from the bottom, that a time falls into.
fn halves(time: f64, bottom: f64, top: f64, height: usize) -> usize {
    let part = if top > bottom { (time - bottom) / (top - bottom) } else { 1.0 };
    ((part * 2.0 * height as f64) as usize).min(2 * height - 1)
}

/// The last samples, one a column, from 0 to the largest of them.
fn sparkline(look: Look, samples: impl ExactSizeIterator<Item = f64>, columns: usize) -> String {
    let levels = if look.ascii { [".", ":", "-", "=", "+", "*", "%", "#"] } else { LEVELS };
    let skipped = samples.len().saturating_sub(columns);
    let shown: Vec<f64> = samples.skip(skipped).collect();
    let top = clip(shown.iter().copied());
    let level = |ms: &f64| if top > 0.0 { ((ms / top * 8.0).ceil() as usize).clamp(1, 8) - 1 } else { 0 };
    shown.iter().map(|ms| levels[level(ms)]).collect()
}

/// Milliseconds.
fn ms(value: f64) -> String {
    if value < 1.0 { format!("{value:.4}") } else { text::figure(value) }
}

fn copy(look: Look, lane: &LaneState) -> (String, Option<Style>) {
    (optional(look, lane.last.copy_gb_per_s, text::figure), None)
}

fn dash(look: Look) -> String {
    look.sign("–", "-").to_owned()
}

/// A figure that may be missing.
fn optional(look: Look, value: Option<f64>, write: fn(f64) -> String) -> String {
    value.map_or_else(|| dash(look), write)
}

/// The largest of some times, or less where a few are far beyond the others: what is longer is drawn as cut.
fn clip(times: impl Iterator<Item = f64>) -> f64 {
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

    #[test]
    fn points_are_in_the_chart() {
        assert_eq!([-1.0, 0.0, 0.49, 0.5, 1.0, 9.0, f64::NAN].map(|t| halves(t, 0.0, 1.0, 4)), [0, 0, 3, 4, 7, 7, 0]);
        assert_eq!(halves(3.0, 3.0, 3.0, 2), 3);
        assert_eq!(beginning(0.2, 1.0), 0.0);
        for (shortest, top) in [(0.9, 1.0), (1.0, 1.0), (0.51, 1.0)] {
            assert!(beginning(shortest, top) < shortest && beginning(shortest, top) > 0.4, "{shortest}");
        }
    }

    #[test]
    fn sparklines_show_the_last_samples() {
        let look = Look::default();
        let samples = [9.0, 1.0, 2.0, 8.0, 4.0];
        assert_eq!(sparkline(look, samples.into_iter(), 4), "▁▂█▄");
        assert_eq!(sparkline(Look { ascii: true, ..look }, samples.into_iter(), 4), ".:#=");
        assert_eq!(sparkline(look, [].into_iter(), 4), "");
        assert_eq!(sparkline(look, [0.0, f64::NAN].into_iter(), 4), "▁▁");
        assert_eq!(sparkline(look, samples.into_iter(), 0), "");
    }
}
