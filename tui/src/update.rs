//! From a state and an action to the next state, and what is to be done for it.

use std::sync::Arc;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, MouseEvent, MouseEventKind};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;
use wcodec::text::safe_path;

use crate::action::{Action, Report};
use crate::draw::{Scroll, Scrolled, help};
use crate::effect::Effect;
use crate::keymap::{self, Command};
use crate::model::{FileModel, Filter, Original};
use crate::state::{Overlay, State};
use crate::stats::{Fetch, Found, StatsEffect, StatsReport, Verdict};
use crate::views::list::{Row, rearrange};
use crate::views::{Tab, overview, speed};
use crate::{encode, menu};

/// Does what follows from an action, in the state, and says what is to be done outside of it.
///
/// It touches nothing but the state, and takes no longer than drawing.
pub fn update(state: &mut State, action: Action) -> Vec<Effect> {
    match action {
        Action::Key(key) if key.kind != KeyEventKind::Release => on_key(state, key),
        Action::Mouse(mouse) => on_mouse(state, mouse),
        Action::Paste(text) => on_paste(state, &text),
        Action::Resize(columns, rows) => state.size = (columns, rows),
        Action::Key(_) | Action::Tick => {}
        Action::Report(report) => on_report(state, report),
    }
    Tab::List.view().fit(state);
    state.tab.view().fit(state);
    state.tab.view().watch(state);
    std::mem::take(&mut state.effects)
}

fn on_key(state: &mut State, key: KeyEvent) {
    state.notice = None;
    if let Some(command) = state.keys.command(state.context(), key) {
        return on_command(state, command);
    }
    match state.overlay {
        Overlay::Search { .. } => on_search_key(state, key),
        Overlay::Menu(..) => menu::on_key(state, key),
        Overlay::Help(_) => {}
        Overlay::None => unknown_key(state, key),
    }
}

/// Says of a key that does nothing that it does nothing.
fn unknown_key(state: &mut State, key: KeyEvent) {
    let Some(name) = keymap::named(key) else { return };
    let help = state.keys.shown(state.context(), Command::Help).map_or(String::new(), |k| format!(", {k} lists them"));
    state.say(format!("no key {name} here{help}"));
}

/// Everything in the search box narrows the list at once; Enter keeps the filter, Esc goes back to the one before.
fn on_search_key(state: &mut State, key: KeyEvent) {
    let Overlay::Search { input, before } = &mut state.overlay else { return };
    match key.code {
        KeyCode::Enter => state.overlay = Overlay::None,
        KeyCode::Esc => {
            let text = std::mem::take(before);
            state.overlay = Overlay::None;
            filter(state, &text);
        }
        KeyCode::Up | KeyCode::Down => {
            let by = if key.code == KeyCode::Up { -1 } else { 1 };
            state.views.list.cursor.step(by, state.views.list.rows.len());
        }
        _ => {
            input.handle_event(&Event::Key(key));
            let text = input.value().to_owned();
            filter(state, &text);
        }
    }
}

fn on_paste(state: &mut State, text: &str) {
    if let Overlay::Search { input, .. } = &mut state.overlay {
        let line: String = text.chars().filter(|c| !c.is_control()).take(1024).collect();
        *input = Input::new(format!("{}{line}", input.value()));
        let text = input.value().to_owned();
        filter(state, &text);
    }
}

/// Shows only tensors whose names match.
pub fn filter(state: &mut State, text: &str) {
    state.views.list.filter = (!text.is_empty()).then(|| Filter::new(text));
    rearrange(state);
}

fn on_mouse(state: &mut State, mouse: MouseEvent) {
    match mouse.kind {
        MouseEventKind::ScrollUp => on_command(state, Command::Up),
        MouseEventKind::ScrollDown => on_command(state, Command::Down),
        MouseEventKind::Down(_) if matches!(state.overlay, Overlay::None) => {
            state.tab.view().click(state, mouse.column, mouse.row);
        }
        _ => {}
    }
}

fn on_command(state: &mut State, command: Command) {
    match &mut state.overlay {
        Overlay::Menu(..) => return menu::command(state, command),
        Overlay::Help(scroll) => {
            let mut moved = *scroll;
            let page = usize::from(state.size.1).saturating_sub(6);
            moved.moved(command, help::most_scroll(state) + page, page);
            state.overlay = Overlay::Help(moved);
        }
        _ => {}
    }
    match command {
        Command::Quit => state.effects.push(Effect::Quit(0)),
        Command::Back => back(state),
        Command::Help => state.overlay = Overlay::Help(Scroll::default()),
        Command::View(tab) => view(state, tab),
        Command::NextView => view(state, state.tab.next(false)),
        Command::PreviousView => view(state, state.tab.next(true)),
        Command::Search => {
            let before = state.views.list.filter.as_ref().map_or(String::new(), |f| f.text().to_owned());
            state.overlay = Overlay::Search { input: Input::new(before.clone()), before };
            if state.tab != Tab::List {
                view(state, Tab::List);
            }
        }
        // The heat map, as it is coloured now, goes to a new file in the working directory.
        Command::Picture => match overview::picture(state) {
            Ok(text) => {
                let path = format!("{}.heatmap.svg", state.file.name()).into();
                state.effects.push(Effect::Export { path, text });
            }
            Err(why) => state.say(why),
        },
        Command::Reload => state.effects.push(Effect::Reload),
        Command::Redraw => state.effects.push(Effect::Redraw),
        Command::Theme => {
            state.look.theme = state.look.theme.next(false);
            state.say(format!("theme: {}", state.look.theme.name()));
        }
        Command::Encode => encode::open(state),
        Command::VerifyAll => verify(state, (0..state.file.tensors.len()).collect()),
        Command::Copy => {
            if let Some(name) = state.tab.view().selected_name(state) {
                state.say(format!("copied {name}"));
                state.effects.push(Effect::Copy(name));
            }
        }
        _ if matches!(state.overlay, Overlay::Help(_)) => {}
        _ if state.tab.view().moves(state).is_some_and(|(list, len, height)| list.moved(command, len, height)) => {}
        _ => state.tab.view().command(state, command),
    }
}

/// Has a checkpoint sampled, if the file is one.
pub fn estimate(state: &mut State) {
    state.encode.would = Fetch::Absent;
    if let Some(Original::Checkpoint(_)) = state.file.original() {
        state.encode.would = Fetch::Running(0.0);
        state.effects.push(Effect::Estimate);
    }
}

/// Has the hashes and the decoding of some tensors verified, in the order of the table.
pub fn verify(state: &mut State, mut tensors: Vec<usize>) {
    if let Err(e) = state.file.container() {
        return state.fail(e.to_string());
    }
    tensors.retain(|i| !state.knows(*i).verdict.is_running());
    for &i in &tensors {
        state.known.entry(i).or_default().verdict = Fetch::Running(0.0);
    }
    if !tensors.is_empty() {
        state.effects.push(Effect::Stats(state.generation, StatsEffect::Verify(tensors)));
    }
}

/// One step back: overlay, filter, view, program.
fn back(state: &mut State) {
    if matches!(state.overlay, Overlay::Help(_)) {
        state.overlay = Overlay::None;
    } else if !state.tab.facts().is_home {
        view(state, state.home);
    } else if state.views.list.filter.is_some() {
        filter(state, "");
    } else {
        state.effects.push(Effect::Quit(0));
    }
}

/// Selects a tensor in the table of layers, whatever hides it there.
pub fn reveal(state: &mut State, tensor: usize) {
    let Some(info) = state.file.tensors.get(tensor) else { return };
    if state.views.list.filter.as_ref().is_some_and(|f| !f.matches(&info.name)) {
        filter(state, "");
    }
    let (tree, mut hidden) = (&state.file.tree, false);
    for module in tree.upwards(tree.parent_of(tensor)) {
        hidden |= state.views.list.folded.remove(&module);
    }
    if hidden {
        rearrange(state);
    }
    state.views.list.select(&state.file, Row::Tensor(tensor));
}

/// Selects a tensor in the table of layers, and opens it.
pub fn show(state: &mut State, tensor: usize) {
    reveal(state, tensor);
    view(state, Tab::Tensor);
}

/// Goes to a view.
pub fn view(state: &mut State, tab: Tab) {
    let before = state.tab;
    if before != tab {
        before.view().leave(state);
    }
    let timed = before.view().times(state);
    state.tab = tab;
    if tab.facts().is_home {
        state.home = tab;
    }
    if timed && !tab.view().times(state) {
        speed::stop(state);
    }
    tab.view().enter(state, before == tab);
}

/// A worker has something to say.
fn on_report(state: &mut State, report: Report) {
    match report {
        Report::Stats(report) => on_stats(state, report),
        Report::Timing(report) => speed::report(state, report),
        Report::FileChanged => {
            state.changed = true;
            state.fail("the file changed on disk: r reads it again");
        }
        Report::Reloaded(Ok(file)) => {
            reloaded(state, file);
            state.effects.push(Effect::Stats(state.generation, StatsEffect::Cancel));
            estimate(state);
            state.tab.view().resume(state);
        }
        Report::Reloaded(Err(why)) => state.fail(format!("{why} (what was read before is still shown)")),
        Report::Estimate { generation, found } if generation == state.generation => {
            state.encode.would = found;
            overview::settle(state);
        }
        Report::Estimate { .. } => {}
        Report::Encoding(progress) => encode::progress(state, progress),
        Report::Encoded { out, done } => encode::done(state, &out, done),
        Report::Message(text) => state.say(text),
        Report::Error(text) => state.fail(text),
    }
}

fn on_stats(state: &mut State, StatsReport { generation, tensor, found }: StatsReport) {
    if generation != state.generation {
        return;
    }
    if let Found::Verdict(Fetch::Ready(Verdict::Damaged(what))) = &found {
        state.fail(what);
    }
    let known = state.known.entry(tensor).or_default();
    match found {
        // A statistic that is there is not lost when another asks for it in vain.
        Found::Stats(stats) if known.stats.ready().is_some() && stats.ready().is_none() => {}
        Found::Stats(stats) => known.stats = stats,
        Found::Verdict(verdict) => known.verdict = verdict,
    }
}

/// Shows another file in the place of the one that was there, with the same selection and order.
fn reloaded(state: &mut State, file: Arc<FileModel>) {
    let selected = state.current().map(|i| state.file.tensors[i].name.clone());
    state.generation += 1;
    state.known.clear();
    state.changed = false;
    state.file = file;
    Tab::ALL.iter().for_each(|tab| tab.view().renew(state));
    if let Some(i) = selected.and_then(|name| state.file.find(&name)) {
        state.views.list.select(&state.file, Row::Tensor(i));
    }
    state.say(format!("{} was read again", safe_path(&state.file.path)));
}
