//! With the feature `emulate`: compiles the kernels' source for the CPU.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "emulate")]
    emulator::build();
}

#[cfg(feature = "emulate")]
mod emulator {
    use std::path::PathBuf;

    /// A module, as it is compiled.
    struct Unit {
        name: &'static str,
        source: &'static str,
        /// Tells it from another with the same source.
        coder: Option<&'static str>,
    }

    const UNITS: [Unit; 4] = [
        Unit { name: "rans", source: "decode.cu", coder: Some("0") },
        Unit { name: "huffman", source: "decode.cu", coder: Some("1") },
        Unit { name: "util", source: "util.cu", coder: None },
        Unit { name: "selftest", source: "selftest.cu", coder: None },
    ];

    const MISSING: &str = "\
The feature `emulate` of wcodec-kernels compiles the GPU kernels for the CPU and needs a C++17 compiler, which is not
there. Install one:
  Debian, Ubuntu: apt install g++
  Fedora, RHEL:   dnf install gcc-c++
  Arch:           pacman -S gcc
  macOS:          xcode-select --install
or set CXX to the path of one.";

    pub fn build() {
        println!("cargo:rerun-if-changed=cuda");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        for Unit { name, source, coder } in UNITS {
            let mut build = cc::Build::new();
            build
                .cpp(true)
                .cpp_link_stdlib(None) // nothing of it is used
                .std("c++17")
                .opt_level(2) // even in debug builds: a test decodes megabytes, one thread after the other
                .out_dir(out.join(name))
                .include("cuda")
                .define("SIMT_MODULE", name)
                // Floating point as on the GPU: each operation rounded by itself.
                .flag("-ffp-contract=off")
                // Calls into cuda/simt_undefined.h where a GPU and this CPU may compute different things.
                .flag("-fsanitize=shift,bounds,integer-divide-by-zero,signed-integer-overflow")
                .flag("-fno-exceptions")
                .flag("-fno-rtti")
                .flag_if_supported("-Wno-unknown-pragmas")
                .flag_if_supported("-Wno-unused-function")
                .flag_if_supported("-Wno-unused-parameter");
            if let Some(coder) = coder {
                build.define("WCODEC_CODER", coder);
            }
            // The compiler goes by the ending of the name, which is CUDA's.
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
