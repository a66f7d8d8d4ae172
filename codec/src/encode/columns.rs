//! Factors of columns that the caller gives for tensors of scheme `rate`.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use super::matrix::matrix_of;
use super::{Choices, EncodeOptions};
use crate::checkpoint::SourceTensor;
use crate::error::{Error, Result};
use crate::scheme::{Columns, Scheme, is_factor};

/// The factors of tensors, by index in the source.
#[derive(Default)]
pub struct Factors(HashMap<usize, Arc<[f32]>>);

/// The factors of a tensor's columns, for the rows that a task has.
#[derive(Clone)]
pub struct TaskColumns {
    factors: Arc<[f32]>,
    /// Rows and columns of a matrix.
    rows: usize,
    cols: usize,
    /// The matrix of each row, where rows are a sample.
    sampled: Option<Arc<[usize]>>,
}

impl Factors {
    /// The factors of [`EncodeOptions::columns`] as files have them, for the tensors that get them.
    ///
    /// # Errors
    /// Names that no tensor has, numbers that are no factors, or not one for each column.
    pub fn new(tensors: &[SourceTensor], options: &EncodeOptions, choices: &Choices) -> Result<Self> {
        let places: HashMap<&str, usize> = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        let mut all = HashMap::new();
        for (name, factors) in &options.columns {
            let Some(&i) = places.get(name.as_str()) else {
                let what = format!("factors for the columns of '{name}', which is no tensor of the source");
                return Err(coded!(BAD_STEPS, what).advice("name tensors as the source does"));
            };
            let (tensor, (scheme, _)) = (&tensors[i], choices.way(name));
            if !matches!(scheme, Scheme::Rate(_)) || !scheme.takes(tensor.dtype, &tensor.shape) {
                continue;
            }
            let matrix = matrix_of(&tensor.shape, choices.transpose.is_match(name)).map_err(|e| e.tensor(name))?;
            let (count, cols) = (matrix.count, matrix.cols);
            if factors.len() != count * cols {
                let what = format!("{} factors for {count} matrices of {cols} columns", factors.len());
                return Err(bad(name, what, "give a factor for each column of each matrix"));
            }
            let stored = factors.chunks(cols).map(normalized).collect::<Result<Vec<_>, usize>>();
            let stored = stored.map_err(|col| {
                let what = format!("a factor of column {col} that is not above 0, or by far too large or small");
                bad(name, what, "give finite numbers above 0 whose sizes differ less")
            })?;
            all.insert(i, stored.concat().into());
        }
        Ok(Self(all))
    }

    /// The factors for all rows of a tensor.
    pub fn of(&self, i: usize, rows: usize, cols: usize) -> Option<TaskColumns> {
        self.0.get(&i).map(|factors| TaskColumns { factors: factors.clone(), rows, cols, sampled: None })
    }

    /// The number of factors of a tensor.
    pub fn count(&self, i: usize) -> usize {
        self.0.get(&i).map_or(0, |factors| factors.len())
    }
}

impl TaskColumns {
    /// For a sample of the rows.
    pub fn sampled(self, rows: impl Iterator<Item = usize>) -> Self {
        let matrices = rows.map(|row| row / self.rows).collect();
        Self { sampled: Some(matrices), ..self }
    }

    /// The factors of each row.
    pub fn columns(&self) -> Columns<'_> {
        match &self.sampled {
            None => Columns::new(&self.factors, self.rows, self.cols, 0),
            Some(matrices) => Columns::of_sample(&self.factors, self.cols, matrices),
        }
    }

    /// All factors, which are stored with all rows: not with a sample.
    pub fn stored(&self) -> Option<Vec<f32>> {
        self.sampled.is_none().then(|| self.factors.to_vec())
    }
}

fn bad(name: &str, what: String, advice: &str) -> Error {
    coded!(BAD_STEPS, what).tensor(name).advice(advice)
}

/// The factors of a matrix divided by their geometric mean, as bf16.
///
/// # Errors
/// The first column whose factor is not finite and above 0, before or after that.
fn normalized(factors: &[f32]) -> std::result::Result<Vec<f32>, usize> {
    if let Some(col) = factors.iter().position(|&f| !is_factor(f)) {
        return Err(col);
    }
    let mean = factors.iter().map(|&f| f64::from(f).log2()).sum::<f64>() / factors.len() as f64;
    let stored: Vec<f32> = factors.iter().map(|&f| bf16::from_f64(f64::from(f) * (-mean).exp2()).to_f32()).collect();
    match stored.iter().position(|&f| !(is_factor(f) && f >= f32::MIN_POSITIVE)) {
        Some(col) => Err(col),
        None => Ok(stored),
    }
}
