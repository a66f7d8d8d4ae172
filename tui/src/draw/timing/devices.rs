//! The table of devices.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::{clip, ms, optional};
use crate::draw::text;
use crate::draw::theme::Look;
use crate::draw::widgets::Pen;
use crate::state::State;
use crate::state::timing::{DeviceRow, Gpus, LaneState};
use crate::timing::Lane;

/// Which columns there is room for.
struct Columns {
    device: usize,
    p95: bool,
    runs: bool,
    copy: bool,
    /// Whether there is room for longer words.
    wide: bool,
}

impl Columns {
    fn new(width: u16) -> Self {
        let width = usize::from(width);
        Self {
            device: (width / 5).clamp(14, 36),
            p95: width >= 44,
            runs: width >= 56,
            copy: width >= 66,
            wide: width >= 100,
        }
    }

    fn copy_columns(&self) -> usize {
        if self.wide { 9 } else { 7 }
    }
}

/// Draws its head and the rows around that of the chosen device.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (look, timing) = (state.look, &state.timing);
    let columns = Columns::new(area.width);
    let style = look.title();
    let mut pen = Pen::new(buffer, area, 0);
    pen.skip(3).cell("device", columns.device, style).skip(1).number("p50 ms", 8, style);
    if columns.p95 {
        pen.skip(2).number("p95 ms", 8, style);
    }
    pen.skip(2).number("GB/s", 7, style);
    if columns.copy {
        pen.skip(2).number(if columns.wide { "copy GB/s" } else { "copy" }, columns.copy_columns(), style);
    }
    if columns.runs {
        pen.skip(2).number("runs", 7, style);
    }
    pen.skip(2).put("last runs", style);

    let rows = timing.device_rows();
    let height = usize::from(area.height.saturating_sub(1));
    let chosen = timing.lane();
    let is_chosen = |row: &DeviceRow<'_>| match row {
        DeviceRow::Lane(l) => l.lane == chosen,
        DeviceRow::Gpu(g) => Lane::Gpu(g.ordinal) == chosen,
        DeviceRow::Looking | DeviceRow::NoGpu(_) => false,
    };
    let at = rows.iter().position(is_chosen).unwrap_or(0);
    // The last row says what there is of GPUs: it is shown as long as there is room.
    let first = (at + 1).saturating_sub(height).max(rows.len().saturating_sub(height).min(at));
    for (i, row) in rows.iter().skip(first).take(height).enumerate() {
        let pen = Pen::new(buffer, area, i + 1);
        draw_row(pen, state, &columns, row, is_chosen(row));
    }
}

fn draw_row(mut pen: Pen<'_>, state: &State, columns: &Columns, row: &DeviceRow<'_>, chosen: bool) {
    let look = state.look;
    let style = if chosen { look.text().add_modifier(Modifier::BOLD) } else { look.text() };
    pen.skip(1).cell(if chosen { look.sign("▸", ">") } else { "" }, 2, style);
    match row {
        DeviceRow::Lane(lane) => {
            let name = device_name(state, lane.lane);
            let name = text::clean(look, &name);
            pen.cell(&text::cut(look, &name, columns.device), columns.device, style).skip(1);
            // A GPU that is too old is known to be before it is tried.
            let known = || known_refusal(state, lane.lane).filter(|_| lane.series.runs() == 0);
            match lane.failed.as_deref().or_else(known) {
                Some(why) => refused(pen, look, why),
                None => figures(pen, look, columns, lane, style),
            }
        }
        DeviceRow::Gpu(gpu) => {
            let name = device_name(state, Lane::Gpu(gpu.ordinal));
            let name = text::clean(look, &name);
            pen.cell(&text::cut(look, &name, columns.device), columns.device, style).skip(1);
            match &gpu.refused {
                Some(why) => refused(pen, look, why),
                None => drop(pen.skip(2).put("not timed yet: D chooses it", look.dim())),
            }
        }
        DeviceRow::Looking => {
            let dots = look.sign("…", "...");
            pen.cell("GPU", columns.device, look.dim())
                .skip(3)
                .put("looking for GPUs", look.dim())
                .put(dots, look.dim());
        }
        DeviceRow::NoGpu(why) => {
            pen.cell("GPU", columns.device, style).skip(1);
            refused(pen, look, why);
        }
    }
}

/// Why a GPU cannot decode, as far as it is known without trying.
fn known_refusal(state: &State, lane: Lane) -> Option<&str> {
    match (lane, &state.timing.gpus) {
        (Lane::Gpu(n), Gpus::Found(gpus)) => gpus.iter().find(|g| g.ordinal == n)?.refused.as_deref(),
        _ => None,
    }
}

/// What to call a device; GPUs by their names, too.
fn device_name(state: &State, lane: Lane) -> String {
    match (lane, &state.timing.gpus) {
        (Lane::Gpu(n), Gpus::Found(gpus)) => {
            let name = gpus.iter().find(|g| g.ordinal == n).map_or("", |g| g.name.as_str());
            format!("{lane}  {name}").trim_end().to_owned()
        }
        _ => lane.to_string(),
    }
}

fn refused(mut pen: Pen<'_>, look: Look, why: &str) {
    let why = text::clean(look, why);
    pen.skip(2).put(look.sign("✗ ", "! "), look.bad());
    let why = text::cut(look, &why, pen.left());
    pen.put(&why, look.warn());
}

fn figures(mut pen: Pen<'_>, look: Look, columns: &Columns, lane: &LaneState, style: Style) {
    let summary = lane.series.summary();
    let dash = || look.sign("–", "-").to_owned();
    let time = |value: Option<f64>| value.map_or_else(dash, ms);
    pen.number(&time(summary.map(|s| s.p50)), 8, style);
    if columns.p95 {
        pen.skip(2).number(&time(summary.map(|s| s.p95)), 8, style);
    }
    let speed = summary.and_then(|s| s.gb_per_s);
    pen.skip(2).number(&optional(look, speed), 7, if speed.is_some() { look.good() } else { style });
    if columns.copy {
        pen.skip(2).number(&optional(look, lane.copy_gb_per_s), columns.copy_columns(), style);
    }
    if columns.runs {
        let runs = lane.series.runs();
        pen.skip(2).number(&if runs == 0 { dash() } else { short_count(runs) }, 7, look.dim());
    }
    pen.skip(2);
    let room = pen.left().min(60);
    pen.put(&sparkline(look, lane.series.recent(), room), look.bar());
}

/// A count that fits seven columns: thousands and millions are rounded.
fn short_count(n: u64) -> String {
    match n {
        0..1_000_000 => text::count(n),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

/// The last samples, one a column, from 0 to the largest of them.
pub fn sparkline(look: Look, samples: impl ExactSizeIterator<Item = f64>, columns: usize) -> String {
    let levels = if look.ascii {
        [".", ":", "-", "=", "+", "*", "%", "#"]
    } else {
        ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
    };
    let skipped = samples.len().saturating_sub(columns);
    let shown: Vec<f64> = samples.skip(skipped).collect();
    let top = clip(shown.iter().copied());
    let level =
        |ms: &f64| if top > 0.0 { levels[((ms / top * 8.0).ceil() as usize).clamp(1, 8) - 1] } else { levels[0] };
    shown.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn counts_are_short() {
        let all = [7, 999_999, 1_234_567, 5_000_000_000].map(short_count);
        assert_eq!(all, ["7", "999,999", "1.2M", "5.0G"]);
    }
}
