//! Timings of decoding, on the CPU and on GPUs.

mod draw;
mod print;
mod state;

pub use self::state::{Device, LaneState, Order, Scope, SpeedState, Subject};
use super::{Facts, Tab, View};
use crate::draw::{Canvas, Moves, Pen, footer};
use crate::effect::Effect;
use crate::keymap::{Command, b};
use crate::run::once::Once;
use crate::state::State;
use crate::stats::Fetch;
use crate::timing::{Lane, TimingEffect, TimingReport};
use crate::update::view;
use crate::views::list::Row;

/// Decode timings.
pub struct Speed;

pub(super) const FACTS: Facts = Facts {
    earlier: "timing",
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
    fn times(&self, _state: &State) -> bool {
        true
    }

    fn draw(&self, canvas: &mut Canvas<'_>, state: &State) {
        draw::draw(canvas, state);
    }

    fn footer(&self, pen: Pen<'_>, state: &State) {
        footer::tensor(pen, state);
    }

    fn print(&self, once: &Once<'_>) -> Result<String, String> {
        print::rounds(once)
    }

    fn command(&self, state: &mut State, command: Command) {
        let speed = &mut state.views.speed;
        match command {
            Command::Next | Command::Previous => Tab::List.view().command(state, command),
            Command::Enter => {
                let Some(tensor) = speed.layers().get(speed.cursor.selected).map(|l| l.tensor) else { return };
                state.views.list.select(&state.file, Row::Tensor(tensor));
                return match state.current() == Some(tensor) {
                    true => view(state, Tab::Tensor),
                    false => state.say("the filter hides this layer"),
                };
            }
            Command::Pause => {
                speed.paused ^= true;
                if speed.paused {
                    return stop(state);
                }
            }
            Command::More | Command::Fewer => return threads(state, command == Command::More),
            Command::Device => return next_device(state),
            Command::Scope => speed.scope = speed.scope.next(false),
            Command::Sort => {
                speed.order = speed.order.next(false);
                for lane in &mut speed.lanes {
                    lane.layers = speed.order.sorted(&lane.last.layers, &state.file.natural);
                }
                speed.cursor = Default::default();
                return;
            }
            Command::Export => return export(state),
            _ => return,
        }
        begin(state);
    }

    fn moves<'a>(&self, state: &'a mut State) -> Moves<'a> {
        let speed = &state.views.speed;
        let (len, height) = (speed.layers().len(), speed.heights(state.body_height()).layers);
        Some((&mut state.views.speed.cursor, len, height))
    }

    fn resume(&self, state: &mut State) {
        start(state);
    }
}

/// Times what is chosen.
pub fn start(state: &mut State) {
    state.views.speed.paused = false;
    begin(state);
}

/// Stops timing.
pub fn stop(state: &mut State) {
    state.views.speed.running = None;
    state.effects.push(Effect::Timing(TimingEffect::Stop));
}

/// Begins anew with what is chosen now, unless the user paused. Samples of the same tensors are kept.
fn begin(state: &mut State) {
    let subject = subject(state);
    let timing = &mut state.views.speed;
    if timing.subject != subject {
        timing.lanes.clear();
        timing.cursor = Default::default();
        timing.subject = subject;
    }
    if matches!(timing.gpus, Fetch::Absent) {
        timing.gpus = Fetch::Running(0.0);
        state.effects.push(Effect::Timing(TimingEffect::Probe));
    }
    let lane = timing.lane();
    if timing.cores > 0 && !timing.lanes.iter().any(|l| matches!(l.lane, Lane::Cpu(_))) {
        timing.lane_mut(Lane::Cpu(timing.cpu_threads()));
    }
    let Some(tensors) = timing.subject.as_ref().map(|s| s.tensors.clone()).filter(|t| !t.is_empty()) else {
        return stop(state);
    };
    // Without the number of cores there is nothing to begin with; it comes at once.
    if timing.device == Device::Cpu && timing.threads == 0 && timing.cores == 0 {
        return;
    }
    let paused = timing.paused;
    let row = timing.lane_mut(lane);
    if paused {
        return;
    }
    row.failed = None;
    (row.last.done, row.last.runs) = ((0, tensors.len()), 0);
    timing.runs += 1;
    timing.running = Some(timing.runs);
    state.effects.push(Effect::Timing(TimingEffect::Start { run: timing.runs, lane, tensors }));
}

/// The tensors that the scope stands for now.
fn subject(state: &State) -> Option<Subject> {
    // A checkpoint has nothing to decode.
    state.file.container().ok()?;
    let (file, layers, scope) = (&state.file, &state.views.list, state.views.speed.scope);
    let (title, tensors) = match scope {
        Scope::Layer => {
            let tensor = layers.current(file)?;
            (file.tensors.get(tensor)?.name.clone(), vec![tensor])
        }
        Scope::Module => {
            let row = match layers.row()? {
                Row::Tensor(i) => file.tree.parent_of(i).map_or(Row::Tensor(i), Row::Group),
                group => group,
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
    Some(Subject { generation: state.generation, scope, title, tensors: tensors.into() })
}

/// More threads, or fewer.
fn threads(state: &mut State, more: bool) {
    let timing = &mut state.views.speed;
    if timing.device != Device::Cpu {
        return state.say("threads are the CPU's: D chooses it");
    }
    if timing.cores == 0 {
        return;
    }
    let now = timing.cpu_threads();
    let steps = || STEPS.into_iter().filter(|&n| n < timing.cores).chain([timing.cores]);
    let found = if more { steps().find(|&n| n > now) } else { steps().rfind(|&n| n < now) };
    match found {
        Some(n) => {
            timing.threads = n;
            begin(state);
        }
        None if more => state.say(format!("this machine runs {} threads at once", state.views.speed.cores)),
        None => state.say("one thread"),
    }
}

/// The next device, around.
fn next_device(state: &mut State) {
    let timing = &mut state.views.speed;
    let gpus: Vec<usize> = match (&timing.gpus, timing.device) {
        (Fetch::Ready(gpus), _) => gpus.iter().map(|g| g.ordinal).collect(),
        (Fetch::Failed(why), Device::Cpu) => {
            let text = format!("no GPU: {why}");
            return state.say(text);
        }
        (_, Device::Cpu) => return state.say("still looking for GPUs"),
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
    begin(state);
}

/// Writes what is known to a file beside the working directory's others.
fn export(state: &mut State) {
    if state.views.speed.lanes.iter().all(|l| l.series.runs == 0) {
        return state.say("nothing was timed yet");
    }
    let path = format!("{}.timing.json", state.file.name()).into();
    let text = print::json(&state.file, &state.views.speed);
    state.effects.push(Effect::Export { path, text });
}

/// A worker measured something.
pub fn report(state: &mut State, report: TimingReport) {
    let timing = &mut state.views.speed;
    match report {
        TimingReport::Cores(n) => {
            timing.cores = n.max(1);
            let idle = timing.running.is_none() && !timing.paused;
            if idle && state.tab.view().times(state) {
                begin(state);
            }
        }
        TimingReport::Gpus(found) => timing.gpus = found.map_or_else(Fetch::Failed, Fetch::Ready),
        TimingReport::Run { run, lane, found } if timing.running == Some(run) => match found {
            Ok(progress) => {
                let order = timing.order;
                timing.lane_mut(lane).take(progress, order, &state.file.natural);
            }
            Err(why) => {
                timing.running = None;
                timing.lane_mut(lane).failed = Some(why);
            }
        },
        // The run was stopped.
        TimingReport::Run { .. } => {}
    }
}
