//! The table of devices.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::draw::{clip, ms, optional};
use super::state::DeviceRow;
use super::{Gpus, LaneState};
use crate::draw::table::{self, Column};
use crate::draw::text;
use crate::draw::theme::Look;
use crate::draw::widgets::Pen;
use crate::state::State;
use crate::timing::{Gpu, Lane};

/// Columns of the figures of a device that there is room for; the last rounds stand behind them.
fn columns(width: u16) -> [Option<Column>; 5] {
    let copy = if width >= 100 { Column::number("copy GB/s", 9) } else { Column::number("copy", 7) };
    [
        Some(Column::number("p50 ms", 8).after(1)),
        (width >= 44).then_some(Column::number("p95 ms", 8)),
        Some(Column::number("GB/s", 7)),
        (width >= 66).then_some(copy),
        (width >= 56).then_some(Column::number("runs", 7)),
    ]
}

/// Draws its head and the rows around that of the chosen device.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State) {
    let (look, timing) = (state.look, &state.views.speed);
    let name = Column::text("device", (usize::from(area.width) / 5).clamp(14, 36)).after(0);
    let figures = columns(area.width);
    let shown: Vec<Column> = [name].into_iter().chain(figures.into_iter().flatten()).collect();
    table::head(Pen::new(buffer, area, 0).skip(3), look, &[&shown[..], &[Column::rest("last runs")]].concat());
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
        draw_row(pen, state, (name.width, &figures), row, is_chosen(row));
    }
}

fn draw_row(
    mut pen: Pen<'_>,
    state: &State,
    (width, columns): (usize, &[Option<Column>]),
    row: &DeviceRow<'_>,
    chosen: bool,
) {
    let look = state.look;
    let style = if chosen { look.text().add_modifier(Modifier::BOLD) } else { look.text() };
    pen.skip(1).cell(if chosen { look.sign("▸", ">") } else { "" }, 2, style);
    let lane = match row {
        DeviceRow::Lane(lane) => Some(lane.lane),
        DeviceRow::Gpu(gpu) => Some(Lane::Gpu(gpu.ordinal)),
        DeviceRow::Looking | DeviceRow::NoGpu(_) => None,
    };
    let name = lane.map_or_else(|| "GPU".to_owned(), |lane| device_name(state, lane));
    let name = text::clean(look, &name);
    let is_looking = matches!(row, DeviceRow::Looking);
    pen.cell(&text::cut(look, &name, width), width, if is_looking { look.dim() } else { style });
    match row {
        DeviceRow::Lane(lane) => {
            // A GPU that is too old is known to be before it is tried.
            let known = || known_refusal(state, lane.lane).filter(|_| lane.series.runs() == 0);
            match lane.failed.as_deref().or_else(known) {
                Some(why) => refused(pen, look, why),
                None => figures(pen, look, columns, lane, style),
            }
        }
        DeviceRow::Gpu(Gpu { refused: Some(why), .. }) => refused(pen, look, why),
        DeviceRow::NoGpu(why) => refused(pen, look, why),
        DeviceRow::Gpu(_) => drop(pen.skip(3).put("not timed yet: D chooses it", look.dim())),
        DeviceRow::Looking => {
            pen.skip(3).put("looking for GPUs", look.dim()).put(look.sign("…", "..."), look.dim());
        }
    }
}

/// Why a GPU cannot decode, as far as it is known without trying.
fn known_refusal(state: &State, lane: Lane) -> Option<&str> {
    match (lane, &state.views.speed.gpus) {
        (Lane::Gpu(n), Gpus::Found(gpus)) => gpus.iter().find(|g| g.ordinal == n)?.refused.as_deref(),
        _ => None,
    }
}

/// The name of a device, with that of a GPU's maker.
fn device_name(state: &State, lane: Lane) -> String {
    match (lane, &state.views.speed.gpus) {
        (Lane::Gpu(n), Gpus::Found(gpus)) => {
            let name = gpus.iter().find(|g| g.ordinal == n).map_or("", |g| g.name.as_str());
            format!("{lane}  {name}").trim_end().to_owned()
        }
        _ => lane.to_string(),
    }
}

fn refused(mut pen: Pen<'_>, look: Look, why: &str) {
    pen.skip(3).put(look.sign("✗ ", "! "), look.bad()).cut(look, why, look.warn());
}

fn figures(mut pen: Pen<'_>, look: Look, columns: &[Option<Column>], lane: &LaneState, style: Style) {
    let (summary, runs) = (lane.series.summary(), lane.series.runs());
    let dash = || look.sign("–", "-").to_owned();
    let time = |value: Option<f64>| value.map_or_else(dash, ms);
    let speed = summary.and_then(|s| s.gb_per_s);
    let figures = [
        (time(summary.map(|s| s.p50)), style),
        (time(summary.map(|s| s.p95)), style),
        (optional(look, speed), if speed.is_some() { look.good() } else { style }),
        (optional(look, lane.copy_gb_per_s), style),
        (if runs == 0 { dash() } else { short_count(runs) }, look.dim()),
    ];
    let cell = |(column, (text, style)): (&Option<Column>, (String, Style))| Some(((*column)?, text, style));
    table::row(&mut pen, look, columns.iter().zip(figures).filter_map(cell));
    pen.skip(table::GAP);
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
