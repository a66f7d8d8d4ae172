//! Reports of workers.

use wcodec::text::safe_path;

use super::estimate;
use crate::action::Report;
use crate::effect::Effect;
use crate::encode;
use crate::state::State;
use crate::stats::{Fetch, StatsEffect, StatsReport, Verdict};
use crate::views::list::Row;
use crate::views::{Tab, overview, speed};

/// A worker has something to say.
pub fn on_report(state: &mut State, report: Report) -> Vec<Effect> {
    match report {
        Report::Stats(report) => on_stats(state, report),
        Report::Timing(report) => speed::report(state, report),
        Report::FileChanged => {
            state.changed = true;
            state.fail("the file changed on disk: r reads it again")
        }
        Report::Reloaded(Ok(file)) => {
            reloaded(state, file);
            let mut effects = vec![Effect::Stats(StatsEffect::Cancel)];
            effects.extend(estimate(state));
            effects.extend(state.tab.view().resume(state));
            effects
        }
        Report::Reloaded(Err(why)) => state.fail(format!("{why} (what was read before is still shown)")),
        Report::Estimate { generation, found } => {
            if generation == state.generation {
                state.encode.would = found;
                overview::settle(state);
            }
            Vec::new()
        }
        Report::Encoding(progress) => encode::progress(state, progress),
        Report::Encoded { out, done } => encode::done(state, out, done),
        Report::Message(text) => state.say(text),
        Report::Error(text) => state.fail(text),
    }
}

fn on_stats(state: &mut State, report: StatsReport) -> Vec<Effect> {
    match report {
        StatsReport::Stats { generation, tensor, stats } if generation == state.generation => {
            let known = state.known.entry(tensor).or_default();
            // A statistic that is there is not lost when another asks for it in vain.
            if known.stats.ready().is_none() || stats.ready().is_some() {
                known.stats = stats;
            }
        }
        StatsReport::Verdict { generation, tensor, verdict } if generation == state.generation => {
            if let Fetch::Ready(Verdict::Damaged(what)) = &verdict {
                state.fail(what);
            }
            state.known.entry(tensor).or_default().verdict = verdict;
        }
        _ => {}
    }
    Vec::new()
}

/// Shows another file in the place of the one that was there, with the same selection and order.
fn reloaded(state: &mut State, file: std::sync::Arc<crate::model::FileModel>) {
    let selected = state.current().map(|i| state.file.tensors[i].name.clone());
    state.generation += 1;
    state.known.clear();
    state.changed = false;
    let name = safe_path(&file.path).into_owned();
    state.file = file;
    Tab::ALL.iter().for_each(|tab| tab.view().renew(state));
    if let Some(i) = selected.and_then(|name| state.file.find(&name)) {
        state.views.list.select(&state.file, Row::Tensor(i));
    }
    state.say(format!("{name} was read again"));
}
