//! Names of tensors: their natural order, and suggestions for misspelt ones.

use std::cmp::Ordering;

/// Compares names in natural order: runs of digits by their number, however long, and paths module by module, so that
/// the tensors of a module stay together.
///
/// ```
/// use wcodec::names::natural;
/// let mut names = ["h.10.w", "h.9.w", "h-1.w", "h", "h.9.b"];
/// names.sort_by(|a, b| natural(a, b));
/// assert_eq!(names, ["h", "h.9.b", "h.9.w", "h.10.w", "h-1.w"]);
/// ```
pub fn natural(a: &str, b: &str) -> Ordering {
    // A dot ends a component: it sorts before all characters that could continue it.
    let rank = |c: u8| if c == b'.' { 0 } else { u16::from(c) + 1 };
    let run = |s: &[u8]| s.iter().take_while(|c| c.is_ascii_digit()).count();
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (n, m) = (run(a), run(b));
                let zeros = |s: &[u8]| s.iter().take_while(|&&c| c == b'0').count();
                let (p, q) = (&a[zeros(&a[..n])..n], &b[zeros(&b[..m])..m]);
                let order = p.len().cmp(&q.len()).then_with(|| p.cmp(q)).then(n.cmp(&m));
                if order != Ordering::Equal {
                    return order;
                }
                (a, b) = (&a[n..], &b[m..]);
            }
            (Some(x), Some(y)) => match rank(*x).cmp(&rank(*y)) {
                Ordering::Equal => (a, b) = (&a[1..], &b[1..]),
                order => return order,
            },
        }
    }
}

/// The most edits of a misspelt name.
const MOST_EDITS: usize = 16;

/// The likely intended name, among `known`, for one that does not exist: the one with the fewest edits, if these are
/// fewer than a third of its bytes, and few; otherwise the first one that contains it.
///
/// ```
/// use wcodec::names::near;
/// let known = ["lm_head.weight", "model.layers.0.q_proj.weight"];
/// assert_eq!(near("lm_heat.weight", known), Some("lm_head.weight"));
/// assert_eq!(near("q_proj", known), Some("model.layers.0.q_proj.weight"));
/// assert_eq!(near("unlike all of them", known), None);
/// ```
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best = None;
    let mut containing = None;
    // The most edits that can still win.
    let mut most = (name.len() / 3).min(MOST_EDITS);
    let mut work = Rows::default();
    for candidate in known {
        if containing.is_none() && !name.is_empty() && candidate.contains(name) {
            containing = Some(candidate);
        }
        if most > 0
            && let Some(edits) = work.edits(name.as_bytes(), candidate.as_bytes(), most)
        {
            (best, most) = (Some(candidate), edits.saturating_sub(1));
        }
    }
    best.or(containing)
}

/// Three rows of the distance table, the current one first, reused for each pair.
#[derive(Default)]
struct Rows([Vec<usize>; 3]);

impl Rows {
    /// The number of bytes to insert, delete, replace or swap with their neighbours to turn `a` into `b`, if that is at
    /// most `most`. The work grows with `most`, not with the square of the length: there may be a hundred thousand
    /// names of any length.
    fn edits(&mut self, a: &[u8], b: &[u8], most: usize) -> Option<usize> {
        if a.len().abs_diff(b.len()) > most {
            return None;
        }
        let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let (a, b) = (&a[same..], &b[same..]);
        let same = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
        let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
        let far = most + 1;
        for row in &mut self.0 {
            row.clear();
            row.resize(b.len() + 1, far);
        }
        self.0[0].iter_mut().zip(0..far).for_each(|(place, edits)| *place = edits);
        let mut least_above = 0;
        for (i, x) in a.iter().enumerate() {
            self.0.rotate_right(1);
            let [row, above, before] = &mut self.0;
            // Only cells this close to the diagonal are reachable with `most` edits; the cells next to them are read,
            // too.
            let (first, last) = ((i + 1).saturating_sub(most), (i + 1 + most).min(b.len()));
            row[first.saturating_sub(1)] = far;
            if first == 0 {
                row[0] = i + 1;
            }
            let mut least = if first == 0 { row[0] } else { far };
            for j in first.max(1)..=last {
                let replaced = above[j - 1] + usize::from(*x != b[j - 1]);
                let mut edits = replaced.min(above[j] + 1).min(row[j - 1] + 1);
                if i > 0 && j > 1 && a[i - 1] == b[j - 1] && *x == b[j - 2] {
                    edits = edits.min(before[j - 2] + 1);
                }
                row[j] = edits.min(far);
                least = least.min(row[j]);
            }
            if let Some(beyond) = row.get_mut(last + 1) {
                *beyond = far;
            }
            // A swap skips a row.
            if least >= far && least_above >= most {
                return None;
            }
            least_above = least;
        }
        self.0[0].last().copied().filter(|&edits| edits <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn natural_order_is_total() {
        let long = format!("a.{}", "9".repeat(5000));
        let names = [
            "a.1",
            "a.01",
            "a.2",
            "a.10",
            "a",
            "a.x",
            "",
            "b",
            "a.99999999999999999999999",
            "a.100",
            "a-1.x",
            "a1",
            &long,
        ];
        for a in names {
            for b in names {
                assert_eq!(natural(a, b), natural(b, a).reverse(), "{a} {b}");
                assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            }
        }
    }

    /// The textbook table.
    fn plain(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = match (i, j) {
                    (0, _) => j,
                    (_, 0) => i,
                    _ => {
                        let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                        let edits = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                        let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                        if swapped { edits.min(table[i - 2][j - 2] + 1) } else { edits }
                    }
                };
            }
        }
        table[a.len()][b.len()]
    }

    proptest! {
        #[test]
        fn natural_order_is_that_of_parts(names in prop::collection::vec("[ab01.-]{0,6}", 3)) {
            let [a, b, c] = &names[..] else { unreachable!() };
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le());
            }
            let (x, y): (Vec<&str>, Vec<&str>) = (a.split('.').collect(), b.split('.').collect());
            let differing = x.iter().zip(&y).map(|(p, q)| natural(p, q)).find(|o| o.is_ne());
            prop_assert_eq!(natural(a, b), differing.unwrap_or(x.len().cmp(&y.len())));
        }

        #[test]
        fn edits_are_counted_up_to_a_bound(a in "[abc]{0,9}", b in "[abc]{0,9}", most in 0usize..12) {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let want = plain(a, b);
            prop_assert_eq!(Rows::default().edits(a, b, most), (want <= most).then_some(want));
        }
    }

    #[test]
    fn the_nearest_name_is_the_first_of_those_with_the_fewest_edits() {
        let names: Vec<String> = (0..300).map(|i| format!("layers.{i}.w")).collect();
        let known = || names.iter().map(String::as_str);
        assert_eq!(near("layers.300.w", known()), Some("layers.30.w"));
        assert_eq!(near("layer.7.w", known()), Some("layers.7.w"));
        assert_eq!(near("layers.w.7", ["layers.7.w"]), Some("layers.7.w"));
        assert_eq!(near("embde", ["embed"]), Some("embed"));
        assert_eq!(near("w", known()), Some("layers.0.w"));
        assert_eq!(near("", known()), None);
        assert_eq!(near("x", known()), None);
        assert_eq!(near(&"x".repeat(5000), known()), None);
    }
}
