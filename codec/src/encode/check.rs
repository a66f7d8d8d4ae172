//! Numbers that no tensor can be coded with: they are refused before any work.

use super::EncodeOptions;
use crate::coder::plane::{check_table_bits, check_tile_width, check_zstd_chunk};
use crate::coder::{Coder, zstd};
use crate::error::Result;

const BLOCK_ADVICE: &str = "leave block out, or use 16, 32, 64, 128 or such";

impl EncodeOptions {
    /// Refuses blocks of scales, widths of tiles, sizes of tables, levels and frames of `zstd` that no tensor can have.
    /// [`encode`](crate::encode) does it, too; whoever works before that should not have worked in vain.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): one of these numbers.
    ///
    /// ```
    /// use wcodec::EncodeOptions;
    /// assert!(EncodeOptions::default().check().is_ok());
    /// let error = EncodeOptions { tile: Some(100), ..EncodeOptions::default() }.check().unwrap_err();
    /// assert!(error.to_string().starts_with("tile width 100 is not a multiple of 64"));
    /// ```
    pub fn check(&self) -> Result<()> {
        let ways = self.rules.iter().map(|rule| (rule.scheme, rule.coder));
        for (scheme, coder) in [(self.scheme, self.coder)].into_iter().chain(ways) {
            scheme.check().map_err(|e| coded!(BAD_CODING_NUMBER, e.message()).advice(BLOCK_ADVICE))?;
            if coder == Coder::Zstd {
                zstd::check_level(self.zstd_level)?;
                self.zstd_chunk.map_or(Ok(()), check_zstd_chunk)?;
            }
            if coder.is_tiled() {
                self.tile.map_or(Ok(()), check_tile_width)?;
                self.table_bits.map_or(Ok(()), |bits| check_table_bits(coder, bits))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheme;
    use crate::encode::Rule;
    use crate::scheme::int8::Granularity;

    #[test]
    fn numbers_that_no_tensor_can_have_are_refused() {
        let of = |coder| EncodeOptions { coder, ..EncodeOptions::default() };
        let wrong = [
            (EncodeOptions { tile: Some(0), ..of(Coder::Huffman) }, "tile width 0"),
            (EncodeOptions { tile: Some(100), ..of(Coder::Rans) }, "tile width 100"),
            (EncodeOptions { tile: Some(1088), ..of(Coder::Rans) }, "tile width 1088"),
            (EncodeOptions { table_bits: Some(20), ..of(Coder::Huffman) }, "not 20 (leave table_bits out"),
            (EncodeOptions { table_bits: Some(8), ..of(Coder::Rans) }, "not 8 (leave table_bits out"),
            (EncodeOptions { zstd_level: 99, ..of(Coder::Zstd) }, "level 99 (use 1 to 19)"),
            (EncodeOptions { zstd_chunk: Some(0), ..of(Coder::Zstd) }, "(leave frame out)"),
            (
                EncodeOptions { scheme: Scheme::Int8(Granularity::Block(17)), ..of(Coder::Rans) },
                "not 17 (leave block out",
            ),
        ];
        for (options, why) in wrong {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            // A rule has the same.
            let rule = Rule { pattern: "*".to_owned(), scheme: options.scheme, coder: options.coder };
            let ruled = EncodeOptions { rules: vec![rule], scheme: Scheme::Raw, coder: Coder::Raw, ..options };
            assert_eq!(ruled.check().unwrap_err().to_string(), error);
        }
        for (bits, coder) in [(8, Coder::Huffman), (11, Coder::Rans), (12, Coder::Huffman)] {
            let options = EncodeOptions { tile: Some(64), table_bits: Some(bits), zstd_level: 99, ..of(coder) };
            assert!(options.check().is_ok());
        }
    }
}
