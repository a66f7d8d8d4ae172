//! The folder of a file.

use std::path::Path;

/// The folder of a file, also for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
