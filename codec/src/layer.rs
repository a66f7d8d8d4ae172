//! Single layers: one int8 matrix, without file, name or scale, for programs that do their own bookkeeping.

use crate::checkpoint::MemorySource;
use crate::decode::{Container, DecodeOptions};
use crate::encode::{EncodeOptions, encode_to_vec};
use crate::error::Result;
use crate::scheme::Scheme;
use crate::tensor::Dtype;
use crate::trust::OpenOptions;

/// Name of the tensor in a container of one layer.
const NAME: &str = "layer";

/// Encodes a row-major int8 matrix as a container with one `I8` tensor of scheme `raw`; the scheme and patterns of
/// `options` are ignored.
///
/// # Errors
/// `symbols` does not have `rows * cols` elements, or the options contradict each other.
///
/// ```
/// use wcodec::{layer, DecodeOptions, EncodeOptions};
/// let symbols: Vec<i8> = (0..64 * 512).map(|i| ((i * i) % 31) as i8 - 15).collect();
/// let bytes = layer::encode(&symbols, 64, 512, &EncodeOptions::default()).unwrap();
/// assert!(bytes.len() < symbols.len());
/// assert_eq!(layer::decode(&bytes, &DecodeOptions::default()).unwrap(), (64, 512, symbols));
/// ```
pub fn encode(symbols: &[i8], rows: usize, cols: usize, options: &EncodeOptions) -> Result<Vec<u8>> {
    let options = EncodeOptions {
        scheme: Scheme::Raw,
        include: Vec::new(),
        exclude: Vec::new(),
        skip: Vec::new(),
        transpose: Vec::new(),
        ..options.clone()
    };
    let mut source = MemorySource::new();
    source.push(NAME.to_owned(), Dtype::I8, vec![rows, cols], bytemuck::cast_slice(symbols).into())?;
    Ok(encode_to_vec(&source, &options, &mut |_| Ok(()))?.0)
}

/// Rows, columns and symbols of bytes made by [`encode`]; the bytes are not trusted.
///
/// # Errors
/// The bytes are damaged, a container of something else, or would take more memory than a container that is not
/// [trusted](OpenOptions::trusted) may ask for.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<(usize, usize, Vec<i8>)> {
    decode_with(bytes, &OpenOptions::default(), options)
}

/// As [`decode`], for bytes that may be trusted.
///
/// # Errors
/// Those of [`decode`].
pub fn decode_with(bytes: &[u8], open: &OpenOptions, options: &DecodeOptions) -> Result<(usize, usize, Vec<i8>)> {
    let container = Container::from_bytes_with(bytes.to_vec(), open)?;
    let (names, info) = (container.names(), container.info(NAME));
    match (&names[..], info) {
        ([_], Ok(info)) if info.dtype == Dtype::I8 && info.shape.len() == 2 => {
            Ok((info.shape[0], info.shape[1], container.symbols(NAME, options)?))
        }
        _ => Err(coded!(NOT_A_LAYER, "this container does not hold a single layer").advice("open it as a container")),
    }
}
