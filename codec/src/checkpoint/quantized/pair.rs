//! Codes and their scales: matches the tensors, and elements with scales.

use std::collections::HashMap;

use crate::checkpoint::SourceTensor;
use crate::error::Error;
use crate::tensor::{Dtype, element_count};

/// The suffixes of names of FP8 codes and of their scales.
pub const BESIDE: [(&str, &str); 5] = [
    ("", "_scale_inv"),
    ("", "_scale"),
    (".weight", ".qscale_weight"),
    (".weight", ".scale_weight"),
    (".weight", ".scale"),
];
/// The suffixes of names of MXFP4 codes and of their scales.
pub const BLOCKS: &str = "_blocks";
pub const BLOCK_SCALES: &str = "_scales";
/// MXFP4 codes that share a scale, and their bytes.
pub const MX_GROUP: usize = 32;
pub const MX_BYTES: usize = 16;
/// Rows and columns of a block if they are not known otherwise.
const BLOCK: usize = 128;

/// Tensors, in a module with codes, that concern activations or the KV cache rather than weights.
const OF_MODULE: [&str; 7] = [
    "input_scale",
    "input_scale_inv",
    "input_scale_ub",
    "activation_scale",
    "output_scale",
    "input_zero_point",
    "output_zero_point",
];
const OF_CACHE: [&str; 4] = ["k_scale", "v_scale", "q_scale", "prob_scale"];

/// Codes, and their conversion to values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The name of the values.
    pub name: String,
    /// The shape of the values.
    pub shape: Vec<usize>,
    /// Index of the codes among the tensors.
    pub codes: usize,
    /// Index of the scales and the form of the codes; or the fault that leaves codes without scales.
    pub scales: std::result::Result<(usize, Form), Fault>,
}

/// The arrangement of codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 8-bit floats, times scales.
    Fp8(Grid),
    /// 4-bit floats, times powers of 2; in the values, outputs and inputs are exchanged.
    Mxfp4 { count: usize, outputs: usize, groups: usize },
}

/// Matrices, and the blocks of elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The number of matrices, and the rows and columns of each.
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    /// Rows and columns of a block that shares a scale.
    pub block: (usize, usize),
    /// Columns of a matrix's scales, and the number of all scales of a matrix: 0 if all matrices share them.
    pub scale_cols: usize,
    pub scales: usize,
}

impl Grid {
    /// The scales of a row, one for each block of columns.
    pub fn of_row<'a>(&self, scales: &'a [f32], matrix: usize, row: usize) -> &'a [f32] {
        let first = matrix * self.scales + row / self.block.0 * self.scale_cols;
        &scales[first..first + self.scale_cols]
    }
}

/// The reason why codes cannot be dequantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The scales, which would have this name, are missing.
    Missing(String),
    /// The scales of this name do not fit: their form, and the form of the codes.
    Misfit { scales: String, are: String, of: String },
    /// There are zero points.
    ZeroPoints,
}

impl Fault {
    /// The error for a caller that needs the values.
    pub fn error(&self, tensor: &str) -> Error {
        let e = match self {
            Fault::Missing(scales) => {
                coded!(NO_CODE_SCALES, "it is quantized, and its scales '{scales}' are not there")
                    .advice("complete the checkpoint, or download it again")
            }
            Fault::Misfit { scales, are, of } => {
                coded!(BAD_CODE_SCALES, "its scales '{scales}' are {are}, which does not fit {of}")
                    .advice("download the checkpoint again, or use the config.json that belongs to it")
            }
            Fault::ZeroPoints => coded!(BAD_CODE_SCALES, "its FP8 codes have zero points, which are not known of FP8")
                .advice("use the original checkpoint"),
        };
        e.tensor(tensor)
    }
}

/// Facts about a checkpoint from outside its tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Whether its configuration says that there are scales.
    pub scaled: bool,
    /// Rows and columns of blocks.
    pub block: Option<(usize, usize)>,
}

/// Whether it is an 8-bit float dtype that needs scales.
pub fn is_fp8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ)
}

/// The pairs among tensors, in the order of the tensors; empty if no tensor has scales and the configuration does not
/// say that any should.
pub fn find(tensors: &[SourceTensor], places: &HashMap<&str, usize>, known: Known) -> Vec<Pair> {
    let pairs: Vec<Pair> = tensors.iter().enumerate().filter_map(|(i, _)| pair(tensors, i, places, known)).collect();
    let scaled = known.scaled || pairs.iter().any(|pair| pair.scales.is_ok());
    // FP8 files without any scales are plain tensors.
    if scaled { pairs } else { Vec::new() }
}

fn pair(tensors: &[SourceTensor], codes: usize, places: &HashMap<&str, usize>, known: Known) -> Option<Pair> {
    let tensor = &tensors[codes];
    let name = tensor.name.as_str();
    if let Some(base) = name.strip_suffix(BLOCKS).filter(|_| tensor.dtype == Dtype::U8) {
        let scales = places.get(format!("{base}{BLOCK_SCALES}").as_str());
        let scales = match scales {
            // The name is used for something else.
            None if !known.scaled => return None,
            None => Err(missing(&format!("{base}{BLOCK_SCALES}"))),
            Some(&at) => mxfp4(tensor, &tensors[at]).map(|form| (at, form)),
        };
        let shape = match &scales {
            Ok((_, Form::Mxfp4 { count, outputs, groups })) => vec![*count, groups.saturating_mul(MX_GROUP), *outputs],
            _ => tensor.shape.clone(),
        };
        return Some(Pair { name: base.to_owned(), shape, codes, scales });
    }
    if !is_fp8(tensor.dtype) || tensor.shape.len() < 2 || tensor.shape.contains(&0) {
        return None;
    }
    let beside = BESIDE.iter().find_map(|(codes, scales)| {
        let base = name.strip_suffix(codes)?;
        places.get(format!("{base}{scales}").as_str()).copied()
    });
    let scales = match beside {
        Some(at) => fp8(tensor, &tensors[at], known.block).map(|form| (at, form)),
        None => Err(missing(&format!("{name}_scale_inv"))),
    };
    let zeros = places.get(format!("{name}_zero_point").as_str());
    let scales = match zeros {
        Some(_) => Err(Fault::ZeroPoints),
        None => scales,
    };
    Some(Pair { name: name.to_owned(), shape: tensor.shape.clone(), codes, scales })
}

fn missing(scales: &str) -> Fault {
    Fault::Missing(scales.to_owned())
}

fn misfit(codes: &SourceTensor, scales: &SourceTensor, block: Option<(usize, usize)>) -> Fault {
    let blocks = block.map_or_else(String::new, |(rows, cols)| format!(" in blocks of {rows} x {cols}"));
    let (are, of) = (format!("{} {:?}", scales.dtype, scales.shape), format!("{:?}{blocks}", codes.shape));
    Fault::Misfit { scales: scales.name.clone(), are, of }
}

fn fp8(codes: &SourceTensor, scales: &SourceTensor, block: Option<(usize, usize)>) -> std::result::Result<Form, Fault> {
    use Dtype::{BF16, F8_E8M0, F16, F32, F64, U8};
    let fault = || misfit(codes, scales, block);
    let exponents = matches!(scales.dtype, F8_E8M0 | U8);
    if !exponents && !matches!(scales.dtype, F32 | BF16 | F16 | F64) {
        return Err(fault());
    }
    let [lead @ .., rows, cols] = &codes.shape[..] else { return Err(fault()) };
    let (rows, cols) = (*rows, *cols);
    let count = element_count(lead).map_err(|_| fault())?;
    let per_tensor = Grid { count, rows, cols, block: (rows, cols), scale_cols: 1, scales: 0 };
    let rank = codes.shape.len();
    let grid = match &scales.shape[..] {
        [] => per_tensor,
        [1] if rank == 2 || count == 1 => per_tensor,
        // One scale per output.
        [n] if rank == 2 && *n == rows => Grid { block: (1, cols), ..per_tensor },
        // One scale per matrix.
        [n] if rank == 3 && *n == count => Grid { scales: 1, ..per_tensor },
        [n, outputs] if rank == 3 && (*n, *outputs) == (count, rows) => {
            Grid { block: (1, cols), scales: rows, ..per_tensor }
        }
        [n, 1] if rank == 3 && *n == count => Grid { scales: 1, ..per_tensor },
        // One scale per column, a row of scales if the matrices were transposed.
        [of @ .., n, 1] if rank == 3 && of == lead && *n == cols && rows != cols => {
            Grid { block: (rows, 1), scale_cols: cols, scales: cols, ..per_tensor }
        }
        [of @ .., high, wide] if of == lead => {
            let (high, wide) = (*high, *wide);
            let sizes = block_of(rows, cols, high, wide, block, exponents).ok_or_else(fault)?;
            Grid { block: sizes, scale_cols: wide, scales: high.saturating_mul(wide), ..per_tensor }
        }
        _ => return Err(fault()),
    };
    Ok(Form::Fp8(grid))
}

/// Rows and columns of the blocks that share each of `high` x `wide` scales.
fn block_of(
    rows: usize,
    cols: usize,
    high: usize,
    wide: usize,
    block: Option<(usize, usize)>,
    exponents: bool,
) -> Option<(usize, usize)> {
    if high == 0 || wide == 0 {
        return None;
    }
    let fits = |(r, c): (usize, usize)| rows.div_ceil(r) == high && cols.div_ceil(c) == wide;
    if let Some(block) = block.filter(|&block| fits(block)) {
        return Some(block);
    }
    // If the block size is known, another one is a fault, except for MXFP8, which some checkpoints contain as well.
    let even = (rows.is_multiple_of(high) && cols.is_multiple_of(wide)).then(|| (rows / high, cols / wide));
    match block {
        Some(_) => even.filter(|_| exponents),
        None => even.or_else(|| Some((BLOCK, BLOCK)).filter(|&block| fits(block))),
    }
}

fn mxfp4(codes: &SourceTensor, scales: &SourceTensor) -> std::result::Result<Form, Fault> {
    let fault = || misfit(codes, scales, None);
    let [count, outputs, groups, MX_BYTES] = codes.shape[..] else { return Err(fault()) };
    if scales.shape != codes.shape[..3] || !matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0) {
        return Err(fault());
    }
    Ok(Form::Mxfp4 { count, outputs, groups })
}

/// Whether a tensor concerns activations of a module that has codes, or the KV cache; `has_codes` says whether a name
/// is that of codes.
pub fn is_beside(tensor: &SourceTensor, has_codes: impl Fn(&str) -> bool) -> bool {
    if element_count(&tensor.shape).is_ok_and(|n| n <= 1) && ends_with_part(&tensor.name, &OF_CACHE) {
        return true;
    }
    let Some((base, leaf)) = tensor.name.rsplit_once('.') else { return false };
    if OF_MODULE.contains(&leaf) && (has_codes(&format!("{base}.weight")) || has_codes(base)) {
        return true;
    }
    // Stacks of experts.
    OF_MODULE
        .iter()
        .filter_map(|end| leaf.strip_suffix(end)?.strip_suffix('_'))
        .any(|stack| has_codes(&format!("{base}.{stack}")))
}

fn ends_with_part(name: &str, ends: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, leaf)| ends.contains(&leaf))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> SourceTensor {
        SourceTensor { name: name.into(), dtype, shape: shape.into(), alias_of: None, opaque: None }
    }

    fn grid(
        shape: &[usize],
        scales: &[usize],
        dtype: Dtype,
        block: Option<(usize, usize)>,
    ) -> Option<(usize, usize, usize, usize)> {
        let (codes, scales) = (tensor("w", Dtype::F8_E4M3, shape), tensor("w_scale", dtype, scales));
        match fp8(&codes, &scales, block) {
            Ok(Form::Fp8(g)) => Some((g.block.0, g.block.1, g.scale_cols, g.scales)),
            _ => None,
        }
    }

    #[test]
    fn scales_say_what_they_are_for() {
        let of = |shape: &[usize], scales: &[usize], block| grid(shape, scales, Dtype::F32, block);
        let b = Some((128, 128));
        assert_eq!(of(&[256, 384], &[2, 3], b), Some((128, 128, 3, 6)));
        // The last blocks are smaller, even if an even division were possible.
        assert_eq!(of(&[200, 300], &[2, 3], b), Some((128, 128, 3, 6)));
        assert_eq!(of(&[576, 300], &[5, 3], b), Some((128, 128, 3, 15)));
        assert_eq!(of(&[96, 64], &[1, 1], b), Some((128, 128, 1, 1)));
        assert_eq!(of(&[576, 300], &[5, 3], None), Some((128, 128, 3, 15)));
        assert_eq!(of(&[96, 64], &[], b), Some((96, 64, 1, 0)));
        assert_eq!(of(&[96, 64], &[1], None), Some((96, 64, 1, 0)));
        assert_eq!(of(&[96, 64], &[96], None), Some((1, 64, 1, 0)));
        assert_eq!(of(&[96, 64], &[96, 1], None), Some((1, 64, 1, 96)));
        assert_eq!(of(&[96, 64], &[1, 1], None), Some((96, 64, 1, 1)));
        assert_eq!(of(&[96, 64], &[2, 4], None), Some((48, 16, 4, 8)));
        assert_eq!(of(&[4, 96, 64], &[4], None), Some((96, 64, 1, 1)));
        assert_eq!(of(&[4, 96, 64], &[4, 96], None), Some((1, 64, 1, 96)));
        assert_eq!(of(&[4, 96, 64], &[4, 96, 1], None), Some((1, 64, 1, 96)));
        assert_eq!(of(&[4, 96, 64], &[4, 1, 64], None), Some((96, 1, 64, 64)));
        assert_eq!(of(&[4, 96, 64], &[4, 64, 1], None), Some((96, 1, 64, 64)));
        assert_eq!(of(&[4, 256, 300], &[4, 2, 3], b), Some((128, 128, 3, 6)));
        assert_eq!(grid(&[96, 64], &[96, 2], Dtype::U8, b), Some((1, 32, 2, 192)));
    }

    #[test]
    fn scales_of_another_shape_are_refused() {
        let b = Some((128, 128));
        for (shape, scales, block) in [
            (&[256, 256][..], &[3, 2][..], b),
            (&[256, 256], &[1, 1], b),
            (&[256, 256], &[2], b),
            (&[256, 256], &[4, 4], b),
            (&[256, 256], &[2, 2, 1], b),
            (&[4, 256, 256], &[2, 2], b),
            (&[4, 256, 256], &[3, 2, 2], None),
            (&[100, 100], &[3, 7], None),
            (&[100, 100], &[0, 1], None),
        ] {
            assert_eq!(grid(shape, scales, Dtype::F32, block), None, "{shape:?} {scales:?}");
        }
        assert_eq!(grid(&[256, 256], &[2, 2], Dtype::I32, b), None);
    }

    #[test]
    fn names_say_what_belongs_together() {
        let names = |tensors: &[SourceTensor], scaled| {
            let places = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
            let found = find(tensors, &places, Known { scaled, block: None });
            found.into_iter().map(|p| (p.name, p.scales.ok().map(|(at, _)| at))).collect::<Vec<_>>()
        };
        let f8 = |name: &str| tensor(name, Dtype::F8_E4M3, &[32, 32]);
        let scale = |name: &str| tensor(name, Dtype::F32, &[1, 1]);
        for (codes, scales) in [
            ("a.weight", "a.weight_scale_inv"),
            ("a.weight", "a.weight_scale"),
            ("a.weight", "a.scale_weight"),
            ("a.weight", "a.qscale_weight"),
            ("a.weight", "a.scale"),
            ("a.gate_up_proj", "a.gate_up_proj_scale"),
        ] {
            assert_eq!(names(&[scale(scales), f8(codes)], false), [(codes.to_owned(), Some(0))], "{codes} {scales}");
        }
        // No scales at all, and a configuration that does not expect any; then one tensor that lacks its own.
        assert_eq!(names(&[f8("a.weight")], false), []);
        assert_eq!(names(&[f8("a.weight")], true), [("a.weight".to_owned(), None)]);
        let two = [f8("a.weight"), f8("b.weight"), scale("b.weight_scale")];
        assert_eq!(names(&two, false), [("a.weight".to_owned(), None), ("b.weight".to_owned(), Some(2))]);
        let mx = [tensor("e.up_blocks", Dtype::U8, &[2, 64, 3, 16]), tensor("e.up_scales", Dtype::U8, &[2, 64, 3])];
        assert_eq!(names(&mx, false), [("e.up".to_owned(), Some(1))]);
        assert_eq!(names(&mx[..1], false), []);
        assert_eq!(names(&mx[..1], true), [("e.up".to_owned(), None)]);
    }
}
