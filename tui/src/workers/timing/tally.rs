//! Times of a run, and what is left out of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::timing::{KEPT, LayerTime, Progress, percentile};

/// Times of tensors that are kept in all, whatever the number of tensors.
const TIMES: usize = 1 << 18;
/// Times of a tensor that are kept at least.
const FEWEST: usize = 5;
/// The time that the order of tensors stays as it is, so that it can be read.
const SAME_ORDER: Duration = Duration::from_secs(1);

/// One tensor's times.
#[derive(Debug)]
pub struct Layer {
    place: usize,
    /// Decoded bytes, which may depend on the device.
    pub bytes: u64,
    /// The last times.
    times: VecDeque<f32>,
}

/// Times of tensors and of rounds, and what was not reported yet. Slots number the tensors that are decoded.
#[derive(Debug, Default)]
pub struct Tally {
    /// The tensors that are decoded.
    pub layers: Vec<Layer>,
    left_out: Vec<LayerTime>,
    /// Times of each tensor that are kept.
    kept: usize,
    /// Milliseconds of the round so far.
    round: f64,
    /// Tensors in all, those that were left out among them.
    all: usize,
    /// Slots, the slowest first, and since when.
    order: Vec<usize>,
    ordered: Option<Instant>,
    /// The report that comes next.
    pub next: Progress,
}

impl Tally {
    /// No times yet of tensors, each with its place in the file and its decoded bytes.
    pub fn new(tensors: impl Iterator<Item = (usize, u64)>) -> Self {
        let layer = |(place, bytes)| Layer { place, bytes, times: VecDeque::new() };
        let layers: Vec<Layer> = tensors.map(layer).collect();
        let (all, next) = (layers.len(), Progress { verifying: true, ..Progress::default() });
        Self { kept: (TIMES / all.max(1)).clamp(FEWEST, KEPT), layers, all, next, ..Self::default() }
    }

    /// Their places in the file.
    pub fn places(&self) -> Vec<usize> {
        self.layers.iter().map(|l| l.place).collect()
    }

    /// A round begins.
    pub fn begin(&mut self) {
        (self.next.verifying, self.next.done.0, self.round) = (false, 0, 0.0);
    }

    /// A tensor was decoded within so many milliseconds.
    pub fn add(&mut self, slot: usize, ms: f64) {
        let Some(layer) = self.layers.get_mut(slot) else { return };
        if layer.times.len() == self.kept {
            layer.times.pop_front();
        }
        layer.times.push_back(ms as f32);
        self.round += ms;
        self.next.done.0 += 1;
    }

    /// All tensors were decoded.
    pub fn end_round(&mut self) {
        if self.next.rounds.len() == KEPT {
            self.next.rounds.remove(0);
        }
        self.next.rounds.push(self.round);
        self.next.runs += 1;
        self.begin();
    }

    /// Tensors cannot be decoded, each for a reason: they are not tried again. Slots, which ascend, are numbered anew.
    pub fn leave_out(&mut self, slots: Vec<(usize, Arc<str>)>) {
        let mut left = slots.into_iter().peekable();
        let mut kept = Vec::with_capacity(self.layers.len());
        for (slot, layer) in self.layers.drain(..).enumerate() {
            match left.next_if(|(out, _)| *out == slot) {
                None => kept.push(layer),
                Some((_, why)) => {
                    let Layer { place, bytes, .. } = layer;
                    self.left_out.push(LayerTime { tensor: place, bytes, ms: None, error: Some(why) });
                }
            }
        }
        self.layers = kept;
        self.ordered = None;
    }

    /// Why nothing can be decoded.
    pub fn reason(&self) -> String {
        match self.left_out.first().and_then(|l| l.error.as_deref()) {
            None => "there is nothing to decode".into(),
            Some(why) if self.left_out.len() == 1 => why.to_owned(),
            Some(why) => format!("none of {} tensors can be decoded: {why}", self.left_out.len()),
        }
    }

    /// The measurements since this was asked for the last time.
    pub fn progress(&mut self) -> Progress {
        let mut sorted = Vec::new();
        let mut median = |layer: &Layer| {
            sorted.clear();
            sorted.extend(layer.times.iter().map(|&ms| f64::from(ms)));
            sorted.sort_by(f64::total_cmp);
            percentile(&sorted, 0.5)
        };
        let medians: Vec<Option<f64>> = self.layers.iter().map(&mut median).collect();
        // While the first round runs, tensors get their first times all the while.
        if self.next.runs == 0 || self.ordered.is_none_or(|t| t.elapsed() >= SAME_ORDER) {
            self.order = (0..self.layers.len()).collect();
            self.order.sort_by(|&a, &b| {
                let time = |slot: usize| medians[slot].unwrap_or(-1.0);
                time(b).total_cmp(&time(a)).then(a.cmp(&b))
            });
            self.ordered = (self.next.runs > 0).then(Instant::now);
        }
        let time = |&slot: &usize| {
            let layer = &self.layers[slot];
            LayerTime { tensor: layer.place, bytes: layer.bytes, ms: medians[slot], error: None }
        };
        let next = &mut self.next;
        next.layers = self.order.iter().map(time).chain(self.left_out.iter().cloned()).collect();
        next.done.1 = if next.verifying { self.all } else { self.layers.len() };
        next.bytes = self.layers.iter().map(|l| l.bytes).sum();
        let first = self.left_out.first().and_then(|l| l.error.clone());
        next.left_out = first.map(|why| (self.left_out.len(), why));
        Progress { rounds: std::mem::take(&mut next.rounds), ..next.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_order() {
        let mut tally = Tally::new([(7, 10), (3, 20), (5, 30)].into_iter());
        assert!(tally.progress().verifying);
        tally.leave_out(vec![(1, "chunk 3 is damaged".into())]);
        tally.begin();
        for round in [[1.0, 9.0], [2.0, 8.0], [30.0, 7.0]] {
            round.iter().enumerate().for_each(|(slot, &ms)| tally.add(slot, ms));
            tally.end_round();
        }
        let progress = tally.progress();
        assert_eq!((progress.runs, &progress.rounds[..], progress.bytes), (3, &[10.0, 10.0, 37.0][..], 40));
        let layers: Vec<_> = progress.layers.iter().map(|l| (l.tensor, l.ms)).collect();
        assert_eq!(layers, [(5, Some(8.0)), (7, Some(2.0)), (3, None)]);
        assert_eq!(progress.layers[2].error.as_deref(), Some("chunk 3 is damaged"));
        assert_eq!(progress.left_out, Some((1, "chunk 3 is damaged".into())));
        assert!(tally.progress().rounds.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut tally = Tally::new((0..100_000).map(|i| (i, 1)));
        for _ in 0..3 * FEWEST {
            (0..tally.layers.len()).for_each(|slot| tally.add(slot, 1.0));
        }
        assert!(tally.layers.iter().all(|l| l.times.len() == FEWEST));
        let mut tally = Tally::new([(0, 1)].into_iter());
        for _ in 0..1000 {
            tally.add(0, 1.0);
            tally.end_round();
        }
        assert_eq!((tally.layers[0].times.len(), tally.progress().rounds.len()), (KEPT, KEPT));
    }

    #[test]
    fn a_run_without_tensors_says_so() {
        let mut tally = Tally::new([(0, 1), (1, 1)].into_iter());
        tally.leave_out(vec![(0, "no nvCOMP".into())]);
        assert_eq!(tally.reason(), "no nvCOMP");
        tally.leave_out(vec![(0, "no nvCOMP".into()), (1, "no nvCOMP".into())]);
        assert_eq!(tally.reason(), "none of 2 tensors can be decoded: no nvCOMP");
        assert_eq!(Tally::new(std::iter::empty()).reason(), "there is nothing to decode");
    }
}
