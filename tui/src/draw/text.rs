//! Numbers, sizes and names as text, the way `wcodec inspect` writes them.

use std::borrow::Cow;
use std::path::Path;

use unicode_truncate::UnicodeTruncateStr;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use wcodec::TensorInfo;
use wcodec::text::{safe, safe_bytes};

use super::theme::Look;

/// Bytes for people, in powers of 1,024.
///
/// ```
/// use wcodec_tui::draw::text::size;
/// assert_eq!([size(0), size(1023), size(6_295_384)], ["0 B", "1023 B", "6.00 MiB"]);
/// ```
pub fn size(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() as usize / 10).min(5);
    match unit {
        0 => format!("{bytes} B"),
        _ => {
            format!("{:.2} {}", bytes as f64 / 1024f64.powi(unit as i32), ["KiB", "MiB", "GiB", "TiB", "PiB"][unit - 1])
        }
    }
}

/// A whole number with commas.
///
/// ```
/// use wcodec_tui::draw::text::count;
/// assert_eq!([count(7), count(1234567), count(123456)], ["7", "1,234,567", "123,456"]);
/// ```
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

/// A count in seven columns, of which millions are rounded: `999,999`, `1.2M`.
///
/// ```
/// use wcodec_tui::draw::text::millions;
/// assert_eq!([7, 999_999, 1_234_567, 5_000_000_000].map(millions), ["7", "999,999", "1.2M", "5.0G"]);
/// ```
pub fn millions(n: u64) -> String {
    match n {
        0..1_000_000 => count(n),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

/// A number of things.
///
/// ```
/// use wcodec_tui::draw::text::plural;
/// assert_eq!([plural(1, "tensor"), plural(2_000, "alias")], ["1 tensor", "2,000 aliases"]);
/// ```
pub fn plural(n: usize, noun: &str) -> String {
    let ending = match n {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(n as u64))
}

/// A shape as it reads in tables: `4096x192`, or `scalar`.
pub fn shape(dimensions: &[usize]) -> String {
    if dimensions.is_empty() {
        return "scalar".to_owned();
    }
    dimensions.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// A figure of about five digits, such as a ratio: `2.941`, `51.33`, `1024`.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v < 10.0 => 3,
        v if v < 100.0 => 2,
        v if v < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A number with so many digits that count and no zeros at its end, as Python's format `g` writes it.
///
/// ```
/// use wcodec_tui::draw::text::general;
/// assert_eq!([general(0.130254, 3), general(12345.0, 3), general(1e-7, 3), general(0.0, 3)], ["0.13", "1.23e+04", "1e-07", "0"]);
/// ```
pub fn general(value: f64, digits: usize) -> String {
    let digits = digits.max(1);
    let rounded = format!("{value:.*e}", digits - 1);
    let Some((mantissa, exponent)) = rounded.split_once('e') else { return rounded };
    let Ok(power) = exponent.parse::<i32>() else { return rounded };
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= digits as i32 {
        return format!("{}e{}{:02}", short(mantissa), if power < 0 { '-' } else { '+' }, power.abs());
    }
    short(&format!("{value:.*}", (digits as i32 - 1 - power).max(0) as usize))
}

/// A part of 1 as a percentage; what is there but very small is not shown as nothing.
///
/// ```
/// use wcodec_tui::draw::text::percent;
/// assert_eq!([percent(1.0), percent(0.0123), percent(0.00001), percent(0.0)], ["100 %", "1.23 %", "<0.01 %", "0 %"]);
/// ```
pub fn percent(part: f64) -> String {
    match 100.0 * part {
        0.0 => "0 %".to_owned(),
        p if p < 0.01 => "<0.01 %".to_owned(),
        p if p < 10.0 => format!("{p:.2} %"),
        p if p < 99.95 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// A change as a percentage with its sign: `+2.1 %`.
pub fn change(part: f64) -> String {
    let p = 100.0 * part;
    if p.abs() < 99.95 { format!("{p:+.1} %") } else { format!("{p:+.0} %") }
}

/// The scheme, and the weights that share a scale: `int8 row`, or `rate row column` where columns have factors.
pub fn scheme(t: &TensorInfo) -> String {
    joined(&joined(&t.scheme, t.scales.as_deref()), t.columns.then_some("column"))
}

/// The coder and its layout: `rans pair`.
pub fn coder(t: &TensorInfo) -> String {
    joined(t.coder(), t.layout())
}

fn joined(first: &str, second: Option<&str>) -> String {
    second.map_or_else(|| first.to_owned(), |s| format!("{first} {s}"))
}

/// Columns that a text takes.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { UnicodeWidthStr::width(text) }
}

/// A text from outside, with visible escapes for what would upset the terminal, and in ASCII where only that is drawn.
pub fn clean(look: Look, text: &str) -> Cow<'_, str> {
    let shown = safe(text);
    if look.ascii && !shown.is_ascii() { Cow::Owned(shown.replace(|c: char| !c.is_ascii(), "?")) } else { shown }
}

/// The name of a file without its folders.
pub fn file_name(look: Look, path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    clean(look, &safe_bytes(name.as_encoded_bytes())).into_owned()
}

/// The beginning of a text, as far as there is room.
pub fn start(text: &str, room: usize) -> &str {
    text.unicode_truncate(room).0
}

/// The end of a text, as far as there is room.
pub fn end(text: &str, room: usize) -> &str {
    text.unicode_truncate_start(room).0
}

/// A text that is cut where there is no room; its last `tail` columns stay.
fn elide(look: Look, text: &str, room: usize, tail: usize) -> Cow<'_, str> {
    match room {
        _ if width(text) <= room => Cow::Borrowed(text),
        0 => Cow::Borrowed(""),
        _ => Cow::Owned(format!("{}{}{}", start(text, room - 1 - tail), look.sign("…", "~"), end(text, tail))),
    }
}

/// A text that is cut at its end where there is no room.
pub fn cut(look: Look, text: &str, room: usize) -> Cow<'_, str> {
    elide(look, text, room, 0)
}

/// [`cut`] of a text from outside.
pub fn fitted(look: Look, text: &str, room: usize) -> String {
    cut(look, &clean(look, text), room).into_owned()
}

/// A text that is cut at its beginning where there is no room.
pub fn cut_left(look: Look, text: &str, room: usize) -> Cow<'_, str> {
    elide(look, text, room, room.saturating_sub(1))
}

/// A text that is cut in the middle where there is no room, such as a file's name, which may differ at either end.
pub fn cut_middle(look: Look, text: &str, room: usize) -> Cow<'_, str> {
    elide(look, text, room, if room < 6 { 0 } else { (room - 1) * 3 / 5 })
}

/// A tensor's name in so many columns: parts of its path are shortened to their first letters, from the left and numbers
/// spared, until it fits, so that layers and roles stay readable; what is still too long is cut at the left.
///
/// ```
/// use wcodec_tui::draw::{text::short_name, theme::Look};
/// let name = "model.layers.12.self_attn.q_proj.weight";
/// assert_eq!(short_name(Look::default(), name, 39), name);
/// assert_eq!(short_name(Look::default(), name, 30), "m.l.12.self_attn.q_proj.weight");
/// assert_eq!(short_name(Look::default(), name, 24), "m.l.12.s.q_proj.weight");
/// assert_eq!(short_name(Look::default(), name, 10), "…oj.weight");
/// ```
pub fn short_name(look: Look, name: &str, room: usize) -> Cow<'_, str> {
    let mut excess = width(name).saturating_sub(room);
    if excess == 0 {
        return Cow::Borrowed(name);
    }
    let parts: Vec<&str> = name.split('.').collect();
    // The last two say what the tensor is.
    let whole = parts.len().saturating_sub(2);
    let mut short = String::with_capacity(name.len());
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            short.push('.');
        }
        let number = part.bytes().all(|b| b.is_ascii_digit());
        match part.chars().next() {
            Some(first) if i < whole && excess > 0 && !number => {
                short.push(first);
                excess = excess.saturating_sub(width(part) - first.width().unwrap_or(0));
            }
            _ => short.push_str(part),
        }
    }
    if width(&short) <= room { Cow::Owned(short) } else { cut_left(look, name, room).into_owned().into() }
}

/// [`short_name`] of a name from outside.
pub fn short(look: Look, name: &str, room: usize) -> String {
    short_name(look, &clean(look, name), room).into_owned()
}

/// The last parts of a tensor's name in so many columns: what goes is the end of the part before the last one.
///
/// ```
/// use wcodec_tui::draw::{text::short_label, theme::Look};
/// assert_eq!(short_label(Look::default(), "post_attention_layernorm.weight", 20), "post_attenti….weight");
/// ```
pub fn short_label(look: Look, label: &str, room: usize) -> Cow<'_, str> {
    let tail = label.rfind('.').map_or(0, |dot| width(&label[dot..]));
    elide(look, label, room, if tail + 4 > room { 0 } else { tail })
}
