//! The histogram of a tensor's symbols.

use wcodec::TensorInfo;

use super::Shown;
use super::plots::nothing;
use crate::draw::{Chart, Page, chart::room, text};
use crate::stats::SymbolStats;

/// Widest bar, where there are few symbols; one of so many columns is set off from the next.
const BAR: usize = 9;
const SET_OFF: usize = 3;

/// The meaning of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Scheme `int8`: multiples of the scale.
    Multiples,
    /// Scheme `rate`: multiples and half of the scale, so that none is 0.
    Halves,
    /// Scheme `rate` with the trellis: two levels at halves each, of which the symbols before tell which.
    Trellis,
    /// Elements of 8 bits, whatever they mean.
    Bytes,
}

impl Kind {
    fn of(t: &TensorInfo) -> Self {
        match t.scheme.as_str() {
            _ if !t.makes_symbols => Self::Bytes,
            "rate" if t.planes.first().is_some_and(|p| p.filter == "trellis") => Self::Trellis,
            "rate" => Self::Halves,
            _ => Self::Multiples,
        }
    }

    /// Whether no symbol is in the middle: there are as many above 0 as below.
    fn is_even(self) -> bool {
        matches!(self, Self::Halves | Self::Trellis)
    }

    /// The text below the bar of a symbol.
    fn label(self, symbol: i16) -> String {
        match self {
            Self::Halves => format!("{:.1}", f64::from(symbol) + 0.5),
            _ => symbol.to_string(),
        }
    }

    fn note(self, step: usize) -> String {
        match (self, step) {
            (Self::Multiples, 1) => "each symbol".to_owned(),
            (Self::Multiples, n) => format!("{n} symbols a bar"),
            (Self::Halves, 1) => "each level, in scales".to_owned(),
            (Self::Halves, n) => format!("{n} levels a bar, in scales"),
            (Self::Trellis, 1) => "q of the trellis, each for two levels".to_owned(),
            (Self::Trellis, n) => format!("q of the trellis, {n} a bar"),
            (Self::Bytes, n) => format!("bytes as signed numbers, {n} a bar"),
        }
    }
}

/// Which symbols share a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bars {
    kind: Kind,
    /// The smallest and the largest symbol that is shown.
    range: (i16, i16),
    /// Symbols of each bar.
    step: usize,
    /// Bars.
    count: usize,
}

impl Bars {
    /// Bars for so many columns. 0 is in the middle: of the middle one, or between two where no symbol stands for it.
    fn new(kind: Kind, room: usize, found: Option<&SymbolStats>) -> Self {
        let farthest = found.map_or(WIDEST, |f| farthest(kind, f));
        let reaches: &[i16] = if kind.is_even() { &[3, 5, 7, 11, 15, 23, 31, 47, 63] } else { &[15, 31, 63] };
        // Few ranges to choose from, so that layers can be compared.
        let reach = reaches.iter().copied().find(|&r| farthest <= r).unwrap_or(WIDEST);
        let count = |step: usize| match kind.is_even() {
            true => 2 * (reach as usize + 1).div_ceil(step),
            false => 2 * (reach as usize).saturating_sub((step - 1) / 2).div_ceil(step) + 1,
        };
        let by = if kind.is_even() { 1 } else { 2 };
        let step = (1..=255).step_by(by).find(|&s| count(s) <= room).unwrap_or(255);
        let range = (if kind.is_even() { -reach - 1 } else { -reach }, reach);
        Self { kind, range, step, count: count(step) }
    }

    /// The bar of a symbol.
    fn place(self, symbol: i16) -> usize {
        (symbol + (self.step * self.count / 2) as i16).max(0) as usize / self.step
    }

    /// The middle of a symbol on the axis, from 0 to 1.
    fn part(self, symbol: i16) -> f64 {
        let half = if self.kind.is_even() { 0.5 } else { 0.0 };
        0.5 + (f64::from(symbol) + half) / (self.step * self.count) as f64
    }

    /// The part of all symbols that one symbol of each bar has on average: bars at the ends hold fewer.
    fn shares(self, found: &SymbolStats) -> Vec<f64> {
        let total = found.total().max(1) as f64;
        let mut sums = vec![(0u64, 0u64); self.count];
        let (first, last) = self.range;
        for symbol in first..=last {
            if let Some((sum, held)) = sums.get_mut(self.place(symbol)) {
                // -128 is in no file of scheme int8; where it occurs, it stands with its neighbour.
                let beyond = symbol == -WIDEST && symbol == first;
                *sum += found.count(symbol as i8) + if beyond { found.count(-128) } else { 0 };
                *held += 1;
            }
        }
        sums.into_iter().map(|(sum, held)| sum as f64 / held.max(1) as f64 / total).collect()
    }

    /// The texts below the axis and their places: each symbol if bars are so wide, else some, those that matter most first.
    fn labels(self, columns: usize) -> Vec<(f64, String)> {
        let (first, last) = self.range;
        let symbols: Vec<i16> = match self.kind.is_even() {
            true if self.step == 1 && columns > self.kind.label(first).len() => (first..=last).collect(),
            true => vec![first, last, -1, 0, (first - 1) / 2, last / 2],
            false => vec![0, first, last, -(last + 1) / 2, (last + 1) / 2],
        };
        symbols.into_iter().map(|symbol| (self.part(symbol), self.kind.label(symbol))).collect()
    }
}

/// The farthest symbol from 0 that is shown, of all symbols.
const WIDEST: i16 = 127;

/// And of these, counted as if those below 0 were as far as they are above.
fn farthest(kind: Kind, found: &SymbolStats) -> i16 {
    let far = |q: i16| if kind.is_even() { q.max(-q - 1) } else { q.abs() };
    (-128i16..).zip(found.counts).filter(|(_, n)| *n > 0).map(|(q, _)| far(q)).max().unwrap_or(0)
}

/// Writes it, and figures below it.
pub fn draw(page: &mut Page, of: Shown<'_>, height: usize) {
    let Shown { t, stats, .. } = of;
    if !t.has_symbols() {
        page.heading("Symbols", "none", page.look.dim());
        let bits = 8 * t.dtype.size();
        page.sentence(&format!("elements of {bits} bits, which make no symbols"), page.look.dim());
        return;
    }
    match stats.and_then(|s| s.symbols.as_ref()) {
        Some(found) => {
            chart(page, of, height);
            page.items(&items(Kind::of(t), found, t));
        }
        None => chart(page, of, height + 1),
    }
}

/// Writes the histogram alone, of a tensor that has symbols.
pub fn chart(page: &mut Page, of: Shown<'_>, height: usize) {
    let Shown { t, stats, .. } = of;
    let (look, kind) = (page.look, Kind::of(t));
    let found = stats.and_then(|s| s.symbols.as_ref());
    let bars = Bars::new(kind, room(page), found);
    page.heading(if kind == Kind::Halves { "Levels" } else { "Symbols" }, &kind.note(bars.step), look.dim());
    let Some(found) = found else {
        return nothing(page, of, Chart::rows(height));
    };
    let shares = bars.shares(found);
    let most = shares.iter().copied().fold(0.0, f64::max);
    let heights: Vec<f64> = shares.iter().map(|&s| if most > 0.0 { s / most } else { 0.0 }).collect();
    let columns = (room(page) / bars.count.max(1)).clamp(1, BAR);
    // Between two bars there is no column to mark.
    let marks: &[f64] = if kind.is_even() { &[] } else { &[0.5] };
    let chart = Chart {
        bars: &heights,
        columns,
        gap: usize::from(kind.is_even() && columns >= SET_OFF),
        height,
        top: text::percent(most),
        bottom: "0 %".to_owned(),
        marks,
        labels: &bars.labels(columns),
    };
    chart.draw(page);
}

fn items(kind: Kind, found: &SymbolStats, t: &TensorInfo) -> Vec<(&'static str, String)> {
    let total = found.total().max(1) as f64;
    let half = if kind.is_even() { 0.5 } else { 0.0 };
    // Two levels of the trellis are, on the average, twice the symbol and one and a half of its scale: symmetric about 0 as the symbols are.
    let scales = if kind == Kind::Trellis { 2.0 } else { 1.0 };
    let size = |q: i32| (f64::from(q) + half).abs() * scales;
    let mean = (-128i32..).zip(found.counts).map(|(q, n)| size(q) * n as f64).sum::<f64>() / total;
    let different = found.counts.iter().filter(|&&n| n > 0).count();
    let (entropy, different) = match (kind, found.levels) {
        (Kind::Multiples | Kind::Bytes, _) => (format!("{:.4} of 8 bits", found.entropy), different.to_string()),
        (_, None) => (against(found, t), text::plural(different, "level")),
        (_, Some(levels)) => (against(found, t), format!("{different}, of {}", text::plural(levels, "level"))),
    };
    let least = match kind.is_even() {
        // 0 and -1 are half a step above and below nothing.
        true => ("smallest", text::percent((found.count(0) + found.count(-1)) as f64 / total)),
        false => ("zeros", text::percent(found.count(0) as f64 / total)),
    };
    let mean = if kind.is_even() { format!("{} scales", text::figure(mean)) } else { text::figure(mean) };
    vec![("entropy", entropy), least, ("mean magnitude", mean), ("different", different)]
}

/// The entropy beside what is stored: scales, tables and offsets are in that, too.
fn against(found: &SymbolStats, t: &TensorInfo) -> String {
    format!("{:.4} of {:.3} bits stored", found.entropy, t.bits_per_weight())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(counts: [u64; 256]) -> SymbolStats {
        SymbolStats { counts, entropy: 0.0, levels: None }
    }

    #[test]
    fn symbols_fall_into_bars_around_zero() {
        for kind in [Kind::Multiples, Kind::Halves, Kind::Trellis, Kind::Bytes] {
            for room in 2..400 {
                let bars = Bars::new(kind, room, None);
                let Bars { step, count, .. } = bars;
                assert!(count <= room && step * count >= 255, "{kind:?} {room}: {step} {count}");
                assert!(kind.is_even() == count.is_multiple_of(2), "{kind:?} {room}: {step} {count}");
                // Every symbol once in a hundred: all bars are equal.
                let shares = bars.shares(&stats([1; 256]));
                assert_eq!(shares.len(), count);
                let inner = if kind.is_even() { &shares } else { &shares[usize::from(count > 1)..] };
                let near = |s: &f64| (s - 1.0 / 256.0).abs() < 1.0 / 256.0 / 200.0 + 1e-9;
                assert!(inner.iter().all(|s| near(s) || count == 1), "{kind:?} {room}");
                // Symbols nearest to 0 are in the middle.
                let mut counts = [0; 256];
                counts[128] = 7;
                if kind.is_even() {
                    counts[127] = 7;
                }
                let few = stats(counts);
                let bars = Bars::new(kind, room, Some(&few));
                assert_eq!(bars.range, if kind.is_even() { (-4, 3) } else { (-15, 15) });
                let shares = bars.shares(&few);
                let middle = |i: usize| i == bars.count / 2 || (kind.is_even() && i + 1 == bars.count / 2);
                assert!(shares.iter().enumerate().all(|(i, &s)| (s > 0.0) == middle(i)), "{kind:?} {room}");
            }
        }
    }

    #[test]
    fn every_symbol_is_in_a_bar() {
        for kind in [Kind::Multiples, Kind::Halves, Kind::Trellis] {
            for room in [1, 2, 7, 30, 64, 100, 256, 400] {
                for symbol in -128i16..=127 {
                    let mut counts = [0; 256];
                    counts[(symbol + 128) as usize] = 1;
                    let found = stats(counts);
                    let bars = Bars::new(kind, room, Some(&found));
                    let held = bars.shares(&found).iter().filter(|&&s| s > 0.0).count();
                    assert_eq!(held, 1, "{kind:?} {room} {symbol}");
                }
            }
        }
    }

    #[test]
    fn levels_are_at_halves_and_say_so() {
        // Two bits: levels at -1.5, -0.5, 0.5 and 1.5.
        let mut counts = [0; 256];
        (counts[126], counts[127], counts[128], counts[129]) = (1, 4, 4, 1);
        let bars = Bars::new(Kind::Halves, 60, Some(&stats(counts)));
        assert_eq!((bars.step, bars.count), (1, 8));
        let labels = bars.labels(7);
        let texts: Vec<&str> = labels.iter().map(|(_, l)| l.as_str()).collect();
        assert_eq!(texts, ["-3.5", "-2.5", "-1.5", "-0.5", "0.5", "1.5", "2.5", "3.5"]);
        // Each stands below the middle of its bar.
        assert!(labels.iter().enumerate().all(|(i, (part, _))| (part - (i as f64 + 0.5) / 8.0).abs() < 1e-12));
        let few = bars.labels(2);
        assert_eq!((few.len(), few[0].1.as_str(), few[3].1.as_str()), (6, "-3.5", "0.5"));
        let trellis = Bars::new(Kind::Trellis, 60, Some(&stats(counts)));
        assert_eq!(trellis.labels(7)[0].1, "-4");
    }
}
