//! Colours and signs.

use ratatui::style::{Color, Modifier, Style};

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// For dark terminals.
    #[default]
    Dark,
    /// For light ones.
    Light,
    /// None at all: NO_COLOR, and terminals without.
    Plain,
}

impl Theme {
    /// The next one, around.
    pub fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::Plain,
            Self::Plain => Self::Dark,
        }
    }

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::Plain => "plain",
        }
    }
}

/// What the screen is drawn with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Colours.
    pub theme: Theme,
    /// Only characters of ASCII.
    pub ascii: bool,
}

impl Look {
    fn color(self, dark: Color, light: Color) -> Style {
        match self.theme {
            Theme::Dark => Style::new().fg(dark),
            Theme::Light => Style::new().fg(light),
            Theme::Plain => Style::new(),
        }
    }

    /// Plain text.
    pub fn text(self) -> Style {
        Style::new()
    }

    /// What matters less.
    pub fn dim(self) -> Style {
        match self.theme {
            Theme::Plain => Style::new().add_modifier(Modifier::DIM),
            _ => self.color(Color::DarkGray, Color::DarkGray),
        }
    }

    /// Heads of columns and titles.
    pub fn title(self) -> Style {
        self.color(Color::Cyan, Color::Blue).add_modifier(Modifier::BOLD)
    }

    /// Bars and histograms.
    pub fn bar(self) -> Style {
        self.color(Color::Cyan, Color::Blue)
    }

    /// What is fine.
    pub fn good(self) -> Style {
        self.color(Color::Green, Color::Green)
    }

    /// What deserves a look.
    pub fn warn(self) -> Style {
        self.color(Color::Yellow, Color::Magenta)
    }

    /// What is wrong. Visible without colours, too.
    pub fn bad(self) -> Style {
        self.color(Color::Red, Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The selected row. Visible without colours, too.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A sign, or what stands for it in ASCII.
    pub fn sign<'a>(self, sign: &'a str, ascii: &'a str) -> &'a str {
        if self.ascii { ascii } else { sign }
    }
}
