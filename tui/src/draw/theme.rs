//! Colours and signs.

use ratatui::style::{Color, Modifier, Style};

worded! {
    /// A set of colours.
    #[derive(Default)]
    Theme {
        #[default]
        Dark = "dark", "for dark terminals";
        Light = "light", "for light ones";
        Safe = "safe", "for dark ones, of colours that are told apart by people who see no red or no green";
        Plain = "plain", "none at all: NO_COLOR, and terminals without";
    }
}

/// The number of colours that the terminal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The 16 that every terminal has.
    #[default]
    Sixteen,
    /// The palette of 256.
    Palette,
    /// Any.
    True,
}

/// Colours and signs of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Colours.
    pub theme: Theme,
    /// Only characters of ASCII.
    pub ascii: bool,
    /// Colours that there are.
    pub depth: Depth,
}

impl Look {
    /// A colour of each theme: dark, light, and safe with 16 colours and with more.
    fn color(self, dark: Color, light: Color, safe: (Color, u8)) -> Style {
        match self.theme {
            Theme::Dark => Style::new().fg(dark),
            Theme::Light => Style::new().fg(light),
            Theme::Safe if self.depth == Depth::Sixteen => Style::new().fg(safe.0),
            Theme::Safe => Style::new().fg(Color::Indexed(safe.1)),
            Theme::Plain => Style::new(),
        }
    }

    /// Plain text.
    pub fn text(self) -> Style {
        Style::new()
    }

    /// The style of details.
    pub fn dim(self) -> Style {
        match self.theme {
            Theme::Plain => Style::new().add_modifier(Modifier::DIM),
            _ => self.color(Color::DarkGray, Color::DarkGray, (Color::DarkGray, 245)),
        }
    }

    /// Heads of columns and titles.
    pub fn title(self) -> Style {
        self.color(Color::Cyan, Color::Blue, (Color::LightBlue, 75)).add_modifier(Modifier::BOLD)
    }

    /// Bars and histograms.
    pub fn bar(self) -> Style {
        self.color(Color::Cyan, Color::Blue, (Color::LightBlue, 75))
    }

    /// The style of good news.
    pub fn good(self) -> Style {
        self.color(Color::Green, Color::Green, (Color::LightCyan, 43))
    }

    /// The style of things that deserve a look.
    pub fn warn(self) -> Style {
        self.color(Color::Yellow, Color::Magenta, (Color::Yellow, 220))
    }

    /// The style of errors. Visible without colours, too.
    pub fn bad(self) -> Style {
        self.color(Color::Red, Color::Red, (Color::LightMagenta, 208)).add_modifier(Modifier::BOLD)
    }

    /// A cell of the heat map, whose figure is so far (0 to 1) up the scale: black or white on a colour; nothing with 16 colours and
    /// without any, where signs tell.
    pub fn heat(self, part: f64) -> Option<Style> {
        // Viridis, cividis, and for light backgrounds yellow to blue: all of one direction from dark to light.
        const DARK: [[u8; 3]; 6] =
            [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
        const SAFE: [[u8; 3]; 6] =
            [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
        const LIGHT: [[u8; 3]; 6] =
            [[255, 255, 217], [199, 233, 180], [127, 205, 187], [65, 182, 196], [34, 94, 168], [8, 29, 88]];
        let stops = match self.theme {
            Theme::Plain => return None,
            _ if self.depth == Depth::Sixteen => return None,
            Theme::Dark => &DARK,
            Theme::Light => &LIGHT,
            Theme::Safe => &SAFE,
        };
        // NaN becomes 0.
        let at = if part > 0.0 { part.min(1.0) * (stops.len() - 1) as f64 } else { 0.0 };
        let (low, rest) = (at.floor() as usize, at.fract());
        let high = (low + 1).min(stops.len() - 1);
        let rgb: [u8; 3] = std::array::from_fn(|i| {
            let (a, b) = (f64::from(stops[low][i]), f64::from(stops[high][i]));
            (a + (b - a) * rest).round() as u8
        });
        let [r, g, b] = rgb.map(f64::from);
        let light = 0.299 * r + 0.587 * g + 0.114 * b > 120.0;
        let ground = match self.depth {
            Depth::True => Color::Rgb(rgb[0], rgb[1], rgb[2]),
            _ => Color::Indexed(cube(rgb)),
        };
        let ink = match (self.depth, light) {
            (Depth::True, true) => Color::Rgb(0, 0, 0),
            (Depth::True, false) => Color::Rgb(255, 255, 255),
            (_, true) => Color::Indexed(16),
            (_, false) => Color::Indexed(231),
        };
        Some(Style::new().bg(ground).fg(ink))
    }

    /// The selected row. Visible without colours, too.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The sign between two facts.
    pub fn between(self) -> &'static str {
        self.sign(" · ", " | ")
    }

    /// The sign for a figure that nobody knows.
    pub fn unknown(self) -> &'static str {
        self.sign("·", "-")
    }

    /// The sign for an order.
    pub fn order(self, descending: bool) -> &'static str {
        if descending { self.sign("▼", "v") } else { self.sign("▲", "^") }
    }

    /// The signs for columns that go on to the left and to the right.
    pub fn beyond(self, left: bool, right: bool) -> &'static str {
        match (left, right) {
            (false, false) => "",
            (true, false) => self.sign("‹", "<"),
            (false, true) => self.sign("›", ">"),
            (true, true) => self.sign("‹›", "<>"),
        }
    }

    /// A sign, or what stands for it in ASCII.
    pub fn sign<'a>(self, sign: &'a str, ascii: &'a str) -> &'a str {
        if self.ascii { ascii } else { sign }
    }
}

/// The nearest colour of the cube of 6 x 6 x 6 in the palette of 256.
fn cube(rgb: [u8; 3]) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |v: u8| (0..6).min_by_key(|&i| LEVELS[i].abs_diff(v)).unwrap_or(0) as u8;
    16 + 36 * nearest(rgb[0]) + 6 * nearest(rgb[1]) + nearest(rgb[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_have_their_nearest_in_the_palette() {
        assert_eq!([cube([0, 0, 0]), cube([255, 255, 255]), cube([95, 0, 0])], [16, 231, 52]);
    }
}
