//! The steps of scheme `rate`: searches the step that meets a target of bits per weight.
//!
//! Whatever the weights, bits fall by about one when the step doubles. The bits at a step are measured by encoding
//! strips of the tensors completely, so that the count equals the stored size. Strips are spread evenly over all
//! tensors of a target.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;

use super::columns::{Factors, TaskColumns};
use super::matrix::matrix_of;
use super::naming::Naming;
use super::tensor::{Counted, RateTask, TensorTask, Workers};
use super::{Choices, EncodeOptions};
use crate::cancel::Cancel;
use crate::checkpoint::{Source, SourceBytes, SourceTensor};
use crate::coder::TILE_ROWS;
use crate::coder::table::Table;
use crate::error::Result;
use crate::pool::Pool;
use crate::scheme::Scheme;
use crate::scheme::lossless::columns;
use crate::scheme::rate::Rate;
use crate::tensor::{AlignedBytes, Dtype, TensorView};

/// Weights that are encoded to count bits: enough for a precision of a few thousandths of a bit.
const SAMPLE: usize = 1 << 20;
/// The tolerance, relative to the target, and the most iterations.
const CLOSE: f64 = 2e-4;
const TRIES: usize = 12;
/// Weights of samples whose symbols are in memory at once.
const AT_ONCE: usize = 1 << 26;
/// Iterations after which a target that was not yet bracketed is assumed to lie on a flat part of the curve.
const FLAT: usize = 3;
/// Small tensors: the mean number of weights below which tables matter; the most weights, in all, that are then encoded
/// completely to count bits; and the number of corrections.
const SMALL: usize = 1 << 20;
const MOST_COUNTED: usize = 1 << 28;
const CORRECTIONS: usize = 2;
/// log2 of the largest and of the smallest useful step, relative to the root mean square.
const COARSEST: f64 = 6.0;
const FINEST: f64 = -9.0;

/// The inputs of the search.
pub struct Search<'a> {
    pub source: &'a dyn Source,
    pub options: &'a EncodeOptions,
    pub choices: &'a Choices,
    pub columns: &'a Factors,
    pub pool: &'a Pool,
    pub reading: &'a Pool,
    pub cancel: &'a Cancel,
    pub naming: Naming<'a>,
}

/// Tensors that share one target.
struct SharedTarget {
    rate: Rate,
    /// Their indices in the source.
    tensors: Vec<usize>,
}

/// Tables that tensors share, and the indices of those already counted.
#[derive(Clone, Default)]
struct Tables {
    shared: Vec<Table>,
    used: Vec<usize>,
}

/// A sample whose bytes are to be counted: they stand for `share` times as many rows, in `each` tensors.
struct Counting<'a> {
    task: TensorTask<'a>,
    bytes: SourceBytes<'a>,
    share: f64,
    each: f64,
}

impl Counting<'_> {
    fn weights(&self) -> usize {
        self.task.tensor.shape.iter().product()
    }
}

/// The totals that samples stand for.
#[derive(Default)]
struct Sum {
    bytes: f64,
    weights: f64,
}

impl Sum {
    /// Bits per weight.
    fn bits(&self) -> f64 {
        if self.weights == 0.0 { 0.0 } else { 8.0 * self.bytes / self.weights }
    }
}

/// Some strips of a tensor.
struct Sample {
    tensor: SourceTensor,
    bytes: AlignedBytes,
    /// Rows of the tensor for each row of the sample.
    share: f64,
    /// Width of the tensor's tiles.
    tile: usize,
    /// The tensor's index in the source.
    place: usize,
    /// The factors of its columns, if they have some.
    columns: Option<TaskColumns>,
}

impl Search<'_> {
    /// The step, relative to the root mean square of a row, for every tensor of scheme `rate` among `kept`, by index in
    /// the source.
    ///
    /// # Errors
    /// Names in [`EncodeOptions::steps`] that no tensor has, a target that cannot be reached, a tensor that cannot be
    /// read; or `tell`'s.
    pub fn factors(&self, kept: &[usize], tell: &mut dyn FnMut(usize) -> Result<()>) -> Result<HashMap<usize, f32>> {
        let tensors = self.source.tensors();
        let mut groups: Vec<SharedTarget> = Vec::new();
        for &i in kept {
            let (scheme, _) = self.choices.way(&tensors[i].name);
            let Scheme::Rate(rate) = scheme else { continue };
            if tensors[i].alias_of.is_some() || !scheme.takes(tensors[i].dtype, &tensors[i].shape) {
                continue;
            }
            let alike = if self.options.bits_per_tensor { None } else { groups.iter_mut().find(|g| g.rate == rate) };
            match alike {
                Some(group) => group.tensors.push(i),
                None => groups.push(SharedTarget { rate, tensors: vec![i] }),
            }
        }
        self.check_steps()?;
        if groups.is_empty() {
            return Ok(HashMap::new());
        }
        let relative = self.relative_steps();
        let of = |i: usize| relative.get(tensors[i].name.as_str()).copied().unwrap_or(1.0);
        let (mut factors, mut tables) = (HashMap::new(), Tables::default());
        for group in groups {
            let common = match self.options.step {
                Some(step) => step,
                None => self.find(&group, &of, &mut tables, tell)?,
            };
            factors.extend(group.tensors.iter().map(|&i| (i, common * of(i))));
        }
        Ok(factors)
    }

    fn check_steps(&self) -> Result<()> {
        let wrong = |step: f32| !(step.is_finite() && step > 0.0);
        if let Some(step) = self.options.step.filter(|&s| wrong(s)) {
            return Err(coded!(BAD_STEPS, "a step of {step}").advice("give a number above 0, or bits"));
        }
        let names: HashSet<&str> = self.source.tensors().iter().map(|t| t.name.as_str()).collect();
        for (name, &step) in &self.options.steps {
            if wrong(step) {
                return Err(coded!(BAD_STEPS, "a step of {step} for '{name}'").advice("give numbers above 0"));
            }
            if !names.contains(name.as_str()) {
                let what = format!("a step for '{name}', which is no tensor of the source");
                return Err(coded!(BAD_STEPS, what).advice("name tensors as the source does"));
            }
        }
        Ok(())
    }

    /// Steps of tensors relative to those of others: those in the options, and for other tensors those that follow from
    /// the model's configuration.
    fn relative_steps(&self) -> BTreeMap<&str, f32> {
        let shared = self.source.model().and_then(|model| sharing(model.get("config")?));
        let roles = self.source.tensors().iter().filter_map(|t| {
            let of_keys = [".k_proj.", ".v_proj."].iter().any(|role| t.name.contains(role));
            Some((t.name.as_str(), shared.filter(|_| of_keys)?))
        });
        let mut steps: BTreeMap<&str, f32> = roles.collect();
        steps.extend(self.options.steps.iter().map(|(name, &step)| (name.as_str(), step)));
        steps
    }

    /// The common step at which the tensors of `group` take the requested bits.
    fn find(
        &self,
        group: &SharedTarget,
        of: &dyn Fn(usize) -> f32,
        tables: &mut Tables,
        tell: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<f32> {
        let samples = self.samples(group, SAMPLE, tell)?;
        let target = group.rate.bits.get();
        let before = tables.clone();
        let mut count = |samples: &[Sample], step: f64| {
            *tables = before.clone();
            self.bits(samples, group, step.exp2() as f32, of, tables)
        };
        let mut bits = |step: f64| count(&samples, step);
        // The step for a Gaussian, including about the overhead of tiles.
        let mut step = 2.1 - target - f64::from(u8::from(group.rate.trellis));
        // The bracket: a step with too many bits, and one with too few, each as log2 of the step and bits.
        let mut too_many = None::<(f64, f64)>;
        let mut too_few = None::<(f64, f64)>;
        for tries in 0..TRIES {
            self.cancel.check()?;
            let reached = bits(step)?;
            if (reached - target).abs() <= CLOSE * target {
                break;
            }
            let side = if reached > target { &mut too_many } else { &mut too_few };
            *side = Some((step, reached));
            step = match (too_many, too_few) {
                // Interpolates linearly between both.
                (Some((a, too_many)), Some((b, too_few))) => {
                    a + (b - a) * ((too_many - target) / (too_many - too_few)).clamp(0.05, 0.95)
                }
                // Goes to the end of the range on a flat part of the curve.
                _ if tries >= FLAT && reached > target => COARSEST,
                _ if tries >= FLAT => FINEST,
                _ => (step + 1.2 * (reached - target)).clamp(FINEST, COARSEST),
            };
            // 8-bit symbols allow no finer steps: the tensors then take fewer bits than requested.
            if too_many.is_some_and(|(s, _)| s >= COARSEST) || too_few.is_some_and(|(s, _)| s <= FINEST) {
                break;
            }
        }
        if let Some((_, least)) = too_many.filter(|(s, _)| *s >= COARSEST) {
            let most = bits(FINEST)?;
            let what = format!("{target} bits per weight cannot be reached: {least:.3} to {most:.3} can");
            return Err(coded!(BITS_UNREACHABLE, what).advice("ask for more bits, or exclude small tensors"));
        }
        if self.is_of_small_tensors(group) {
            // The tables that they share depend on all of their symbols.
            let all = self.samples(group, usize::MAX, tell)?;
            for _ in 0..CORRECTIONS {
                let reached = count(&all, step)?;
                if (reached - target).abs() <= CLOSE * target {
                    break;
                }
                step = (step + reached - target).clamp(FINEST, COARSEST);
            }
        }
        Ok(step.exp2() as f32)
    }

    /// Whether tensors are so small that their tables matter, and in all not too large to be encoded completely for
    /// counting.
    fn is_of_small_tensors(&self, group: &SharedTarget) -> bool {
        let tensors = self.source.tensors();
        let total: usize = group.tensors.iter().map(|&i| tensors[i].shape.iter().product::<usize>()).sum();
        (SAMPLE..MOST_COUNTED).contains(&total) && total / group.tensors.len() < SMALL
    }

    /// Bits per weight of the tensors of `group`, estimated from `samples` of them, everything counted.
    fn bits(
        &self,
        samples: &[Sample],
        group: &SharedTarget,
        step: f32,
        of: &dyn Fn(usize) -> f32,
        tables: &mut Tables,
    ) -> Result<f64> {
        // Factors of columns are as many as they are, however many rows are sampled.
        let factors: usize = group.tensors.iter().map(|&i| self.columns.count(i)).sum();
        let mut sum = Sum { bytes: (factors * Dtype::BF16.size()) as f64, weights: 0.0 };
        // Small tensors may have no sample, but they have tables.
        let each = group.tensors.len() as f64 / samples.len().max(1) as f64;
        let tasks = samples.iter().map(|sample| {
            let way = self.choices.way(&sample.tensor.name);
            let cols = sample.tensor.shape.last().copied().unwrap_or_default();
            let plane = self.options.plane(way, cols, self.choices.weights);
            let task = TensorTask {
                tensor: &sample.tensor,
                scheme: Scheme::Rate(group.rate),
                rate: RateTask {
                    factor: step * of(sample.place),
                    columns: sample.columns.clone(),
                    levels: None,
                    tile: sample.tile,
                },
                transposed: false,
                plane,
            };
            Ok(Counting { task, bytes: SourceBytes::Borrowed(&sample.bytes), share: sample.share, each })
        });
        self.count(tasks, tables, &mut sum)?;
        Ok(sum.bits())
    }

    /// Adds the bytes that samples stand for, a number of them at once.
    fn count<'a>(
        &self,
        samples: impl Iterator<Item = Result<Counting<'a>>>,
        tables: &mut Tables,
        sum: &mut Sum,
    ) -> Result<()> {
        let (mut batch, mut weights) = (Vec::new(), 0);
        for sample in samples {
            let sample = sample?;
            weights += sample.weights();
            batch.push(sample);
            if weights >= AT_ONCE {
                self.count_batch(std::mem::take(&mut batch), tables, sum)?;
                weights = 0;
            }
        }
        self.count_batch(batch, tables, sum)
    }

    fn count_batch(&self, batch: Vec<Counting<'_>>, tables: &mut Tables, sum: &mut Sum) -> Result<()> {
        let workers = Workers { pool: self.pool, cancel: self.cancel };
        let shares: Vec<_> = batch.iter().map(|sample| (sample.weights(), sample.share, sample.each)).collect();
        let mut prepared = self.pool.side_by_side(batch, self.cancel, |Counting { task, bytes, share, .. }| {
            let tensor = task.tensor;
            let prepare = || {
                let mut prepared = task.prepare(bytes, workers)?;
                // The table is made for the whole tensor: for the sampled strips alone, a new one would seldom pay.
                prepared.make_tables(share, workers)?;
                Ok((tensor, prepared))
            };
            prepare().map_err(|e| self.naming.of(&tensor.name, e))
        })?;
        prepared.iter_mut().for_each(|(_, prepared)| prepared.choose(&mut tables.shared));
        let encoded = self.pool.side_by_side(prepared, self.cancel, |(tensor, prepared)| {
            prepared.encode(workers, &AtomicUsize::new(0)).map_err(|e| self.naming.of(&tensor.name, e))
        })?;
        for (encoded, (weights, share, each)) in encoded.iter().zip(shares) {
            let Counted { of_rows, of_columns, of_tables, of_fit } = encoded.counted(&mut tables.used);
            sum.bytes +=
                of_rows as f64 * share + of_columns as f64 + of_tables as f64 * each + of_fit * (share - each).max(0.0);
            sum.weights += weights as f64 * share;
        }
        Ok(())
    }

    /// Bits per weight of the tensors of scheme `rate`, computed from samples of their rows: `shares` has the ratio of
    /// all rows to sampled rows by name. Levels are the source's, if it has any. 0 without such tensors.
    pub fn bits_of_samples(&self, shares: &BTreeMap<String, f64>) -> Result<f64> {
        let tensors = self.source.tensors();
        let relative = self.relative_steps();
        let (mut tables, mut sum) = (Tables::default(), Sum::default());
        let sampled = tensors.iter().enumerate().filter(|(_, tensor)| {
            let (scheme, _) = self.choices.way(&tensor.name);
            !self.choices.skips(&tensor.name)
                && matches!(scheme, Scheme::Rate(_))
                && tensor.alias_of.is_none()
                && scheme.takes(tensor.dtype, &tensor.shape)
        });
        let tasks = sampled.map(|(i, tensor)| {
            self.cancel.check()?;
            let (scheme, coder) = self.choices.way(&tensor.name);
            let name = |e| self.naming.of(&tensor.name, e);
            let bytes = self.source.read_with(i, self.reading, self.cancel).map_err(name)?;
            TensorView::new(tensor.dtype, &tensor.shape, &bytes).map_err(name)?;
            let levels = self.source.levels_with(i, self.reading, self.cancel).map_err(name)?;
            let share = shares.get(&tensor.name).copied().unwrap_or(1.0);
            let transposed = self.choices.transpose.is_match(&tensor.name);
            let matrix = matrix_of(&tensor.shape, transposed).map_err(name)?;
            let rows = (matrix.count * matrix.rows) as f64 * share;
            let size = (rows.round() as usize, matrix.cols);
            let plane = self.options.plane((scheme, coder), matrix.cols, self.choices.weights);
            let tile = self.options.rate_tile(coder, size, self.choices.weights, levels.as_ref());
            let step = self.options.step.unwrap_or(1.0) * relative.get(tensor.name.as_str()).copied().unwrap_or(1.0);
            let columns = self.columns.of(i, matrix.rows, matrix.cols);
            let rate = RateTask { factor: step, columns, levels, tile };
            let task = TensorTask { tensor, scheme, rate, transposed, plane };
            Ok(Counting { task, bytes, share, each: 1.0 })
        });
        self.count(tasks, &mut tables, &mut sum)?;
        Ok(sum.bits())
    }

    /// Strips of the tensors of `group`, evenly spread, with at most about `weights` weights.
    fn samples(
        &self,
        group: &SharedTarget,
        weights: usize,
        tell: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Sample>> {
        let tensors = self.source.tensors();
        let elements = |i: usize| tensors[i].shape.iter().product::<usize>();
        let total: usize = group.tensors.iter().map(|&i| elements(i)).sum();
        // A strip is taken where the running count of weights passes a multiple of this.
        let every = (total / weights).max(1) as f64;
        let mut samples = Vec::new();
        let mut debt = 0.5f64;
        for &i in &group.tensors {
            self.cancel.check()?;
            tell(i)?;
            let tensor = &tensors[i];
            let transposed = self.choices.transpose.is_match(&tensor.name);
            let (_, coder) = self.choices.way(&tensor.name);
            let name = |e| self.naming.of(&tensor.name, e);
            let matrix = matrix_of(&tensor.shape, transposed).map_err(name)?;
            let (rows, cols) = (matrix.count * matrix.rows, matrix.cols);
            let strips = rows.div_ceil(TILE_ROWS);
            debt += strips as f64 / every;
            let wanted = (debt as usize).min(strips);
            if wanted == 0 {
                continue;
            }
            debt -= wanted as f64;
            let bytes = self.source.read_with(i, self.reading, self.cancel).map_err(name)?;
            TensorView::new(tensor.dtype, &tensor.shape, &bytes).map_err(name)?;
            // The middles of equal parts.
            let strip = |n: usize| (2 * n + 1) * strips / (2 * wanted);
            let ranges: Vec<_> =
                (0..wanted).map(|n| strip(n) * TILE_ROWS..((strip(n) + 1) * TILE_ROWS).min(rows)).collect();
            let size = tensor.dtype.size();
            let count: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            let mut sample = AlignedBytes::zeroed(count * cols * size)?;
            let factors = self.columns.of(i, matrix.rows, cols);
            let factors = factors.map(|factors| factors.sampled(ranges.iter().cloned().flatten()));
            let mut rest = &mut sample[..];
            for rows in ranges {
                let (to, others) = rest.split_at_mut(rows.len() * cols * size);
                if transposed {
                    let elements = &bytes[..];
                    self.pool.run(|| columns(elements, size, elements.len() / (size * cols), rows.start, to))?;
                } else {
                    to.copy_from_slice(&bytes[rows.start * cols * size..rows.end * cols * size]);
                }
                rest = others;
            }
            samples.push(Sample {
                tensor: SourceTensor { shape: vec![count, cols], ..tensor.clone() },
                bytes: sample,
                share: rows as f64 / count as f64,
                tile: self.options.rate_tile(coder, (rows, cols), self.choices.weights, None),
                place: i,
                columns: factors,
            });
        }
        // Sampled strips also stand for those that were left out.
        let counted: f64 = samples.iter().map(|s| s.tensor.shape.iter().product::<usize>() as f64 * s.share).sum();
        samples.iter_mut().for_each(|s| s.share *= total as f64 / counted);
        Ok(samples)
    }
}

/// The relative step of key and value projections in grouped-query attention. An error in a key or value head counts
/// once for each query head that shares it, so the step is divided by the square root of their number, which equalizes
/// the contribution of all rows to the error.
fn sharing(config: &serde_json::Value) -> Option<f32> {
    let count =
        |key: &str| [Some(config), config.get("text_config")].into_iter().flatten().find_map(|c| c.get(key)?.as_u64());
    let (queries, keys) = (count("num_attention_heads")?, count("num_key_value_heads")?);
    (keys > 0 && queries > keys).then(|| (keys as f32 / queries as f32).sqrt())
}
