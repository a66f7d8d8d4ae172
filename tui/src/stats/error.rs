//! Decoded values against those of a reference checkpoint.

use half::{bf16, f16};
use wcodec::{Checkpoint, Dtype, Result, Source};

use super::control::Control;
use super::pieces::{Want, pieces};
use super::{ErrorStats, LayerStats};
use crate::model::FileModel;

/// Values of little-endian elements; none for dtypes that are not compared as numbers.
pub fn values<'a>(dtype: Dtype, bytes: &'a [u8]) -> Option<Box<dyn Iterator<Item = f64> + 'a>> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    Some(match dtype {
        Dtype::F16 => Box::new(halves().map(|h| f16::from_bits(h).to_f64())),
        Dtype::BF16 => Box::new(halves().map(|h| bf16::from_bits(h).to_f64())),
        Dtype::F32 => Box::new(bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)))),
        _ => return None,
    })
}

/// Sums over differences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Differences {
    count: u64,
    largest: f64,
    errors: f64,
    originals: f64,
}

impl Differences {
    /// Adds a decoded value and what it was.
    pub fn add(&mut self, decoded: f64, original: f64) {
        // Equal infinities, and values that are no numbers on both sides, do not differ.
        let same = decoded == original || (decoded.is_nan() && original.is_nan());
        let difference = if same { 0.0 } else { decoded - original };
        self.count += 1;
        self.largest = if difference.is_nan() { f64::NAN } else { self.largest.max(difference.abs()) };
        self.errors += difference * difference;
        self.originals += original * original;
    }

    /// The figures.
    pub fn stats(&self) -> ErrorStats {
        let snr_db = if self.errors == 0.0 { f64::INFINITY } else { 10.0 * (self.originals / self.errors).log10() };
        let relative = if self.errors == 0.0 { 0.0 } else { (self.errors / self.originals).sqrt() };
        let rms = (self.errors / self.count.max(1) as f64).sqrt();
        ErrorStats { max: self.largest, rms, snr_db, relative, fits: None }
    }
}

/// Compares a tensor with the reference's of the same name, or of the name of a tensor that is tied to it; the figures or why there
/// are none go into `stats`.
///
/// The reference's tensor is held as a whole, the decoded one piece by piece.
///
/// # Errors
/// The tensor is damaged, the reference cannot be read, or `control` says to stop.
pub fn compare(
    file: &FileModel,
    tensor: usize,
    reference: &Checkpoint,
    control: &mut Control<'_>,
    stats: &mut LayerStats,
) -> Result<()> {
    let info = file.info(tensor)?;
    let place = |name: &str| reference.tensors().iter().position(|t| t.name == name);
    let tied = || file.aliases.iter().filter(|(_, t)| *t == info.name).find_map(|(alias, _)| place(alias));
    let found = place(&info.name).or_else(tied);
    let source = found.map(|i| &reference.tensors()[i]);
    let why = match source {
        None => Some("the reference has no tensor of this name".to_owned()),
        Some(t) if t.shape != info.shape => Some(format!("its shape in the reference is {:?}", t.shape)),
        Some(t) if !t.dtype.is_quantizable() || !info.dtype.is_quantizable() => {
            Some(format!("{} there and {} here are not both F32, F16 or BF16", t.dtype, info.dtype))
        }
        Some(_) => None,
    };
    let (Some(i), Some(source), None) = (found, source, &why) else {
        stats.uncompared = why;
        return control.advance(info.elements);
    };
    let original = reference.read(i)?;
    let (size, mut sums) = (source.dtype.size(), Differences::default());
    pieces(file.container()?, info, Want::Values, control, &mut |first, bytes| {
        let begin = (first as usize).saturating_mul(size);
        let theirs = original.get(begin..).unwrap_or_default();
        if let (Some(ours), Some(theirs)) = (values(info.dtype, bytes), values(source.dtype, theirs)) {
            ours.zip(theirs).for_each(|(decoded, original)| sums.add(decoded, original));
        }
        Ok(())
    })?;
    let found = sums.stats();
    // A reference of another dtype is not the source.
    let stated = info.error.filter(|_| source.dtype == info.dtype);
    stats.error = Some(ErrorStats { fits: stated.map(|stated| wcodec::error_fits(found.relative, stated)), ..found });
    Ok(())
}
