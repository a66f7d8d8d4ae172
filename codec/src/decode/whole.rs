//! Decodes whole tensors from beginning to end, without holding them.

use half::{bf16, f16};

use super::container::Container;
use super::joined::OpenJoined;
use super::options::DecodeOptions;
use super::stream::Sink;
use super::tensor::{OpenPlane, no_symbols};
use crate::error::Result;
use crate::scheme::int8::{Scales, Suspects, Weight};
use crate::stored::{ScaleValues, StoredTensor};
use crate::tensor::{AlignedBytes, Dtype};
use crate::trust;

/// Symbols that are converted to values at once.
const SLICE: usize = 1 << 20;

/// Receives the bytes of a tensor in order.
pub type Bytes<'a> = dyn FnMut(&[u8]) -> Result<()> + Send + 'a;

impl Container {
    /// Decodes a tensor, compares all its hashes, and checks that all values that scheme `int8` gives are finite.
    /// Memory is bounded by the stored bytes and some tens of MB, whatever they decode to.
    ///
    /// # Errors
    /// There is no such tensor, or it is damaged.
    ///
    /// ```
    /// # fn main() -> wcodec::Result<()> {
    /// # use wcodec::{Container, DecodeOptions, Dtype, EncodeOptions, MemorySource, encode_to_vec};
    /// let mut source = MemorySource::new();
    /// source.push("w".into(), Dtype::U8, vec![4], vec![1, 2, 3, 4].into())?;
    /// let mut bytes = encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(()))?.0;
    /// Container::from_bytes(bytes.clone())?.check("w", &DecodeOptions::default())?;
    /// bytes[64] ^= 1;
    /// assert!(Container::from_bytes(bytes)?.check("w", &DecodeOptions::default()).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self, name: &str, options: &DecodeOptions) -> Result<()> {
        let options = DecodeOptions { verify: true, ..options.clone() };
        self.pass(name, &options, |pass| pass.check(&options))
    }

    /// Passes the bytes that [`read`](Self::read) returns to `sink`, in order. For a matrix that is stored transposed
    /// all symbols are held meanwhile; for others nothing that grows with the tensor.
    pub(crate) fn read_in_order(&self, name: &str, options: &DecodeOptions, sink: &mut Bytes<'_>) -> Result<()> {
        self.pass(name, options, |pass| pass.bytes(options, sink))
    }

    /// Opens a tensor for a pass over it.
    pub(crate) fn pass<R: Send>(
        &self,
        name: &str,
        options: &DecodeOptions,
        work: impl FnOnce(&Pass<'_>) -> Result<R> + Send,
    ) -> Result<R> {
        self.with_tensor(name, options, |tensor| {
            let opened = if tensor.is_joined() {
                Elements::Joined(self.open_joined(tensor, options)?)
            } else {
                Elements::Plane(self.open_plane(tensor.plane(), options)?)
            };
            // Scales are read in any case, because those that nothing is multiplied by may be damaged, too.
            let scales = tensor.scales.as_ref().map(|s| self.read_scales(s, options)).transpose()?;
            work(&Pass { container: self, tensor, opened, scales: scales.unwrap_or_default() })
        })
    }
}

/// A tensor whose segments have been read, ready for a pass over it.
pub(crate) struct Pass<'a> {
    container: &'a Container,
    tensor: &'a StoredTensor,
    opened: Elements<'a>,
    scales: ScaleValues,
}

/// The source of a tensor's elements, or of the symbols that they are computed from.
enum Elements<'a> {
    /// A single plane.
    Plane(OpenPlane<'a>),
    /// Several planes, joined.
    Joined(OpenJoined<'a>),
}

impl Pass<'_> {
    /// The tensor.
    pub fn tensor(&self) -> &StoredTensor {
        self.tensor
    }

    /// The scales that symbols are multiplied by; `None` if the elements themselves are stored.
    pub fn scales(&self) -> Option<Scales<'_>> {
        let stored = self.tensor.symbol_scales()?;
        Some(stored.scales(&self.scales))
    }

    /// The scales with which a symbol might become a non-finite value.
    ///
    /// # Errors
    /// A factor of a column is not finite and above 0.
    pub fn suspects<'a, T: Weight>(&self, scales: &'a Scales<'_>) -> Result<Suspects<'a>> {
        let begin = self.tensor.scales.as_ref().map_or(0, |s| s.segment.offset);
        scales.suspects::<T>().map_err(|e| e.offset(begin))
    }

    /// Passes all symbols, if the scheme has any, to `sink`, in the order of the matrices.
    ///
    /// # Errors
    /// There are none, or they are damaged.
    pub fn symbols(&self, options: &DecodeOptions, sink: &mut Sink<'_>) -> Result<()> {
        match &self.opened {
            Elements::Plane(opened) => opened.stream(&opened.plane()?, options, sink),
            Elements::Joined(_) => Err(no_symbols(self.tensor)),
        }
    }

    /// As [`Container::check`].
    pub fn check(&self, options: &DecodeOptions) -> Result<()> {
        match (self.scales(), self.tensor.dtype) {
            (None, _) => match &self.opened {
                Elements::Plane(_) => self.symbols(options, &mut |_, _| Ok(())),
                Elements::Joined(joined) => joined.check(options),
            },
            (Some(scales), Dtype::F16) => self.check_as::<f16>(&scales, options),
            (Some(scales), Dtype::BF16) => self.check_as::<bf16>(&scales, options),
            (Some(scales), _) => self.check_as::<f32>(&scales, options),
        }
    }

    fn check_as<T: Weight>(&self, scales: &Scales<'_>, options: &DecodeOptions) -> Result<()> {
        let suspects = self.suspects::<T>(scales)?;
        self.symbols(options, &mut |begin, symbols| suspects.check(begin, symbols))
    }

    /// Passes the tensor's bytes to `sink`, in its own order.
    pub fn bytes(&self, options: &DecodeOptions, sink: &mut Bytes<'_>) -> Result<()> {
        match (self.scales(), self.tensor.dtype) {
            (None, _) => match &self.opened {
                Elements::Plane(_) => self.symbols(options, &mut |_, symbols| sink(bytemuck::cast_slice(symbols))),
                Elements::Joined(joined) => joined.in_order(options, sink),
            },
            (Some(scales), Dtype::F16) => self.values::<f16>(&scales, options, sink),
            (Some(scales), Dtype::BF16) => self.values::<bf16>(&scales, options, sink),
            (Some(scales), _) => self.values::<f32>(&scales, options, sink),
        }
    }

    fn values<T: Weight>(&self, scales: &Scales<'_>, options: &DecodeOptions, sink: &mut Bytes<'_>) -> Result<()> {
        let (size, (_, rows, cols)) = (size_of::<T>(), self.tensor.plane().form.matrix);
        if self.tensor.transposed() {
            self.container.check_decoded(self.tensor, self.tensor.plane().elements, trust::AS_TRUSTED)?;
            let Elements::Plane(opened) = &self.opened else {
                return Err(no_symbols(self.tensor));
            };
            let symbols = opened.symbols(options)?;
            let step = (SLICE / rows).clamp(1, cols);
            let mut buffer = AlignedBytes::zeroed(step * rows * size)?;
            return (0..cols).step_by(step).try_for_each(|col| {
                let out = &mut buffer[..step.min(cols - col) * rows * size];
                scales.apply_to_columns::<T>(&symbols, col, bytemuck::cast_slice_mut(out));
                sink(out)
            });
        }
        let mut buffer = AlignedBytes::zeroed(SLICE.min(self.tensor.plane().elements) * size)?;
        self.symbols(options, &mut |begin, symbols| {
            symbols.chunks(SLICE).enumerate().try_for_each(|(i, symbols)| {
                let out = &mut buffer[..symbols.len() * size];
                scales.apply::<T>(begin + i * SLICE, symbols, bytemuck::cast_slice_mut(out));
                sink(out)
            })
        })
    }
}
