//! The lines below the grid: its colours, and the selected cell in words.

use super::Measure;
use super::figures::Figures;
use super::grid::{Grid, shade};
use crate::draw::{Modifier, Pen, text};
use crate::state::State;
use crate::stats::Fetch;

/// Colours of the scale.
const STEPS: usize = 10;

/// Draws what the colours mean, or why there are none. `seen` are the first line, how many are seen, and all of them, where that are more.
pub fn draw(mut pen: Pen<'_>, grid: &Grid<'_>, seen: Option<(usize, usize, usize)>) {
    let Grid { state, heat, figures, range, .. } = *grid;
    let (look, measure) = (state.look, state.views.overview.measure);
    pen.skip(1);
    if let Some((from, count, lines)) = seen {
        pen.at_end(&format!("{}-{}/{lines}", from + 1, (from + count).min(lines)), look.dim());
    }
    pen.at_end(&state.encode.sampling(), look.warn());
    pen.put(measure.name(), look.title()).skip(1);
    let Some(range) = range else {
        pen.cut(&why_not(state, measure), look.warn());
        return;
    };
    let (low, high) = (figures.text(range.low), figures.text(range.high));
    if range.is_flat() {
        let all = if low == high { format!("all {low}") } else { format!("{low} to {high}") };
        let flat = format!("{all}: less than 5 % apart, so one colour");
        pen.cut(&flat, look.text());
    } else {
        pen.put(&low, look.text()).skip(1);
        for step in 0..STEPS {
            let part = step as f64 / (STEPS - 1) as f64;
            match look.heat(part) {
                Some(style) => pen.put(" ", style),
                None => pen.put(shade(look, part), look.bar()),
            };
        }
        pen.skip(1).put(&high, look.text());
        for (word, place, value) in [("most", range.most, high), ("least", range.least, low)] {
            let text = format!("{word}: {} {value}", text::clean(look, &heat.short(place)));
            if text::width(&text) + 3 <= pen.left() {
                pen.skip(3).put(&text, look.text());
            }
        }
    }
    let about = measure.about();
    if text::width(about) + 3 <= pen.left() {
        pen.skip(3).put(about, look.dim());
    }
}

/// Why there are no figures.
fn why_not(state: &State, measure: Measure) -> String {
    let why = match measure {
        Measure::WouldError | Measure::WouldBits | Measure::WouldError8 | Measure::WouldBits8 => {
            match &state.encode.would {
                Fetch::Running(_) => "not known yet",
                Fetch::Failed(why) => return why.clone(),
                _ => "there are no estimates: nothing here can be encoded",
            }
        }
        Measure::Error => "not known: scheme rate states errors; --ref and a look at a tensor measure them",
        Measure::Speed => "decoding the file once on each round; figures come with the first one",
        _ => "there are no figures",
    };
    why.to_owned()
}

/// The line above the keys: the selected cell in words.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let (look, heat) = (state.look, state.file.heat());
    let Some(row) = heat.rows.get(state.views.overview.row) else { return };
    let Some(cell) = heat.cell(state.views.overview.row, state.views.overview.column) else {
        pen.cut(&format!("{} has no such tensor", row.name), look.dim());
        return;
    };
    let name = match (&cell.tensors[..], heat.columns.get(state.views.overview.column)) {
        ([one], _) => state.file.tensors.get(*one).map_or(String::new(), |t| t.name.clone()),
        (many, Some(column)) => format!("{}.{} ({})", row.name, column.role, text::plural(many.len(), "tensor")),
        _ => row.name.clone(),
    };
    let figures = Measure::all(&state.file).iter().map(|&measure| Figures::new(state, measure));
    let mut facts: Vec<String> = figures.filter_map(|f| f.of(cell).map(|value| f.words(value))).collect();
    let name = text::clean(look, &name);
    let room = pen.left();
    let between = text::width(look.between());
    let needed = |facts: &[String]| facts.iter().map(|f| text::width(f) + between).sum::<usize>();
    // The name keeps half of the line; the last facts go.
    while facts.len() > 1 && needed(&facts) + text::width(&name).min(room / 2) > room {
        facts.pop();
    }
    let name = text::short_name(look, &name, room.saturating_sub(needed(&facts)).max(1));
    pen.put(&name, look.text().add_modifier(Modifier::BOLD));
    for fact in facts {
        pen.dot().put(&fact, look.text());
    }
}
