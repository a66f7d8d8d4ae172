//! Which of nvCOMP's interfaces a library has.

use std::fmt;

/// A version of nvCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number: it decides what the interface is.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number. Builds, the fourth, are not told apart.
    pub patch: u32,
}

impl Version {
    /// The version that libraries are taken for that do not say theirs.
    pub(super) const SILENT: Self = Self { major: 3, minor: 0, patch: 0 };

    /// From the number that `nvcompGetProperties` gives.
    pub(super) fn from_number(n: u32) -> Self {
        Self { major: n / 1000, minor: n / 100 % 10, patch: n % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// An interface of nvCOMP. Versions of one family are called alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// 3.0 to 4.x: options of 4 or 8 bytes, and none for decompression.
    A,
    /// 5.x: options of 64 bytes by value; the size of the scratch from `..GetTempSizeAsync`.
    B,
    /// 6.x: as 5.x, but the size of the scratch from `..GetTempSize`, a name that has other arguments in family A.
    C,
}

/// Which of the functions that differ between families a library has, for one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct ExportedSymbols {
    /// `..DecompressGetTempSizeEx`.
    pub ex: bool,
    /// `..DecompressGetTempSizeAsync`.
    pub asynchronous: bool,
    /// `..DecompressGetTempSize`.
    pub plain: bool,
    /// `..DecompressGetTempSizeSync`.
    pub synchronous: bool,
}

impl ExportedSymbols {
    /// The suffixes of `nvcompBatched{format}DecompressGetTempSize`, in the order of the fields.
    pub const SUFFIXES: [&str; 4] = ["Ex", "Async", "", "Sync"];

    pub fn new([ex, asynchronous, plain, synchronous]: [bool; 4]) -> Self {
        Self { ex, asynchronous, plain, synchronous }
    }

    fn of(family: Family) -> Self {
        Self::new(match family {
            Family::A => [true, false, true, false],
            Family::B => [false, true, false, true],
            Family::C => [false, false, true, true],
        })
    }
}

/// The family of a library, or why it is refused. `version` is absent where the library has no `nvcompGetProperties`;
/// `symbols` are those of the formats that are used.
pub(super) fn decide(version: Option<Version>, symbols: &[ExportedSymbols]) -> Result<Family, String> {
    let family = match version {
        None => Family::A,
        Some(v) => match v.major {
            3 | 4 => Family::A,
            5 => Family::B,
            6 => Family::C,
            n if n > 6 => {
                return Err(format!("nvCOMP {v} is newer than what this version of wcodec knows (3.0 to 6.x)"));
            }
            _ => return Err(format!("nvCOMP {v} is too old: 3.0 to 6.x are known")),
        },
    };
    if symbols.iter().all(|s| *s == ExportedSymbols::of(family)) {
        return Ok(family);
    }
    let says = version.map_or("does not say its version".to_owned(), |v| format!("says it is nvCOMP {v}"));
    Err(format!("the library {says}, but has not that version's functions"))
}

/// A version of CUDA, major and minor, from the number that CUDA gives.
pub(super) fn cuda_version(n: u32) -> (u32, u32) {
    (n / 1000, n / 10 % 100)
}

/// Refuses libraries that are built for a newer major version of CUDA than the driver's: their calls would all fail.
pub(super) fn check_driver(cudart: Option<(u32, u32)>, driver: Option<(u32, u32)>) -> Result<(), String> {
    match (cudart, driver) {
        (Some(built), Some(driver)) if built.0 > driver.0 => Err(format!(
            "it is built for CUDA {}.{}, and the driver implements {}.{}",
            built.0, built.1, driver.0, driver.1
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number, as `nvcompGetProperties` gives it, of every release that was examined; none for 3.0.x.
    const RELEASES: [(Option<u32>, &str, Family); 13] = [
        (None, "3.0.0", Family::A),
        (Some(3006), "3.0.6", Family::A),
        (Some(4000), "4.0.0", Family::A),
        (Some(4001), "4.0.1", Family::A),
        (Some(4100), "4.1.0", Family::A),
        (Some(4101), "4.1.1", Family::A),
        (Some(4200), "4.2.0", Family::A),
        (Some(5000), "5.0.0", Family::B),
        (Some(5100), "5.1.0", Family::B),
        (Some(5200), "5.2.0", Family::B),
        (Some(5300), "5.3.0", Family::B),
        (Some(6000), "6.0.0", Family::C),
        (Some(6203), "6.2.3", Family::C),
    ];

    #[test]
    fn every_release_has_its_family() {
        for (number, name, family) in RELEASES {
            let version = number.map(Version::from_number);
            assert_eq!(version.unwrap_or(Version::SILENT).to_string(), name);
            assert_eq!(decide(version, &[ExportedSymbols::of(family); 2]), Ok(family), "{name}");
        }
    }

    #[test]
    fn version_and_functions_must_agree() {
        for (number, name, family) in RELEASES {
            for set in 0..16u32 {
                let other = ExportedSymbols::new([0, 1, 2, 3].map(|bit| set >> bit & 1 != 0));
                if other == ExportedSymbols::of(family) {
                    continue;
                }
                // Also where only one of two formats differs.
                for symbols in
                    [[other, other], [ExportedSymbols::of(family), other], [other, ExportedSymbols::of(family)]]
                {
                    let e = decide(number.map(Version::from_number), &symbols).expect_err(name);
                    assert!(e.contains("has not that version's functions"), "{e}");
                    assert!(number.is_none() || e.contains(name), "{e}");
                }
            }
        }
    }

    #[test]
    fn unknown_versions_are_refused_whatever_they_have() {
        for number in [7000, 7100, 8000, 10_000, u32::MAX, 0, 2600] {
            for family in [Family::A, Family::B, Family::C] {
                let e =
                    decide(Some(Version::from_number(number)), &[ExportedSymbols::of(family)]).expect_err("refused");
                assert!(e.contains(if number < 3000 { "too old" } else { "newer" }), "{e}");
            }
        }
    }

    #[test]
    fn driver_and_library_must_fit() {
        assert_eq!(
            [11_080, 12_050, 12_090, 13_000, 13_040].map(cuda_version),
            [(11, 8), (12, 5), (12, 9), (13, 0), (13, 4)]
        );
        // Within a major version older drivers do.
        for (built, driver) in [((12, 9), (12, 4)), ((12, 9), (13, 0)), ((13, 4), (13, 0)), ((11, 8), (12, 4))] {
            assert_eq!(check_driver(Some(built), Some(driver)), Ok(()));
        }
        let e = check_driver(Some((13, 0)), Some((12, 8))).expect_err("too old");
        assert_eq!(e, "it is built for CUDA 13.0, and the driver implements 12.8");
        assert_eq!(check_driver(None, Some((12, 4))), Ok(()));
        assert_eq!(check_driver(Some((13, 4)), None), Ok(()));
    }
}
