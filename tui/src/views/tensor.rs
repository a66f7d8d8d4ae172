//! The view of one tensor: facts and segments, histograms, and how far its values are from those of the reference.

mod facts;
pub mod plots;
mod segments;
pub mod symbols;

use wcodec::TensorInfo;

use super::{Facts, Tab, View};
use crate::draw::{Canvas, Moves, Page, Pen, Scroll, Scrolled, footer, text, widgets};
use crate::effect::Effect;
use crate::keymap::{Command, VERIFY, b};
use crate::state::State;
use crate::stats::{Fetch, LayerStats, StatsEffect};
use crate::update::verify;

/// One tensor.
pub struct Tensor;

pub(super) const FACTS: Facts = Facts {
    earlier: "layer",
    words: &[
        ("scale", "what a symbol is multiplied with; a row of weights shares one"),
        ("chunk", "what is decoded independently of all others"),
        ("side", "signs and low bits, stored as they are"),
        ("pair", "a layout: two symbols are coded as one, their low bits aside"),
        ("quad", "a layout: four symbols are coded as one, their low bits aside"),
    ],
    keys: &[
        VERIFY,
        b("+ | =", Command::More, "more bins", "bins"),
        b("-", Command::Fewer, "fewer bins", ""),
        b("a", Command::Axis, "logarithmic or linear axis of scales", "axis"),
    ],
    shared: &[Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

/// The settings of the histograms, and the part of the view that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorState {
    /// Bins of the scales' histogram.
    pub bins: usize,
    /// Whether scales are on a logarithmic axis.
    pub log: bool,
    /// Lines that are scrolled out at the top.
    pub scroll: Scroll,
    /// The tensor whose statistics were asked for last, by its place in the file.
    pub asked: Option<usize>,
}

impl Default for TensorState {
    fn default() -> Self {
        Self { bins: 40, log: false, scroll: Scroll::default(), asked: None }
    }
}

/// Numbers of bins to choose from.
const BINS: [usize; 14] = [5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200];

/// Rows at the top that are not scrolled.
const HEAD: usize = 2;
/// From so many columns on, facts are beside the histograms.
const TWO_COLUMNS: usize = 110;
/// Empty columns between them.
const GAP: usize = 3;
/// Rows of a histogram where all is below each other, and the fewest and most beside the facts.
const ROWS: usize = 6;
const FEWEST_ROWS: usize = 4;
const MOST_ROWS: usize = 18;
/// Rows that a histogram of weights alone leaves: its head and axis, and the largest weights.
const ALONE: usize = 11;

impl View for Tensor {
    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        let Some(of) = shown(state) else {
            canvas.pen(0).skip(1).put("no tensor: the filter leaves none", state.look.dim());
            return;
        };
        let height = canvas.height().saturating_sub(HEAD);
        let (pages, rows) = pages(of, (canvas.width(), height));
        let mut scroll = state.views.tensor.scroll;
        scroll.fit(rows, height);
        title(canvas.pen(0), of);
        summary(canvas.pen(1), of, (scroll, rows, height));
        for (x, page) in pages {
            let lines = page.lines.get(scroll.0..).unwrap_or_default();
            canvas.part((x, HEAD), (page.width, height)).lines(lines);
        }
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::tensor(pen, state);
    }

    fn command(&self, state: &mut State, command: Command) {
        let view = &mut state.views.tensor;
        match command {
            Command::More => view.bins = BINS.into_iter().find(|&b| b > view.bins).unwrap_or(view.bins),
            Command::Fewer => view.bins = BINS.into_iter().rev().find(|&b| b < view.bins).unwrap_or(view.bins),
            Command::Axis => view.log = !view.log,
            Command::Next | Command::Previous => {
                let before = state.current();
                Tab::List.view().command(state, command);
                if state.current() != before {
                    self.resume(state);
                } else {
                    let which = if command == Command::Next { "last" } else { "first" };
                    state.say(format!("this is the {which} tensor"));
                }
            }
            Command::Verify => {
                if let Some(tensor) = state.current() {
                    verify(state, vec![tensor]);
                }
            }
            _ => {}
        }
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let height = state.body_height().saturating_sub(HEAD);
        let rows = shown(state).map_or(0, |of| pages(of, (state.size.0.into(), height)).1);
        Some((&mut state.views.tensor.scroll, rows, height))
    }

    /// Statistics that failed are asked for again.
    fn enter(&self, state: &mut State, _again: bool) {
        self.resume(state);
    }

    fn resume(&self, state: &mut State) {
        if let Some(tensor) = state.current() {
            want(state, tensor);
        }
    }
}

/// A tensor that is drawn, and all that is known of it.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// All else.
    pub state: &'a State,
    /// Its place in the file.
    pub tensor: usize,
    /// The index's facts on it.
    pub t: &'a TensorInfo,
    /// Its statistics, once they are there.
    pub stats: Option<&'a LayerStats>,
}

impl<'a> Shown<'a> {
    /// A tensor of the file.
    pub fn new(state: &'a State, tensor: usize) -> Option<Self> {
        let stats = state.knows(tensor).stats.ready().map(AsRef::as_ref);
        Some(Self { state, tensor, t: state.file.tensors.get(tensor)?, stats })
    }

    /// The reason why there is no figure yet.
    fn wait(&self) -> String {
        match &self.state.knows(self.tensor).stats {
            Fetch::Running(part) => format!("computing: {:.0} %", 100.0 * part.clamp(0.0, 1.0)),
            Fetch::Failed(why) => format!("not known: {why}"),
            _ => "not computed yet".to_owned(),
        }
    }
}

/// The tensor that is shown.
fn shown(state: &State) -> Option<Shown<'_>> {
    Shown::new(state, state.current()?)
}

/// Has the statistics of a tensor computed, unless they are there or under way.
pub fn want(state: &mut State, tensor: usize) {
    let view = &mut state.views.tensor;
    // If another tensor was asked for after this one, this one was given up, even if that was not reported yet.
    let same = view.asked.replace(tensor) == Some(tensor);
    if !same {
        view.scroll = Scroll::default();
    }
    let readable = state.file.original().is_some() || state.file.container().is_ok();
    if !readable || state.file.missing(tensor) > 0 {
        return;
    }
    let stats = &mut state.known.entry(tensor).or_default().stats;
    match stats {
        Fetch::Ready(_) => {}
        Fetch::Running(_) if same => {}
        _ => {
            *stats = Fetch::Running(0.0);
            state.effects.push(Effect::Stats(state.generation, StatsEffect::Compute(tensor)));
        }
    }
}

/// The pages, each with its first column, and the number of rows that they take.
fn pages(of: Shown<'_>, (columns, rows): (usize, usize)) -> (Vec<(usize, Page)>, usize) {
    let state = of.state;
    let columns = columns.max(1);
    let margin = usize::from(columns > 40);
    let inner = columns - 2 * margin;
    let is_encoded = state.file.original().is_none();
    let index = |page: &mut Page| {
        facts::draw(page, of);
        if !is_encoded {
            facts::would(page, of);
        }
    };
    let values = |page: &mut Page, height: usize| match is_encoded {
        true => plots::draw(page, of, height),
        false => {
            // There is nothing but the histogram and what is written below it.
            let height =
                if columns < TWO_COLUMNS { height } else { rows.saturating_sub(ALONE).clamp(FEWEST_ROWS, MOST_ROWS) };
            plots::weights(page, of, height);
            plots::outliers(page, of);
        }
    };
    let hashes = |page: &mut Page| {
        if is_encoded {
            segments::draw(page, of);
            facts::reference(page, of);
        }
    };
    if columns < TWO_COLUMNS {
        let mut page = Page::new(state.look, inner);
        index(&mut page);
        values(&mut page, ROWS);
        hashes(&mut page);
        let rows = page.lines.len();
        return (vec![(margin, page)], rows);
    }
    let first = if inner >= 150 { 66 } else { 54 };
    let (mut left, mut right) = (Page::new(state.look, first), Page::new(state.look, inner - first - GAP));
    index(&mut left);
    hashes(&mut left);
    values(&mut right, (rows.saturating_sub(plots::FIXED) / 2).clamp(FEWEST_ROWS, MOST_ROWS));
    let rows = left.lines.len().max(right.lines.len());
    (vec![(margin, left), (margin + first + GAP, right)], rows)
}

/// The name, and which tensor of how many it is.
fn title(mut pen: Pen<'_>, Shown { state, t, tensor, .. }: Shown<'_>) {
    let look = state.look;
    pen.skip(usize::from(pen.left() > 40));
    let all = state.file.tensors.len();
    let place = state.file.natural.iter().position(|&n| n == tensor);
    if let Some(place) = place.filter(|_| pen.left() > 40) {
        pen.at_end(&format!("tensor {} of {} ", text::count(place as u64 + 1), text::count(all as u64)), look.dim());
    }
    pen.short(&t.name, look.title());
}

/// The most important facts on one line; the progress of the work, or the part that is shown.
fn summary(mut pen: Pen<'_>, of: Shown<'_>, (scroll, rows, height): (Scroll, usize, usize)) {
    let Shown { state, t, .. } = of;
    let look = state.look;
    pen.skip(usize::from(pen.left() > 40));
    if let Some(part) = scroll.part(look, rows, height) {
        pen.at_end(&format!("{part} "), look.dim());
    }
    if let Fetch::Running(part) = &state.knows(of.tensor).stats {
        let part = f64::from(*part);
        let (bar, rest) = widgets::part(look, part, 10);
        pen.at_end(&format!("computing {bar}{rest} {:>3.0} %", 100.0 * part.clamp(0.0, 1.0)), look.warn());
    }
    let mut facts = vec![format!("{} {}", t.dtype.name(), text::shape(&t.shape))];
    match state.file.original() {
        Some(_) => facts.push(text::size(t.original_bytes)),
        None => facts.extend([text::scheme(t), text::coder(t), format!("ratio {:.3}", t.ratio())]),
    }
    facts.push(format!("{:.3} bits/weight", t.bits_per_weight()));
    pen.cut(&facts.join(look.between()), look.text());
}
