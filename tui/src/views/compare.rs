//! Two files side by side: which tensors differ, and in which way.

use std::sync::Arc;

use wcodec::TensorInfo;

use super::{Facts, View};
use crate::draw::{
    Canvas, Column, Cursor, Look, Modifier, Moves, Pen, Room, Style, diverging, table, table::GAP, text,
};
use crate::keymap::{Command, b};
use crate::model::{Compared, Comparison, FileModel, Relation};
use crate::plain;
use crate::run::once::Once;
use crate::state::State;
use crate::update::show;

/// Two files.
pub struct Compare;

pub(super) const FACTS: Facts = Facts {
    earlier: "compare",
    words: &[
        ("recoded", "other bytes that decode to the same values"),
        ("tied", "another name for a tensor: it stores nothing itself"),
    ],
    keys: &[
        b("s", Command::Sort, "sort by size of the difference, or by name", "sort"),
        b("o", Command::Differences, "only tensors with other values, or all", "only differences"),
    ],
    shared: &[Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

/// The tensors that are compared, and the selected one.
#[derive(Clone, Debug, Default)]
pub struct CompareState {
    /// Whether only tensors with other values are shown.
    pub only_differences: bool,
    /// Whether rows are by name; by the size of the difference if not.
    pub by_name: bool,
    /// The selected row.
    pub cursor: Cursor,
    /// The tensors of both files; nothing where there is no second file.
    pub found: Option<Arc<Comparison>>,
    /// The places among them of the rows that are shown.
    shown: Vec<usize>,
}

impl CompareState {
    /// All tensors of both files.
    pub fn new(file: &FileModel, other: Option<&FileModel>) -> Self {
        let found = other.map(|other| Arc::new(Comparison::new(file, other)));
        let mut state = Self { found, ..Self::default() };
        state.rearrange();
        state
    }

    /// Rows that are shown.
    pub fn len(&self) -> usize {
        self.shown.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// A row that is shown.
    pub fn row(&self, at: usize) -> Option<&Compared> {
        self.found.as_ref()?.rows.get(*self.shown.get(at)?)
    }

    /// The selected row.
    pub fn selected(&self) -> Option<&Compared> {
        self.row(self.cursor.selected)
    }

    /// Works out which rows are shown and how, and selects the same one, or the next one by name that is shown.
    fn rearrange(&mut self) {
        let Some(found) = &self.found else { return };
        let selected = self.shown.get(self.cursor.selected).copied();
        self.shown = if self.by_name { (0..found.rows.len()).collect() } else { found.by_size.clone() };
        if self.only_differences {
            self.shown.retain(|&place| found.rows[place].relation.differs());
        }
        if let Some(selected) = selected {
            let at = self.shown.iter().position(|&place| place == selected);
            let next = if self.by_name { self.shown.partition_point(|&place| place < selected) } else { self.len() };
            self.cursor.selected = at.unwrap_or(next);
        }
    }
}

impl View for Compare {
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        let (look, compare) = (state.look, &state.views.compare);
        let (Some(found), Some(other)) = (&compare.found, state.other.as_deref()) else {
            let lines = [
                "there is no second file to compare with",
                "",
                "start the inspector with two files to see them side by side:",
                "    wcodec-tui A.wcodec B.wcodec",
            ];
            for (i, line) in lines.iter().enumerate() {
                let style = if i == 0 { look.warn() } else { look.text() };
                let first = usize::from(canvas.height() > 6);
                canvas.pen(first + i).skip(3).put(line, style);
            }
            return;
        };
        let longest = state.file.widths.name.max(other.widths.name).max(16);
        let (columns, rows) = (columns(canvas.width(), longest), canvas.height());
        // The rows are there first, then the head, the files' names, and the sums.
        let (files, head, sums) = (rows >= 4, rows >= 2, rows >= 3);
        if files {
            names(canvas.pen(0), state, other);
        }
        if head {
            let mut pen = canvas.pen(usize::from(files));
            pen.fill(look.title()).skip(3);
            let title = |&(part, column): &(Part, Column)| match part {
                Part::Bar => {
                    let half = column.width / 2;
                    (column, format!("{:>half$} {:half$}", "less", "more"), look.title())
                }
                _ => (column, column.title.to_owned(), look.title()),
            };
            table::row(&mut pen, columns.iter().map(title));
        }
        let first = usize::from(files) + usize::from(head);
        let height = rows.saturating_sub(first + usize::from(sums));
        if compare.is_empty() {
            let text =
                if found.rows.is_empty() { "neither file has tensors" } else { "no other values: o shows all tensors" };
            canvas.pen(first + 1).skip(3).put(text, look.good());
        }
        table::list(canvas, (first, height), (compare.cursor, compare.len()), |pen, at| {
            if let Some(compared) = compare.row(at) {
                row(pen, state, other, &columns, compared, found.most);
            }
        });
        if sums {
            totals(canvas.pen(rows - 1), &columns, found);
        }
    }

    /// The number of rows of each kind.
    fn footer(&self, mut pen: Pen<'_>, state: &State) {
        let (look, compare) = (state.look, &state.views.compare);
        let Some(found) = &compare.found else { return };
        pen.at_end(&compare.cursor.place(compare.len()), look.dim());
        if compare.only_differences {
            pen.put("only differences", look.warn()).dot();
        }
        let order = if compare.by_name { "by name" } else { "by size of the difference" };
        if pen.left() >= 60 + order.len() {
            pen.put(order, look.dim()).dot();
        }
        for relation in Relation::ALL {
            let count = found.counts[relation as usize];
            if count > 0 {
                let (sign, style) = sign(look, relation);
                pen.put(sign, style).put(&format!(" {} {}  ", text::count(count as u64), relation.name()), look.dim());
            }
        }
    }

    fn print(&self, once: &Once<'_>) -> Result<String, String> {
        match &once.compared {
            Some((_, found)) => Ok(plain::comparison(found, once.look) + "\n"),
            None => Err("--tab compare needs two files (wcodec-tui A.wcodec B.wcodec --tab compare)".to_owned()),
        }
    }

    fn command(&self, state: &mut State, command: Command) {
        let compare = &mut state.views.compare;
        match command {
            Command::Next | Command::Previous => next(state, command == Command::Previous),
            Command::Differences => {
                compare.only_differences ^= true;
                compare.rearrange();
            }
            Command::Sort => {
                compare.by_name ^= true;
                compare.rearrange();
            }
            Command::Enter => match compare.selected().map(|row| row.places[0]) {
                Some(Some(tensor)) => show(state, tensor),
                Some(None) => state.say("only the second file has it"),
                None => {}
            },
            _ => {}
        }
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let height = state.body_height().saturating_sub(3);
        let compare = &mut state.views.compare;
        let len = compare.len();
        Some((&mut compare.cursor, len, height))
    }

    fn renew(&self, state: &mut State) {
        let CompareState { only_differences, by_name, .. } = state.views.compare;
        let new = CompareState::new(&state.file, state.other.as_deref());
        state.views.compare = CompareState { only_differences, by_name, shown: Vec::new(), ..new };
        state.views.compare.rearrange();
    }

    fn selected_name(&self, state: &State) -> Option<String> {
        Some(state.views.compare.selected()?.name.clone())
    }
}

/// The next row whose values are not the same.
fn next(state: &mut State, back: bool) {
    let compare = &mut state.views.compare;
    let Some(found) = &compare.found else { return };
    let differs = |at| compare.row(at).is_some_and(|r| r.relation.differs());
    match compare.cursor.next(back, compare.len(), differs) {
        Some(at) => compare.cursor.selected = at,
        None if found.differing == 0 => state.say("the files hold the same values"),
        None if back => state.say("this is the first difference"),
        None => state.say("this is the last difference"),
    }
}

/// The subject of a column; those of one file have its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Name,
    Stored(usize),
    Change,
    Bar,
    Ratio(usize),
    /// In which way the tensors differ.
    Changes,
}

/// The columns that there is room for, where the longest name has so many columns of the terminal.
fn columns(width: usize, longest: usize) -> Vec<(Part, Column)> {
    let stored = [Column::number("A stored", 10), Column::number("B stored", 10)];
    let ratios = [Column::number("ratio A", 6), Column::number("ratio B", 6)];
    let change = Column::number("B/A", 6);
    let room = width.saturating_sub(3 + stored[0].needs() + stored[1].needs() + change.needs());
    let least = longest.min((room * 2 / 5).clamp(10, 44));
    let mut left = Room(room.saturating_sub(least));
    let mut changes = if left.take(GAP + 18) { 18 } else { 0 };
    let has_ratios = changes > 0 && left.take(ratios[0].needs() + ratios[1].needs());
    // The text of a changed scheme, then a bar, then names in full.
    changes += if has_ratios && left.take(10) { 10 } else { 0 };
    let mut bar = if has_ratios && left.take(GAP + 11) { 11 } else { 0 };
    let more = left.most(longest - least);
    bar += if bar > 0 { left.most((left.0 / 3).min(10) / 2 * 2) } else { 0 };
    changes += if changes > 0 { left.most(20) } else { 0 };
    let all = [
        (Part::Name, Column::text("name", least + more + left.0).after(0)),
        (Part::Stored(0), stored[0]),
        (Part::Stored(1), stored[1]),
        (Part::Change, change),
        (Part::Bar, Column::text("", bar)),
        (Part::Ratio(0), ratios[0]),
        (Part::Ratio(1), ratios[1]),
        (Part::Changes, Column::text("B compared with A", changes)),
    ];
    let is_shown = |(part, column): &(Part, Column)| match part {
        Part::Bar | Part::Changes => column.width > 0,
        Part::Ratio(_) => has_ratios,
        _ => true,
    };
    all.into_iter().filter(is_shown).collect()
}

fn names(mut pen: Pen<'_>, state: &State, other: &FileModel) {
    let look = state.look;
    let half = pen.left() / 2;
    let title = look.text().add_modifier(Modifier::BOLD);
    for (i, (letter, file)) in [("A", &*state.file), ("B", other)].into_iter().enumerate() {
        let begin = pen.left();
        let name = text::file_name(look, &file.path);
        let size = text::size(file.file_bytes());
        let room = half.saturating_sub(size.len() + 8);
        pen.skip(3).put(letter, look.title()).put(" ", look.text());
        pen.put(&text::cut_middle(look, &name, room), title).skip(1).put(&size, look.dim());
        if i == 0 {
            pen.skip(half.saturating_sub(begin - pen.left()));
        }
    }
}

fn sign(look: Look, relation: Relation) -> (&'static str, Style) {
    match relation {
        Relation::Same => ("=", look.dim()),
        Relation::Recoded => (look.sign("≈", "~"), look.warn()),
        Relation::Differs => (look.sign("≠", "!"), look.bad()),
        Relation::OnlyA => ("A", look.title()),
        Relation::OnlyB => ("B", look.title()),
    }
}

/// All that is not the same in the second file.
fn changes(look: Look, row: &Compared, infos: [Option<&TensorInfo>; 2]) -> String {
    let arrow = look.sign("→", "->");
    let [Some(a), Some(b)] = infos else {
        let tied = if row.tied == [false; 2] { "" } else { ", tied" };
        return format!("{}{tied}", row.relation.name());
    };
    let mut changes: Vec<String> = Vec::new();
    if row.tied[0] != row.tied[1] {
        changes.push(format!("tied in {}", if row.tied[0] { "A" } else { "B" }));
    }
    let texts: [fn(&TensorInfo) -> String; 4] =
        [|t| t.dtype.name().to_owned(), |t| text::shape(&t.shape), text::scheme, text::coder];
    for text in texts {
        let (x, y) = (text(a), text(b));
        if x != y {
            changes.push(format!("{x} {arrow} {y}"));
        }
    }
    match row.relation {
        Relation::Same if changes.is_empty() && row.tied[0] => "same bytes, tied".to_owned(),
        Relation::Same if changes.is_empty() => "same bytes".to_owned(),
        Relation::Recoded if changes.is_empty() => "other bytes, same values".to_owned(),
        Relation::Recoded => format!("{}, same values", changes.join(", ")),
        _ if changes.is_empty() => "other values".to_owned(),
        _ => changes.join(", "),
    }
}

fn row(mut pen: Pen<'_>, state: &State, other: &FileModel, columns: &[(Part, Column)], row: &Compared, most: f64) {
    let (look, file) = (state.look, &*state.file);
    let same = row.relation == Relation::Same;
    let plain = if same { look.dim() } else { look.text() };
    let (sign, sign_style) = sign(look, row.relation);
    pen.put(sign, sign_style).skip(1);
    let infos = row.infos(file, other);
    let change = row.stored_ratio(file, other);
    let colour = match change {
        Some(c) if c < 0.9995 => look.good(),
        Some(c) if c > 1.0005 => look.warn(),
        _ => look.dim(),
    };
    let cell = |&(part, column): &(Part, Column)| {
        let (text, style) = match part {
            Part::Name => (text::short(look, &row.name, column.width), plain),
            Part::Stored(i) if row.tied[i] => ("tied".to_owned(), plain),
            Part::Stored(i) => (infos[i].map_or_else(String::new, |t| text::size(t.stored_bytes)), plain),
            Part::Change => (change.map_or_else(String::new, text::figure), colour),
            Part::Bar => {
                let part = change.filter(|_| most > 0.0).map(|c| (c - 1.0) / most);
                (part.map_or_else(String::new, |p| diverging(look, p, column.width)), colour)
            }
            Part::Ratio(i) => (infos[i].map_or_else(String::new, |t| text::figure(t.ratio())), plain),
            Part::Changes => (changes(look, row, infos), if same { look.dim() } else { sign_style }),
        };
        (column, text, style)
    };
    table::row(&mut pen, columns.iter().map(cell));
}

fn totals(mut pen: Pen<'_>, columns: &[(Part, Column)], found: &Comparison) {
    let style = pen.look.text().add_modifier(Modifier::BOLD);
    let recoded = found.counts[Relation::Recoded as usize];
    let label = match (found.differing, found.rows.len()) {
        (0, all) if recoded > 0 => format!("{}, same values", text::plural(all, "tensor")),
        (0, all) => format!("{}, no difference", text::plural(all, "tensor")),
        (n, all) => format!("{} of {} differ", text::count(n as u64), text::plural(all, "tensor")),
    };
    let sums = [&found.a, &found.b];
    let cell = |&(part, column): &(Part, Column)| {
        let text = match part {
            Part::Name => label.clone(),
            Part::Stored(i) => text::size(sums[i].stored_bytes),
            Part::Change if found.a.stored_bytes > 0 => {
                text::figure(found.b.stored_bytes as f64 / found.a.stored_bytes as f64)
            }
            Part::Ratio(i) => text::figure(sums[i].ratio()),
            Part::Change | Part::Bar | Part::Changes => String::new(),
        };
        (column, text, style)
    };
    table::row(pen.skip(3), columns.iter().map(cell));
}
