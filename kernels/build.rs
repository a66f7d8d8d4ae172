//! Generates Rust from the list of modules and from the record of their images. With the feature `emulate`, compiles
//! the kernels' source for the CPU.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A row `module` or `test` of modules.txt.
struct Unit {
    name: String,
    /// File in cuda/. Used by the emulator only, as is `define`: images are compiled by compile.py.
    #[cfg_attr(not(feature = "emulate"), allow(dead_code))]
    source: String,
    /// Distinguishes it from other modules with the same source.
    #[cfg_attr(not(feature = "emulate"), allow(dead_code))]
    define: Option<String>,
    about: String,
    shipped: bool,
    /// The compute capability that its images begin with, from a row `from`; 0.0 without one.
    from: (u32, u32),
}

/// A row `image` of modules.txt.
struct Image {
    kind: String,
    major: u32,
    minor: u32,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=modules.txt");
    println!("cargo:rerun-if-changed=images.txt");
    let (units, images) = list(&read("modules.txt"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("modules.rs"), rust(&units, &images, &read("images.txt"))).expect("OUT_DIR can be written");
    #[cfg(feature = "emulate")]
    emulator::build(&units, &out);
}

fn read(name: &str) -> String {
    std::fs::read_to_string(name).unwrap_or_else(|e| panic!("kernels/{name}: {e}"))
}

/// Parses modules.txt.
fn list(text: &str) -> (Vec<Unit>, Vec<Image>) {
    let (mut units, mut images) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["compiler", ..] => {}
            [what @ ("module" | "test"), name, source, define, _, ..] => units.push(Unit {
                name: name.to_owned(),
                source: source.to_owned(),
                define: (define != "-").then(|| define.to_owned()),
                about: words[4..].join(" "),
                shipped: what == "module",
                from: (0, 0),
            }),
            ["from", name, from] => {
                let unit = units.iter_mut().find(|u| u.name == name);
                let unit = unit.unwrap_or_else(|| panic!("kernels/modules.txt: no module {name} before: {line}"));
                unit.from = capability(from).unwrap_or_else(|| panic!("kernels/modules.txt: {line}"));
            }
            // For compile.py.
            ["only", ..] => {}
            ["image", kind @ ("cubin" | "ptx"), number, _] => {
                let (major, minor) = capability(number).unwrap_or_else(|| panic!("kernels/modules.txt: {line}"));
                images.push(Image { kind: kind.to_owned(), major, minor });
            }
            _ => panic!("kernels/modules.txt: {line}"),
        }
    }
    (units, images)
}

/// A compute capability: major and minor version.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A call of the macro `modules` with all shipped modules.
fn rust(units: &[Unit], images: &[Image], record: &str) -> String {
    let mut code = String::from("modules! {\n");
    for Unit { name, about, from, .. } in units.iter().filter(|u| u.shipped) {
        let variant = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        let _ = writeln!(code, "    {variant}, {name:?}, simt_run_{name}, {about:?}, [");
        for Image { kind, major, minor } in images.iter().filter(|i| (i.major, i.minor) >= *from) {
            let (file, bytes) =
                (format!("sm_{major}{minor}.{kind}"), format!("images/{name}.sm_{major}{minor}.{kind}.zst"));
            let row = record.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
            let len = row
                .filter(|words| words.starts_with(&["image", name, &file]))
                .find_map(|words| words.get(4)?.parse::<usize>().ok())
                .filter(|_| Path::new(&bytes).is_file())
                .unwrap_or_else(|| panic!("module {name} has not been compiled to {file}: make kernels"));
            let kind = if kind == "ptx" { "Ptx" } else { "Cubin" };
            let _ = writeln!(
                code,
                "        Image {{ kind: Kind::{kind}, capability: ({major}, {minor}), len: {len}, \
                 zstd: include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{bytes}\")) }},"
            );
        }
        code.push_str("    ];\n");
    }
    code + "}\n"
}

#[cfg(feature = "emulate")]
mod emulator {
    use std::path::{Path, PathBuf};

    use super::Unit;

    const MISSING: &str = "\
The feature `emulate` of wcodec-kernels compiles the GPU kernels for the CPU and needs a C++17 compiler, which is not
there. Install one:
  Debian, Ubuntu: apt install g++
  Fedora, RHEL:   dnf install gcc-c++
  Arch:           pacman -S gcc
  macOS:          xcode-select --install
or set CXX to the path of one.";

    pub fn build(units: &[Unit], out: &Path) {
        println!("cargo:rerun-if-changed=cuda");
        for Unit { name, source, define, .. } in units {
            let mut build = cc::Build::new();
            build
                .cpp(true)
                .cpp_link_stdlib(None) // // nothing of it is used
                .std("c++17")
                .opt_level(2) // even in debug builds: a test decodes megabytes, one thread after the other
                .out_dir(out.join(name))
                .include("cuda")
                .define("SIMT_MODULE", name.as_str())
                // Floating point as on the GPU: each operation is rounded separately.
                .flag("-ffp-contract=off")
                // Calls into cuda/simt_undefined.h if a GPU and this CPU may compute different results.
                .flag("-fsanitize=shift,bounds,integer-divide-by-zero,signed-integer-overflow")
                .flag("-fno-exceptions")
                .flag("-fno-rtti")
                .flag_if_supported("-Wno-unknown-pragmas")
                .flag_if_supported("-Wno-unused-function")
                .flag_if_supported("-Wno-unused-parameter");
            if let Some(define) = define {
                let (define, value) = define.split_once('=').unwrap_or((define, "1"));
                build.define(define, value);
            }
            // The compiler would go by the file's extension, which is CUDA's.
            build.flag("-xc++").file(PathBuf::from("cuda").join(source));
            if let Err(error) = build.try_compile(&format!("wcodec_emulate_{name}")) {
                give_up(&build, source, &error);
            }
        }
    }

    fn give_up(build: &cc::Build, source: &str, error: &cc::Error) -> ! {
        let works = build
            .try_get_compiler()
            .ok()
            .and_then(|compiler| compiler.to_command().arg("--version").output().ok())
            .is_some_and(|output| output.status.success());
        if works {
            eprintln!("the C++ compiler refuses cuda/{source}: {error}");
        } else {
            eprintln!("{MISSING}\n({error})");
        }
        std::process::exit(1);
    }
}
