//! The places where nvCOMP may be.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable that names nvCOMP's library, or a folder that has it.
pub const ENVIRONMENT: &str = "WCODEC_NVCOMP";

/// Names of the library, newest first; 3.0 and Debian's packages have the last.
const NAMES: [&str; 4] = ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so.4", "libnvcomp.so"];

/// Folders of the library in a `site-packages` (from 5.1 on, up to 5.0), and the folder itself.
const LAYOUTS: [&str; 3] = ["nvidia/libnvcomp/lib64", "nvidia/nvcomp", ""];

/// Something that the system's loader can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// A name, for which the loader searches; also finds what is loaded in this process already.
    Name(&'static str),
    File(PathBuf),
}

impl Candidate {
    pub fn path(&self) -> &Path {
        match self {
            Self::Name(name) => Path::new(name),
            Self::File(path) => path,
        }
    }
}

/// The surroundings that the search depends on besides the caller's wishes.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    /// Value of [`ENVIRONMENT`].
    pub named: Option<PathBuf>,
    /// Roots of Python environments.
    pub prefixes: Vec<PathBuf>,
    /// Folder of the system's libraries for this architecture.
    pub system: PathBuf,
}

impl Surroundings {
    pub fn of_process() -> Self {
        // A variable that is set to nothing is taken for one that is not set.
        let get = |name| std::env::var_os(name).filter(|v: &OsString| !v.is_empty()).map(PathBuf::from);
        Self {
            named: get(ENVIRONMENT),
            prefixes: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(get).collect(),
            system: format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into(),
        }
    }
}

/// The library that was asked for by name, and the ones that there are.
#[derive(Debug)]
pub(super) struct Search {
    /// The place that the caller or the environment insists on; nothing else is tried then.
    pub insisted: Option<PathBuf>,
    pub candidates: Vec<Candidate>,
}

/// Everything to try, in order. `folders` are such as Python's `sys.path`.
pub(super) fn search(explicit: Option<&Path>, folders: &[PathBuf], surroundings: &Surroundings) -> Search {
    if let Some(insisted) = explicit.map(Path::to_owned).or_else(|| surroundings.named.clone()) {
        let files = if insisted.is_dir() { in_folder(&insisted) } else { vec![insisted.clone()] };
        return Search { insisted: Some(insisted), candidates: files.into_iter().map(Candidate::File).collect() };
    }
    let mut files = Vec::new();
    // Python's path has an empty entry for the working directory, from where nothing should be loaded.
    for folder in folders.iter().filter(|f| !f.as_os_str().is_empty()) {
        files.extend(in_folder(folder));
    }
    for prefix in &surroundings.prefixes {
        let lib = prefix.join("lib");
        for python in sorted_folders(&lib, "python") {
            files.extend(in_folder(&python.join("site-packages")));
        }
        files.extend(in_folder(&lib));
    }
    for cuda in ["13", "12", "11"] {
        files.extend(in_folder(&surroundings.system.join("nvcomp").join(cuda)));
    }
    let mut candidates: Vec<Candidate> = NAMES.map(Candidate::Name).into();
    for file in files.into_iter().map(Candidate::File) {
        if !candidates.contains(&file) {
            candidates.push(file);
        }
    }
    Search { insisted: None, candidates }
}

/// The libraries in a folder or a `site-packages`, newest first.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let paths = NAMES.iter().flat_map(|name| LAYOUTS.map(|layout| folder.join(layout).join(name)));
    paths.filter(|path| path.is_file()).collect()
}

fn sorted_folders(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .filter(|e| e.file_name().to_str().is_some_and(|name| name.starts_with(prefix)))
        .map(|e| e.path())
        .collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders that the wheels put the library into.
    const WHEELS: [(&str, &str); 4] = [
        ("4.2.0", "nvidia/nvcomp/libnvcomp.so.4"),
        ("5.0.0", "nvidia/nvcomp/libnvcomp.so.5"),
        ("5.3.0", "nvidia/libnvcomp/lib64/libnvcomp.so.5"),
        ("6.0.0", "nvidia/libnvcomp/lib64/libnvcomp.so.6"),
    ];

    fn touch(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
        fs::write(path, b"").expect("written");
        path.to_owned()
    }

    fn files(search: &Search) -> Vec<&Path> {
        let file = |c: &'_ Candidate| matches!(c, Candidate::File(_));
        search.candidates.iter().filter(|c| file(c)).map(Candidate::path).collect()
    }

    #[test]
    fn wheels_are_found_in_every_layout() {
        for (version, place) in WHEELS {
            let root = tempfile::tempdir().expect("made");
            let packages = root.path().join("lib/python3.12/site-packages");
            let library = touch(&packages.join(place));
            // In a folder that the caller gives, as Python does.
            let found = search(None, &[PathBuf::new(), packages.clone()], &Surroundings::default());
            assert_eq!(files(&found), [&library], "{version}");
            assert_eq!(found.insisted, None);
            // In an environment.
            let surroundings = Surroundings { prefixes: vec![root.path().to_owned()], ..Surroundings::default() };
            assert_eq!(files(&search(None, &[], &surroundings)), [&library], "{version}");
            // As the folder or the file that the caller insists on.
            let other = touch(&root.path().join("other/libnvcomp.so"));
            for path in [&packages, &library] {
                let surroundings = Surroundings { named: Some(other.clone()), ..surroundings.clone() };
                let found = search(Some(path), &[], &surroundings);
                assert_eq!(files(&found), [&library], "{version}");
                assert_eq!(found.candidates.len(), 1, "{version}");
                assert_eq!(found.insisted.as_ref(), Some(path));
            }
        }
    }

    #[test]
    fn the_environment_is_obeyed() {
        let root = tempfile::tempdir().expect("made");
        let library = touch(&root.path().join("libnvcomp.so.5"));
        let packages = root.path().join("packages");
        touch(&packages.join(WHEELS[3].1));
        let surroundings = Surroundings { named: Some(root.path().to_owned()), ..Surroundings::default() };
        let found = search(None, &[packages], &surroundings);
        assert_eq!(found.candidates, [Candidate::File(library)]);
        // A file that is not there is tried all the same, for the loader to say so.
        let missing = root.path().join("missing.so");
        let found = search(Some(&missing), &[], &surroundings);
        assert_eq!(found.candidates, [Candidate::File(missing)]);
        let nothing = root.path().join("nothing");
        fs::create_dir(&nothing).expect("made");
        assert_eq!(search(Some(&nothing), &[], &surroundings).candidates, []);
    }

    #[test]
    fn order_is_by_place_then_newest_first() {
        let root = tempfile::tempdir().expect("made");
        let at = |place: &str| touch(&root.path().join(place));
        let packages = ["given", "env/lib/python3.10/site-packages", "env/lib/python3.12/site-packages"];
        let mut expected = Vec::new();
        for packages in packages {
            for (_, place) in [WHEELS[3], WHEELS[2], WHEELS[0]] {
                expected.push(at(&format!("{packages}/{place}")));
            }
        }
        expected.push(at("env/lib/libnvcomp.so.5"));
        for cuda in ["13", "12", "11"] {
            expected.push(at(&format!("system/nvcomp/{cuda}/libnvcomp.so")));
        }
        let surroundings = Surroundings {
            named: None,
            prefixes: vec![root.path().join("env"), root.path().join("absent")],
            system: root.path().join("system"),
        };
        // A folder that is given twice is tried once.
        let given = root.path().join("given");
        let found = search(None, &[given.clone(), given], &surroundings);
        assert_eq!(found.candidates[..4], NAMES.map(Candidate::Name));
        assert_eq!(files(&found), expected);
    }
}
