//! From a state and an action to the next state, and what is to be done for it.

pub mod report;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, MouseEvent, MouseEventKind};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use crate::action::Action;
use crate::draw::scroll::Scroll;
use crate::effect::Effect;
use crate::keymap::{self, Command};
use crate::model::filter::Filter;
use crate::state::{Overlay, State};
use crate::stats::{Fetch, StatsEffect};
use crate::views::list::{Row, rearrange};
use crate::views::{Tab, overview, speed};
use crate::{encode, menu};

/// Does what follows from an action, in the state, and says what is to be done outside of it.
///
/// It touches nothing but the state, and takes no longer than drawing.
pub fn update(state: &mut State, action: Action) -> Vec<Effect> {
    let mut effects = match action {
        Action::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
        Action::Key(key) => on_key(state, key),
        Action::Mouse(mouse) => on_mouse(state, mouse),
        Action::Paste(text) => on_paste(state, &text),
        Action::Resize(columns, rows) => {
            state.size = (columns, rows);
            Vec::new()
        }
        Action::Tick => Vec::new(),
        Action::Report(report) => report::on_report(state, report),
    };
    Tab::List.view().fit(state);
    state.tab.view().fit(state);
    effects.extend(state.tab.view().watch(state));
    effects
}

fn on_key(state: &mut State, key: KeyEvent) -> Vec<Effect> {
    state.notice = None;
    if let Some(command) = state.keys.command(state.context(), key) {
        return on_command(state, command);
    }
    match state.overlay {
        Overlay::Search { .. } => on_search_key(state, key),
        Overlay::Menu(..) => return menu::on_key(state, key),
        Overlay::Help(_) => {}
        Overlay::None => unknown_key(state, key),
    }
    Vec::new()
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

fn on_paste(state: &mut State, text: &str) -> Vec<Effect> {
    if let Overlay::Search { input, .. } = &mut state.overlay {
        let line: String = text.chars().filter(|c| !c.is_control()).take(1024).collect();
        *input = Input::new(format!("{}{line}", input.value()));
        let text = input.value().to_owned();
        filter(state, &text);
    }
    Vec::new()
}

/// Shows only tensors whose names match.
pub fn filter(state: &mut State, text: &str) {
    state.views.list.filter = (!text.is_empty()).then(|| Filter::new(text));
    rearrange(state);
}

fn on_mouse(state: &mut State, mouse: MouseEvent) -> Vec<Effect> {
    match mouse.kind {
        MouseEventKind::ScrollUp => on_command(state, Command::Up),
        MouseEventKind::ScrollDown => on_command(state, Command::Down),
        MouseEventKind::Down(_) if matches!(state.overlay, Overlay::None) => {
            state.tab.view().click(state, mouse.column, mouse.row);
            Vec::new()
        }
        _ => Vec::new(),
    }
}

fn on_command(state: &mut State, command: Command) -> Vec<Effect> {
    // Only where it is shown: the list is laid out for that.
    let most = if matches!(state.overlay, Overlay::Help(_)) { crate::draw::help::most_scroll(state) } else { 0 };
    if let Overlay::Help(scroll) = &mut state.overlay {
        let page = usize::from(state.size.1).saturating_sub(6).max(1);
        scroll.moved(command, page);
        scroll.0 = scroll.0.min(most);
    }
    if let Overlay::Menu(..) = state.overlay {
        return menu::command(state, command);
    }
    match command {
        Command::Quit => return vec![Effect::Quit(0)],
        Command::Back => return back(state),
        Command::Help => state.overlay = Overlay::Help(Scroll::default()),
        Command::View(tab) => return view(state, tab),
        Command::NextView => return view(state, state.tab.next(false)),
        Command::PreviousView => return view(state, state.tab.next(true)),
        Command::Search => {
            let before = state.views.list.filter.as_ref().map_or(String::new(), |f| f.text().to_owned());
            state.overlay = Overlay::Search { input: Input::new(before.clone()), before };
            if state.tab != Tab::List {
                return view(state, Tab::List);
            }
        }
        Command::Picture => return picture(state),
        Command::Reload => return vec![Effect::Reload],
        Command::Redraw => return vec![Effect::Redraw],
        Command::Theme => {
            state.look.theme = state.look.theme.next();
            let name = state.look.theme.name();
            state.say(format!("theme: {name}"));
        }
        Command::Encode => return encode::open(state),
        Command::VerifyAll => {
            let tensors = (0..state.file.tensors.len()).collect();
            return verify(state, tensors);
        }
        Command::Copy => {
            if let Some(name) = state.tab.view().selected_name(state) {
                state.say(format!("copied {name}"));
                return vec![Effect::Copy(name)];
            }
        }
        _ if matches!(state.overlay, Overlay::Help(_)) => {}
        _ if state.tab.view().moves(state).moved(command) => {}
        _ => return state.tab.view().command(state, command),
    }
    Vec::new()
}

/// Writes the heat map, as it is coloured now, to a new file in the working directory.
fn picture(state: &mut State) -> Vec<Effect> {
    match overview::picture(state) {
        Ok(text) => vec![Effect::Export { path: format!("{}.heatmap.svg", state.file.name()).into(), text }],
        Err(why) => state.say(why),
    }
}

/// Has a checkpoint sampled, if the file is one.
pub fn estimate(state: &mut State) -> Option<Effect> {
    state.encode.would = Fetch::Absent;
    let Some(crate::model::original::Original::Checkpoint(_)) = state.file.original() else { return None };
    state.encode.would = Fetch::Running(0.0);
    Some(Effect::Estimate)
}

/// Has the hashes and the decoding of some tensors verified, in the order of the table.
pub fn verify(state: &mut State, tensors: Vec<usize>) -> Vec<Effect> {
    if let Err(e) = state.file.container() {
        return state.fail(e.to_string());
    }
    let under_way =
        |state: &State, i: usize| state.known.get(&i).is_some_and(|k| matches!(k.verdict, Fetch::Running(_)));
    let tensors: Vec<usize> = tensors.into_iter().filter(|&i| !under_way(state, i)).collect();
    if tensors.is_empty() {
        return Vec::new();
    }
    for &i in &tensors {
        state.known.entry(i).or_default().verdict = Fetch::Running(0.0);
    }
    vec![Effect::Stats(StatsEffect::Verify { generation: state.generation, tensors })]
}

/// One step back: overlay, filter, view, program.
fn back(state: &mut State) -> Vec<Effect> {
    if matches!(state.overlay, Overlay::Help(_)) {
        state.overlay = Overlay::None;
    } else if !state.tab.view().facts().is_home {
        return view(state, state.home);
    } else if state.views.list.filter.is_some() {
        filter(state, "");
    } else {
        return vec![Effect::Quit(0)];
    }
    Vec::new()
}

/// Selects a tensor in the table of layers, whatever hides it there.
pub fn reveal(state: &mut State, tensor: usize) {
    let Some(info) = state.file.tensors.get(tensor) else { return };
    if state.views.list.filter.as_ref().is_some_and(|f| !f.matches(&info.name)) {
        filter(state, "");
    }
    let tree = &state.file.tree;
    let mut parent = tree.node_of.get(tensor).and_then(|&n| tree.nodes.get(n)?.parent);
    let mut hidden = false;
    while let Some(node) = parent {
        hidden |= state.views.list.folded.remove(&node);
        parent = tree.nodes.get(node).and_then(|n| n.parent);
    }
    if hidden {
        rearrange(state);
    }
    state.views.list.select(&state.file, Row::Tensor(tensor));
}

/// Selects a tensor in the table of layers, and opens it.
pub fn show(state: &mut State, tensor: usize) -> Vec<Effect> {
    reveal(state, tensor);
    view(state, Tab::Tensor)
}

/// Goes to a view.
pub fn view(state: &mut State, tab: Tab) -> Vec<Effect> {
    let before = state.tab;
    if before != tab {
        before.view().leave(state);
    }
    let timed = before.view().times(state);
    state.tab = tab;
    if tab.view().facts().is_home {
        state.home = tab;
    }
    let mut effects = Vec::new();
    if timed && !tab.view().times(state) {
        effects.extend(speed::stop(state));
    }
    effects.extend(tab.view().enter(state, before == tab));
    effects
}
