//! The map of the file: all of it to scale, the part around the selection enlarged, a list of its regions, and figures.

mod facts;

use super::{Facts, View};
use crate::draw::{Canvas, Column, Cursor, Look, Modifier, Moves, Pen, Style, table, text};
use crate::keymap::Command;
use crate::model::{FileMap, Kind, Region};
use crate::state::State;
use crate::update::show;

/// The file's map.
pub struct File;

pub(super) const FACTS: Facts = Facts {
    earlier: "file",
    words: &[
        ("data", "coded symbols"),
        ("side", "signs and low bits, stored as they are"),
        ("offsets", "where chunks begin"),
        ("tables", "frequencies of symbols, which the decoder needs"),
    ],
    keys: &[],
    shared: &[Command::Enter],
    is_home: false,
};

/// The selected region.
pub fn selected(state: &State) -> Option<&Region> {
    state.file.map().regions.get(state.views.file.selected)
}

impl View for File {
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        let map = state.file.map();
        let (columns, rows) = (canvas.width(), canvas.height());
        let place = Place::new(columns, rows, map);
        let selected = selected(state).copied();
        let window = selected.map(|r| window(map, &r));
        // A column at either side stays empty.
        let mut inner = canvas.part((1, 0), (columns.saturating_sub(2), rows));
        if let Some(row) = place.whole {
            let all = (0, map.length);
            bar(inner.rows(row, place.thick), map, all);
            below(inner.pen(row + place.thick), all, window, "the whole file");
        }
        if let (Some(row), Some(window)) = (place.zoom, window) {
            bar(inner.rows(row, place.thick), map, window);
            let mark = selected.map(|r| (r.offset, r.end()));
            let what = format!("{} enlarged", text::size(window.1 - window.0));
            below(inner.pen(row + place.thick), window, mark, &what);
        }
        if let Some(row) = place.legend {
            legend(inner.rows(row, rows), map);
        }
        let facts = if columns >= BESIDE { (columns * 2 / 5).clamp(35, 48) } else { 0 };
        let list = columns.saturating_sub(facts);
        regions(&mut canvas.part((0, 0), (list, rows)), &place, state);
        if facts > 0 {
            facts::draw(&mut canvas.part((list + 1, place.list), (facts - 2, rows)), state);
        }
    }

    /// The selected region in full.
    fn footer(&self, mut pen: Pen<'_>, state: &State) {
        let (look, map) = (state.look, state.file.map());
        let Some(r) = selected(state) else { return };
        pen.at_end(&state.views.file.place(map.regions.len()), look.dim());
        let style = look.text().add_modifier(Modifier::BOLD);
        let range = format!("  bytes {} to {}", text::count(r.offset), text::count(r.end().saturating_sub(1)));
        let name = r.tensor.and_then(|t| state.file.tensors.get(t)).map_or("", |t| t.name.as_str());
        pen.put(r.kind.name(), style).skip(1);
        let means = r.kind.about();
        if pen.left() > means.len() + 40 {
            pen.put(&format!("({means}) "), look.dim());
        }
        let name = text::clean(look, name);
        let room = pen.left();
        let with_range = text::width(&name) + range.len() <= room;
        pen.put(&text::short_name(look, &name, room), look.text());
        if with_range {
            pen.put(&range, look.dim());
        }
    }

    fn command(&self, state: &mut State, command: Command) {
        if let (Command::Enter, Some(tensor)) = (command, selected(state).and_then(|r| r.tensor)) {
            show(state, tensor);
        }
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let (len, height) = (state.file.map().regions.len(), height(state));
        Some((&mut state.views.file, len, height))
    }

    fn renew(&self, state: &mut State) {
        state.views.file = Cursor::default();
    }
}

/// Columns of an entry of the legend.
const ENTRY: usize = 31;
/// Fewest columns of the view with figures beside the list.
const BESIDE: usize = 76;
/// The enlarged part has at least so many bytes.
const ZOOM: u64 = 1024;

/// The layout of the view: rows from its top.
struct Place {
    /// Rows of a bar.
    thick: usize,
    /// Row of the bar of the whole file, and of the enlarged part, if they are there.
    whole: Option<usize>,
    zoom: Option<usize>,
    /// First row of the legend.
    legend: Option<usize>,
    /// First row of the list, its head included if there is one.
    list: usize,
    head: bool,
}

impl Place {
    fn new(columns: usize, rows: usize, map: &FileMap) -> Self {
        let entries = map.bytes.iter().filter(|&&b| b > 0).count();
        let lines = entries.div_ceil(per_line(columns));
        let (thick, gap) = if rows >= 30 { (2, 1) } else { (1, 0) };
        let mut list = 0;
        // Below the bars, the list needs some rows.
        let mut take = |least, wanted| {
            let row = (rows >= list + least).then_some(list);
            list += row.map_or(0, |_| wanted);
            row
        };
        let whole = take(6, thick + 1 + gap);
        let zoom = take(12, thick + 1 + gap);
        let legend = take(lines + 6, lines + gap);
        Self { thick, whole, zoom, legend, list, head: rows > 2 }
    }
}

fn per_line(columns: usize) -> usize {
    (columns.saturating_sub(1) / ENTRY).max(1)
}

/// The part of the file around a region that is enlarged: from first to behind last byte.
fn window(map: &FileMap, r: &Region) -> (u64, u64) {
    let length = r.length.saturating_mul(4).max(ZOOM).min(map.length);
    let begin = (r.offset + r.length / 2).saturating_sub(length / 2).min(map.length - length);
    (begin, begin + length)
}

/// The sign and the style of a kind; data of neighbouring regions is told apart by two signs.
fn sign(look: Look, kind: Kind, odd: bool) -> (&'static str, Style) {
    match kind {
        Kind::Header => (look.sign("H", "H"), look.title()),
        Kind::Data if odd => (look.sign("▓", "d"), look.bar()),
        Kind::Data => (look.sign("█", "D"), look.bar()),
        Kind::Side => (look.sign("▒", "b"), look.good()),
        Kind::Scales => (look.sign("S", "s"), look.warn()),
        Kind::Offsets => (look.sign("o", "o"), look.warn()),
        Kind::Tables => (look.sign("T", "t"), look.title()),
        Kind::Index => (look.sign("░", "I"), look.title()),
        Kind::Padding => (look.sign("·", "."), look.dim()),
    }
}

/// A range of the file to scale: each cell shows what most of its bytes are.
fn bar(mut canvas: Canvas<'_>, map: &FileMap, (begin, end): (u64, u64)) {
    let columns = canvas.width() as u128;
    let at = |cell: u128| begin + (u128::from(end - begin) * cell / columns.max(1)) as u64;
    for cell in 0..columns {
        let first = at(cell);
        // Each cell has a byte, even if there are fewer bytes than cells.
        let Some((kind, region)) = map.most(first, at(cell + 1).max(first + 1)) else { return };
        let tensor = region.and_then(|r| map.regions.get(r)?.tensor);
        let (sign, style) = sign(canvas.look, kind, tensor.is_some_and(|t| t % 2 == 1));
        for row in 0..canvas.height() {
            canvas.pen(row).to(cell as usize).put(sign, style);
        }
    }
}

/// The line below a bar: where it begins and ends, and a mark below a part of it.
fn below(mut pen: Pen<'_>, (begin, end): (u64, u64), part: Option<(u64, u64)>, what: &str) {
    let look = pen.look;
    let columns = pen.left();
    let (left, right) = (text::size(begin), text::size(end));
    let cell = |at: u64| {
        let whole = u128::from(end - begin).max(1);
        (u128::from(at.clamp(begin, end) - begin) * columns as u128 / whole) as usize
    };
    let mark = part.map(|(b, e)| {
        let first = cell(b).min(columns.saturating_sub(1));
        (first, cell(e).max(first + 1))
    });
    // Texts give way to the mark.
    let (from, to) = mark.unwrap_or((columns, columns));
    let middle = (columns.saturating_sub(what.len())) / 2;
    let mut free = 0;
    for (at, text) in [(0, left.as_str()), (middle, what), (columns.saturating_sub(right.len()), right.as_str())] {
        if free <= at && (at + text.len() < from || at > to) {
            pen.to(at).put(text, look.dim());
            free = at + text.len() + 2;
        }
    }
    if mark.is_some() {
        let caret = if to - from == 1 { look.sign("▲", "^") } else { look.sign("▔", "^") };
        pen.to(from).put(&caret.repeat(to - from), look.warn());
    }
}

fn legend(mut canvas: Canvas<'_>, map: &FileMap) {
    let (look, per_line) = (canvas.look, per_line(canvas.width() + 1));
    let kinds = Kind::ALL.into_iter().filter(|&k| map.bytes[k as usize] > 0);
    for (i, kind) in kinds.enumerate() {
        let bytes = map.bytes[kind as usize];
        let (even, style) = sign(look, kind, false);
        let (odd, _) = sign(look, kind, true);
        let mut pen = canvas.pen(i / per_line);
        pen.skip(i % per_line * ENTRY).put(even, style).put(if odd == even { " " } else { odd }, style);
        pen.skip(1).cell(kind.name(), 8, look.text());
        pen.number(&text::size(bytes), 10, look.text()).skip(1);
        pen.number(&text::percent(bytes as f64 / map.length.max(1) as f64), 7, look.dim());
    }
}

/// Rows of the list.
fn height(state: &State) -> usize {
    let rows = state.body_height();
    let place = Place::new(usize::from(state.size.0), rows, state.file.map());
    rows.saturating_sub(place.list + usize::from(place.head))
}

/// The list of regions.
fn regions(canvas: &mut Canvas<'_>, place: &Place, state: &State) {
    let (look, map, width) = (state.look, state.file.map(), canvas.width());
    let offset = Column::number("offset", text::count(map.length).len().max(6)).after(0);
    let mut columns = vec![offset, Column::number("length", 10)];
    let has_parts = width >= 64;
    if has_parts {
        columns.extend([Column::number("of file", 7), Column::text("", 1), Column::text("what", 7).after(1)]);
    } else {
        columns.push(Column::text("what", 7));
    }
    let used: usize = columns.iter().map(Column::needs).sum();
    let name = Column::text("of", width.saturating_sub(used + 2)).after(1);
    columns.push(name);
    if place.head {
        table::head(canvas.pen(place.list).skip(1), &columns);
    }
    let first = place.list + usize::from(place.head);
    let seen = (first, canvas.height().saturating_sub(first).max(1));
    table::list(canvas, seen, (state.views.file, map.regions.len()), |mut pen, at| {
        let r = &map.regions[at];
        let (sign, sign_style) = sign(look, r.kind, r.tensor.is_some_and(|t| t % 2 == 1));
        let mut cells = vec![(text::count(r.offset), look.dim()), (text::size(r.length), look.text())];
        if has_parts {
            let part = r.length as f64 / map.length.max(1) as f64;
            cells.extend([(text::percent(part), look.dim()), (sign.to_owned(), sign_style)]);
        }
        cells.push((r.kind.name().to_owned(), sign_style));
        if let Some(t) = r.tensor.and_then(|t| state.file.tensors.get(t)) {
            // The tensor's first region names it plainly, the others repeat it.
            let again = at > 0 && map.regions[at - 1].tensor == r.tensor;
            let style = if again { look.dim() } else { look.text() };
            cells.push((text::short(look, &t.name, name.width), style));
        }
        table::row(&mut pen, columns.iter().zip(cells).map(|(&column, (text, style))| (column, text, style)));
    });
}
