//! `--plain` and `--json`: a file that is printed once.

use std::sync::Arc;

use wcodec::text::safe_path;
use wcodec::{Cancel, Comparisons, Container};

use crate::cli::Options;
use crate::draw::Look;
use crate::estimate::estimate;
use crate::model::{FileModel, Filter, Original, Sort};
use crate::views::Tab;
use crate::views::list::{ListState, Row};
use crate::{json, plain};

/// A file, and all that the command line says of its printing.
pub struct Once<'a> {
    /// The command line.
    pub options: &'a Options,
    /// The file.
    pub file: &'a Arc<FileModel>,
    /// The tensors that filter and order leave, by their places in the file.
    pub shown: Vec<usize>,
    /// A second file, and how its tensors differ.
    pub compared: Option<(&'a FileModel, Comparisons)>,
    /// Signs.
    pub look: Look,
}

impl<'a> Once<'a> {
    /// Finds the tensors that are shown, one of them if there is `tensor`, and compares the files.
    ///
    /// # Errors
    /// The files cannot be compared.
    pub fn new(
        options: &'a Options,
        file: &'a Arc<FileModel>,
        other: Option<&'a FileModel>,
        tensor: Option<usize>,
        look: Look,
    ) -> Result<Self, String> {
        // A table on paper has no folding and no modules.
        let mut list = ListState::new(file);
        list.tree = false;
        list.filter = options.filter.as_deref().filter(|t| !t.is_empty()).map(Filter::new);
        list.sort = options.sort.map_or_else(Sort::default, Sort::by);
        list.arrange(file, |i| file.tensors.get(i)?.entropy);
        let all = list.rows.iter().filter_map(|row| match row {
            Row::Tensor(i) => Some(*i),
            Row::Group(_) => None,
        });
        let shown = all.filter(|&i| tensor.is_none_or(|t| t == i)).collect();
        let compare = |other: &'a FileModel| {
            let found = file.container().and_then(|a| wcodec::compare(a, other.container()?));
            found.map(|found| (other, found)).map_err(|e| e.to_string())
        };
        let compared = other.map(compare).transpose()?;
        Ok(Self { options, file, shown, compared, look })
    }

    /// The text, and whether the files hold the same.
    ///
    /// # Errors
    /// A view cannot be printed, and why.
    pub fn text(&self) -> Result<(String, bool), String> {
        let Self { options, file, shown, compared, look } = self;
        let text = if options.json {
            let model = file.container().ok().map(Container::model).transpose().map_err(|e| e.to_string())?.flatten();
            let compared = compared.as_ref().map(|(other, c)| (*other, c));
            json::document(file, model.as_ref(), shown, compared).map_err(|e| e.to_string())?
        } else {
            let differences = compared.as_ref().map(|(o, c)| plain::differences(&safe_path(&o.path), c, *look));
            options.tab.unwrap_or(Tab::List).view().print(self)? + &differences.unwrap_or_default()
        };
        Ok((text, compared.as_ref().is_none_or(|(_, c)| c.same())))
    }

    /// The table of tensors, with estimates of a checkpoint.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub fn table(&self) -> Result<String, String> {
        let table = plain::table(self.file, &self.shown, self.look);
        let Some(Original::Checkpoint(_)) = self.file.original() else { return Ok(table) };
        let would = estimate(self.file, &Cancel::new(), &mut |_| {}).map_err(|e| e.to_string())?;
        Ok(table + &plain::estimates(self.file, &self.shown, &would, self.look))
    }
}
