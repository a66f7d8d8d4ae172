//! Filter `trellis`: from the symbols of a path to its levels, and back. `FORMAT.md` section 4.
//!
//! Four states, of which a bit says which of two quantizers the next level is of, each with every other level. That bit is the parity of the path's bits
//! at every other column before, so that all of a row's are had at once by shifts.

/// Turns levels, which are a path, into their symbols, in place: a row of a tile from its left edge. Of levels that are no path something else is made.
pub fn symbols_of(levels: &mut [i8]) {
    let (mut quantizer, mut before) = (0u8, 0u8);
    for level in levels {
        let negative = (*level >> 7) as u8;
        let k = *level as u8 ^ negative;
        let m = k >> 1;
        *level = (m ^ negative) as i8;
        (quantizer, before) = (before ^ ((m ^ negative) & 1), quantizer);
    }
}

/// Turns symbols into levels, in place: a row of a tile from its left edge.
pub fn levels_of(symbols: &mut [i8]) {
    let (mut quantizer, mut before) = (0u8, 0u8);
    for symbol in symbols {
        let negative = (*symbol >> 7) as u8;
        let m = *symbol as u8 ^ negative;
        let k = (m << 1 & 0x7E) | (quantizer ^ (negative & 1));
        *symbol = (k ^ negative) as i8;
        (quantizer, before) = (before ^ ((m ^ negative) & 1), quantizer);
    }
}
