//! Timings of decoding, on the CPU and on GPUs.

mod chart;
mod devices;
mod draw;
mod export;
mod once;
mod state;
mod tensors;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

pub use self::state::{Device, Gpus, LaneState, Order, Scope, SpeedState, Subject};
use super::{Facts, Tab, View};
use crate::draw::footer;
use crate::draw::scroll::Moves;
use crate::draw::widgets::Pen;
use crate::effect::Effect;
use crate::keymap::Command;
use crate::keymap::table::b;
use crate::run::once::Once;
use crate::state::State;
use crate::timing::{Lane, Progress, TimingEffect, TimingReport};
use crate::update::view;
use crate::views::list::Row;

/// Decode timings.
pub struct Speed;

const FACTS: Facts = Facts {
    name: "speed",
    earlier: "timing",
    help: "Speed: how fast it decodes here",
    words: &[
        ("round", "every chosen tensor decoded once"),
        ("p50, p95", "half, or 95 %, of the last rounds took no longer"),
    ],
    keys: &[
        b("s", Command::Sort, "sort by time, by GB/s, by size or by name", "sort"),
        b("Space", Command::Pause, "pause or go on", "pause"),
        b("+ | =", Command::More, "more threads", "threads"),
        b("-", Command::Fewer, "fewer threads", ""),
        b("D", Command::Device, "the next device", "device"),
        b("m", Command::Scope, "time the whole file, the layer or its module", "scope"),
        b("x", Command::Export, "write the timings to a JSON file", "export"),
    ],
    shared: &[Command::Enter, Command::Next, Command::Previous, Command::Copy],
    is_home: false,
};

/// Numbers of threads that the keys go through, besides all cores.
const STEPS: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

impl View for Speed {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn times(&self, _state: &State) -> bool {
        true
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, state: &State) {
        draw::draw(buffer, area, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::tensor(pen, state);
    }

    fn print(&self, once: &Once<'_>) -> Result<String, String> {
        once::print(once)
    }

    fn command(&self, state: &mut State, command: Command) -> Vec<Effect> {
        match command {
            Command::Next | Command::Previous => {
                Tab::List.view().command(state, command);
                return begin(state);
            }
            Command::Enter => {
                let Some(tensor) = state.views.speed.layers().get(state.views.speed.cursor.selected).map(|l| l.tensor)
                else {
                    return Vec::new();
                };
                state.views.list.select(&state.file, Row::Tensor(tensor));
                if state.current() == Some(tensor) {
                    return view(state, Tab::Tensor);
                }
                state.say("the filter hides this layer");
            }
            Command::Pause => {
                state.views.speed.paused = !state.views.speed.paused;
                return if state.views.speed.paused { stop(state) } else { begin(state) };
            }
            Command::More | Command::Fewer => return threads(state, command == Command::More),
            Command::Device => return next_device(state),
            Command::Scope => {
                state.views.speed.scope = state.views.speed.scope.next();
                return begin(state);
            }
            Command::Sort => {
                state.views.speed.order = state.views.speed.order.next();
                let (order, natural) = (state.views.speed.order, &state.file.natural);
                for lane in &mut state.views.speed.lanes {
                    lane.layers = order.sorted(&lane.slowest, natural);
                }
                state.views.speed.cursor = Default::default();
            }
            Command::Export => return export(state),
            _ => {}
        }
        Vec::new()
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let speed = &state.views.speed;
        let (len, height) = (speed.layers().len(), speed.heights(state.body_height()).layers);
        Moves::List(&mut state.views.speed.cursor, len, height)
    }

    fn resume(&self, state: &mut State) -> Vec<Effect> {
        start(state)
    }
}

/// Times what is chosen.
pub fn start(state: &mut State) -> Vec<Effect> {
    state.views.speed.paused = false;
    begin(state)
}

/// Stops timing.
pub fn stop(state: &mut State) -> Vec<Effect> {
    state.views.speed.running = None;
    vec![Effect::Timing(TimingEffect::Stop)]
}

/// Begins anew with what is chosen now, unless the user paused. Samples of the same tensors are kept.
fn begin(state: &mut State) -> Vec<Effect> {
    let subject = subject(state);
    let timing = &mut state.views.speed;
    if timing.subject != subject {
        timing.lanes.clear();
        timing.cursor = Default::default();
        timing.subject = subject;
    }
    let mut effects = Vec::new();
    if timing.gpus == Gpus::Unknown {
        timing.gpus = Gpus::Looking;
        effects.push(Effect::Timing(TimingEffect::Probe));
    }
    let lane = timing.lane();
    if timing.cores > 0 {
        let threads = if timing.threads == 0 { timing.cores } else { timing.threads };
        if !timing.lanes.iter().any(|l| matches!(l.lane, Lane::Cpu(_))) {
            timing.lane_mut(Lane::Cpu(threads));
        }
    }
    let Some(tensors) = timing.subject.as_ref().map(|s| s.tensors.clone()).filter(|t| !t.is_empty()) else {
        timing.running = None;
        effects.push(Effect::Timing(TimingEffect::Stop));
        return effects;
    };
    // Without the number of cores there is nothing to begin with; it comes at once.
    if timing.device == Device::Cpu && timing.threads == 0 && timing.cores == 0 {
        return effects;
    }
    let paused = timing.paused;
    let row = timing.lane_mut(lane);
    if paused {
        return effects;
    }
    row.failed = None;
    row.done = (0, tensors.len());
    row.runs_before = 0;
    timing.runs += 1;
    timing.running = Some(timing.runs);
    effects.push(Effect::Timing(TimingEffect::Start { run: timing.runs, lane, tensors }));
    effects
}

/// The tensors that the scope stands for now.
fn subject(state: &State) -> Option<Subject> {
    // A checkpoint has nothing to decode.
    state.file.container().ok()?;
    let (file, layers) = (&state.file, &state.views.list);
    let (title, tensors) = match state.views.speed.scope {
        Scope::Layer => {
            let tensor = layers.current(file)?;
            (file.tensors.get(tensor)?.name.clone(), vec![tensor])
        }
        Scope::Module => {
            let row = match layers.row()? {
                Row::Group(node) => Row::Group(node),
                Row::Tensor(i) => {
                    let node = file.tree.node_of.get(i).and_then(|&n| file.tree.nodes.get(n));
                    node.and_then(|n| n.parent).map_or(Row::Tensor(i), Row::Group)
                }
            };
            let title = match row {
                Row::Tensor(i) => file.tensors.get(i)?.name.clone(),
                Row::Group(node) => {
                    let node = file.tree.nodes.get(node)?;
                    let dot = if node.path.is_empty() { "" } else { "." };
                    format!("{}{dot}{}", node.path, node.label)
                }
            };
            (title, layers.tensors_of(file, row).collect())
        }
        Scope::File => {
            let name = file.path.file_name().unwrap_or(file.path.as_os_str());
            (name.to_string_lossy().into_owned(), (0..file.tensors.len()).collect())
        }
    };
    Some(Subject { generation: state.generation, scope: state.views.speed.scope, title, tensors: tensors.into() })
}

/// More threads, or fewer.
fn threads(state: &mut State, more: bool) -> Vec<Effect> {
    let timing = &mut state.views.speed;
    if timing.device != Device::Cpu {
        return state.say("threads are the CPU's: D chooses it");
    }
    if timing.cores == 0 {
        return Vec::new();
    }
    let now = if timing.threads == 0 { timing.cores } else { timing.threads };
    let steps = || STEPS.into_iter().filter(|&n| n < timing.cores).chain([timing.cores]);
    let found = if more { steps().find(|&n| n > now) } else { steps().rfind(|&n| n < now) };
    match found {
        Some(n) => {
            timing.threads = n;
            begin(state)
        }
        None => {
            let text =
                if more { format!("this machine runs {} threads at once", timing.cores) } else { "one thread".into() };
            state.say(text)
        }
    }
}

/// The next device, around.
fn next_device(state: &mut State) -> Vec<Effect> {
    let timing = &mut state.views.speed;
    let gpus: Vec<usize> = match &timing.gpus {
        Gpus::Found(gpus) => gpus.iter().map(|g| g.ordinal).collect(),
        Gpus::None(why) if timing.device == Device::Cpu => {
            let text = format!("no GPU: {why}");
            return state.say(text);
        }
        Gpus::Unknown | Gpus::Looking if timing.device == Device::Cpu => {
            return state.say("still looking for GPUs");
        }
        _ => Vec::new(),
    };
    let next = match timing.device {
        Device::Cpu => gpus.first(),
        Device::Gpu(n) => gpus.iter().find(|&&g| g > n),
    };
    let device = next.map_or(Device::Cpu, |&n| Device::Gpu(n));
    if device == timing.device {
        return state.say("there is no other device");
    }
    timing.device = device;
    begin(state)
}

/// Writes what is known to a file beside the working directory's others.
fn export(state: &mut State) -> Vec<Effect> {
    if state.views.speed.lanes.iter().all(|l| l.series.runs() == 0) {
        return state.say("nothing was timed yet");
    }
    let path = format!("{}.timing.json", state.file.name()).into();
    vec![Effect::Export { path, text: export::text(&state.file, &state.views.speed) }]
}

/// A worker measured something.
pub fn report(state: &mut State, report: TimingReport) -> Vec<Effect> {
    let timing = &mut state.views.speed;
    match report {
        TimingReport::Cores(n) => {
            timing.cores = n.max(1);
            let idle = timing.running.is_none() && !timing.paused;
            if idle && state.tab.view().times(state) {
                return begin(state);
            }
        }
        TimingReport::Gpus(found) => timing.gpus = found.map_or_else(Gpus::None, Gpus::Found),
        TimingReport::Progress { run, lane, progress } if timing.running == Some(run) => {
            let (order, natural) = (timing.order, &state.file.natural);
            take(timing.lane_mut(lane), progress, order, natural);
        }
        TimingReport::Failed { run, lane, why } if timing.running == Some(run) => {
            timing.running = None;
            timing.lane_mut(lane).failed = Some(why);
        }
        // The run was stopped.
        TimingReport::Progress { .. } | TimingReport::Failed { .. } => {}
    }
    Vec::new()
}

/// Adds what was measured to what is known of a device; `natural` is the natural order of tensors.
pub fn take(lane: &mut LaneState, progress: Progress, order: Order, natural: &[usize]) {
    let new = progress.runs.saturating_sub(lane.runs_before);
    lane.runs_before = progress.runs;
    lane.series.bytes = progress.bytes;
    lane.series.skip(new.saturating_sub(progress.rounds.len() as u64));
    progress.rounds.into_iter().for_each(|ms| lane.series.push(ms));
    lane.done = progress.done;
    lane.verifying = progress.verifying;
    lane.copy_gb_per_s = progress.copy_gb_per_s.or(lane.copy_gb_per_s);
    lane.left_out = progress.left_out;
    if !progress.layers.is_empty() {
        lane.layers = order.sorted(&progress.layers, natural);
        lane.slowest = progress.layers;
    }
}

#[cfg(test)]
mod tests;
