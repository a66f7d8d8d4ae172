//! The view of one tensor.

/// How the histograms are drawn, and what part of the view is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerState {
    /// Bins of the scales' histogram.
    pub bins: usize,
    /// Whether scales are on a logarithmic axis.
    pub log: bool,
    /// Lines that are scrolled out at the top.
    pub scroll: usize,
    /// The tensor whose statistics were asked for last, by its place in the file.
    pub tensor: Option<usize>,
}

impl Default for LayerState {
    fn default() -> Self {
        Self { bins: 40, log: false, scroll: 0, tensor: None }
    }
}
