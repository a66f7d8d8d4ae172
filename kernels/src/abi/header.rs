//! Generates `cuda/abi.h`, and compares it with the checked-in file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{
    ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_RELU_SQUARED, ACTIVATION_SILU,
    CHANGES_BYTES, COMBINE_THREADS, FILTER_LEFT, FILTER_NONE, FILTER_TRELLIS, FILTER_UP, KNOWN_BYTES, LAYOUT_BYTE,
    LAYOUT_PAIR, LAYOUT_QUAD, LAYOUT_SPLIT, MANY_BARRIERS_AT, MANY_FEW_WARPS, MANY_GROUP, MANY_HELPERS,
    MANY_LEAST_SLOTS, MANY_MORE_HELPERS, MANY_MOST_SLOTS, MANY_PARTED_VECTORS, MANY_RING_AT, MANY_RING_VECTORS,
    MANY_WARPS, MAX_ITEMS, MAX_PRODUCT_ITEMS, MAX_RUNS, MOST_EXPERTS, MOST_ROUTES, NORM_LAYER, NORM_RMS, NORM_THREADS,
    OutputKind, PART_GATE, PART_RESULT, PART_UP, QUANTIZE_COLUMNS, QUANTIZE_THREADS, SQUARES_COLS, STRUCTURES,
    TABLE_AT,
};
use crate::{BLOCK_THREADS, HALF_BLOCK_THREADS, Mode, Variant};

pub(super) struct Structure {
    pub name: &'static str,
    /// Its documentation, line by line; lines after an empty one are for Rust alone.
    pub about: &'static [&'static str],
    pub bytes: usize,
    pub fields: &'static [Field],
}

pub(super) struct Field {
    pub name: &'static str,
    pub kind: &'static str,
    pub offset: usize,
    pub bytes: usize,
    pub what: &'static str,
}

impl Field {
    /// The declaration in C.
    fn declaration(&self) -> String {
        match self.kind.strip_prefix('[').and_then(|k| k.strip_suffix(']')).and_then(|k| k.split_once(';')) {
            Some((kind, count)) => format!("{} {}[{}];", kind.trim(), self.name, count.trim()),
            None => format!("{} {};", self.kind, self.name),
        }
    }
}

const LIES_AT: &str = "\
#ifdef __CUDACC__
// NVRTC has no offsetof. The fields' sizes add up to the structure's, so that they leave no gaps.
#define LIES_AT(structure, field, offset, bytes) static_assert(sizeof(structure::field) == bytes, \"differs from abi.rs\");
#else
#define LIES_AT(structure, field, offset, bytes)                                                             \\
  static_assert(__builtin_offsetof(structure, field) == offset && sizeof(structure::field) == bytes, \\
                \"differs from abi.rs\");
#endif
";

fn pairs(named: &[(String, usize)]) -> Vec<(&str, usize)> {
    named.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

fn header() -> String {
    let mut text = String::from(
        "// The launch parameters of the kernels. Generated from kernels/src/abi.rs, which says how.\n#pragma once\n#include \"simt.h\"\n",
    );
    let mut define = |about: &str, names: &[(&str, usize)]| {
        writeln!(text, "\n// {about}").unwrap();
        names.iter().for_each(|(name, value)| writeln!(text, "#define {name} {value}").unwrap());
    };
    define("The most items of a launch.", &[("MAX_ITEMS", MAX_ITEMS)]);
    define("The most items of a launch of products.", &[("MAX_PRODUCT_ITEMS", MAX_PRODUCT_ITEMS)]);
    define(
        "Columns whose squares are summed together, in the same order in every kernel.",
        &[("SQUARES_COLS", SQUARES_COLS)],
    );
    define(
        "Bytes of shared memory for a warp's sums of the corrections of patches: for each of 16 rows a word for each digit.",
        &[("CHANGES_BYTES", CHANGES_BYTES)],
    );
    define(
        "Bytes of shared memory for the facts that a warp, or a thread, knows before the vector is available.",
        &[("KNOWN_BYTES", KNOWN_BYTES)],
    );
    define(
        "Kernels of many vectors: a block's warps that decode, at most, and with 128 vectors, its other warps in the same two cases, and the blocks of a chunk whose side words it has at once.",
        &[
            ("MANY_WARPS", MANY_WARPS),
            ("MANY_FEW_WARPS", MANY_FEW_WARPS),
            ("MANY_HELPERS", MANY_HELPERS),
            ("MANY_MORE_HELPERS", MANY_MORE_HELPERS),
            ("MANY_GROUP", MANY_GROUP),
        ],
    );
    define(
        "Their rings: slots, at most and at least, and vectors of all slots together in between.",
        &[
            ("MANY_MOST_SLOTS", MANY_MOST_SLOTS),
            ("MANY_LEAST_SLOTS", MANY_LEAST_SLOTS),
            ("MANY_RING_VECTORS", MANY_RING_VECTORS),
            ("MANY_PARTED_VECTORS", MANY_PARTED_VECTORS),
        ],
    );
    define(
        "Addresses in shared memory of the barriers and of the ring of kernels of many vectors.",
        &[("MANY_BARRIERS_AT", MANY_BARRIERS_AT), ("MANY_RING_AT", MANY_RING_AT)],
    );
    define(
        "Routes that `wcodec_route` sorts, and experts by which it does, at most.",
        &[("MOST_ROUTES", MOST_ROUTES), ("MOST_EXPERTS", MOST_EXPERTS)],
    );
    define("Threads of a block of `wcodec_route_combine`.", &[("COMBINE_THREADS", COMBINE_THREADS)]);
    define(
        "Columns of a launch of the kernels that choose levels, and threads of a block of them, at most.",
        &[("QUANTIZE_COLUMNS", QUANTIZE_COLUMNS), ("QUANTIZE_THREADS", QUANTIZE_THREADS)],
    );
    let parts = [("PART_RESULT", PART_RESULT), ("PART_GATE", PART_GATE), ("PART_UP", PART_UP)];
    define("The use of an item's results.", &parts.map(|(name, value)| (name, value as usize)));
    let activations = [
        ("ACTIVATION_NONE", ACTIVATION_NONE),
        ("ACTIVATION_SILU", ACTIVATION_SILU),
        ("ACTIVATION_GELU_TANH", ACTIVATION_GELU_TANH),
        ("ACTIVATION_GELU", ACTIVATION_GELU),
        ("ACTIVATION_RELU", ACTIVATION_RELU),
        ("ACTIVATION_RELU_SQUARED", ACTIVATION_RELU_SQUARED),
    ];
    define("Activations.", &activations.map(|(name, value)| (name, value as usize)));
    let norms = [("NORM_RMS", NORM_RMS), ("NORM_LAYER", NORM_LAYER)];
    define("Norms.", &norms.map(|(name, value)| (name, value as usize)));
    define("The most threads of a block of `wcodec_norm`.", &[("NORM_THREADS", NORM_THREADS)]);
    define("The most runs of bits of an element that a plane can hold.", &[("MAX_RUNS", MAX_RUNS)]);
    let kinds = OutputKind::ALL.map(|kind| (format!("OUT_{}", kind.name().to_uppercase()), kind as usize));
    define("Output types.", &kinds.each_ref().map(|(name, value)| (name.as_str(), *value)));
    let filters = [
        ("FILTER_NONE", FILTER_NONE),
        ("FILTER_LEFT", FILTER_LEFT),
        ("FILTER_UP", FILTER_UP),
        ("FILTER_TRELLIS", FILTER_TRELLIS),
    ];
    define("Filters.", &filters.map(|(name, value)| (name, value.into())));
    let layouts = [
        ("LAYOUT_BYTE", LAYOUT_BYTE),
        ("LAYOUT_PAIR", LAYOUT_PAIR),
        ("LAYOUT_SPLIT", LAYOUT_SPLIT),
        ("LAYOUT_QUAD", LAYOUT_QUAD),
    ];
    define("Layouts.", &layouts.map(|(name, value)| (name, value.into())));
    let of_modes = |name: fn(Mode) -> String, value: fn(Mode) -> Option<u32>| -> Vec<(String, usize)> {
        Mode::ALL.into_iter().filter_map(|mode| Some((name(mode), value(mode)? as usize))).collect()
    };
    let modes = of_modes(|mode| format!("MODE_{}", mode.name().to_uppercase()), Mode::number);
    define(
        "Modes of `Tile`: the assumptions of a kernel's compiler about planes (kernels/src/mode.rs).",
        &pairs(&modes),
    );
    let threads = [("BLOCK_THREADS", BLOCK_THREADS as usize), ("HALF_BLOCK_THREADS", HALF_BLOCK_THREADS as usize)];
    define("Threads of the largest block of a kernel with 64 registers per thread, and with twice as many.", &threads);
    let mainloop =
        of_modes(|mode| format!("MAINLOOP_THREADS_{}", mode.name()), |mode| mode.multiplying_threads(Variant::One));
    define("Threads of multiplying kernels that iterate over chunks, by the mode's name.", &pairs(&mainloop));
    for s in STRUCTURES {
        text.push('\n');
        s.about.iter().take_while(|line| !line.is_empty()).for_each(|line| writeln!(text, "//{line}").unwrap());
        writeln!(text, "struct {} {{", s.name).unwrap();
        let width = s.fields.iter().map(|f| f.declaration().len()).max().unwrap_or(0);
        for f in s.fields {
            writeln!(text, "  {:width$}  //{}", f.declaration(), f.what).unwrap();
        }
        text.push_str("};\n");
    }
    text.push_str("\n// Every compiler of this text must lay the structures out as Rust does.\n");
    writeln!(text, "static_assert(TABLE_AT == {TABLE_AT}, \"differs from abi.rs\");").unwrap();
    text.push_str(LIES_AT);
    for s in STRUCTURES {
        writeln!(text, "static_assert(sizeof({}) == {}, \"differs from abi.rs\");", s.name, s.bytes).unwrap();
        s.fields
            .iter()
            .for_each(|f| writeln!(text, "LIES_AT({}, {}, {}, {})", s.name, f.name, f.offset, f.bytes).unwrap());
    }
    text.push_str("#undef LIES_AT\n");
    text
}

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/abi.h")
}

#[test]
fn the_header_is_what_this_module_gives() {
    let text = std::fs::read_to_string(place()).unwrap();
    assert!(text == header(), "write cuda/abi.h: cargo test --package wcodec-kernels abi -- --ignored");
}

#[test]
#[ignore = "writes cuda/abi.h"]
fn the_header_is_written() {
    std::fs::write(place(), header()).unwrap();
}
