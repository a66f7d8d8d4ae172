//! The modes of the kernels that decode tiles, in one table: the names of their kernels and the threads that they are
//! compiled for. `cuda/abi.h` gets its `MODE_*` and `*_THREADS` from it, and a test compares the table with the images.

use crate::Module;
use crate::abi::{MANY_FEW_WARPS, MANY_HELPERS, MANY_MORE_HELPERS, MANY_WARPS, OutputKind};

/// Threads of the largest block of most kernels: with 64 registers per thread one such block, or two of
/// [`HALF_BLOCK_THREADS`], fill a multiprocessor.
pub const BLOCK_THREADS: u32 = 1024;
/// Threads of the largest block of kernels that have up to 128 registers per thread.
pub const HALF_BLOCK_THREADS: u32 = 512;
/// Threads of the largest block of multiplying kernels that iterate over chunks of quads: their lanes have two streams,
/// so that they need fewer warps, and more registers.
const QUAD_THREADS: u32 = 768;
/// Threads of the largest block of kernels of many vectors.
const MANY_THREADS: u32 = 32 * (MANY_WARPS + MANY_HELPERS) as u32;
/// Those that kernels of up to 8 of them are compiled for: they have fewer registers, so that small blocks share a multiprocessor.
const SHARING_THREADS: u32 = 768;
/// Those of kernels of up to 128, which have more.
const FEW_THREADS: u32 = 32 * (MANY_FEW_WARPS + MANY_MORE_HELPERS) as u32;

/// The types of decoded elements, without the symbols themselves.
const FLOATS: &[OutputKind] = &[OutputKind::F16, OutputKind::BF16, OutputKind::F32];

/// A mode's kernels.
struct Row {
    /// The part of their names.
    name: &'static str,
    /// `MODE_*`, the template argument of `Tile`; `None` for kernels of other tiles.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the header that tests write and compare"))]
    number: Option<u32>,
    /// The coders that have them.
    coders: &'static [Module],
    /// The outputs that have a decoding kernel each; none if one kernel is for all.
    outputs: &'static [OutputKind],
    /// The mode whose kernels look rows up.
    lookup: &'static str,
    /// Threads of the largest block of the multiplying kernels that iterate over chunks; `None` if nothing multiplies.
    mainloop: Option<u32>,
    /// Threads of the largest block of the kernels of many vectors; `None` if there are none.
    many: Option<u32>,
}

const BOTH: &[Module] = &[Module::Rans, Module::Huffman];
/// Most modes' row: kernels of `Tile` for all outputs.
const TILE: Row = Row {
    name: "",
    number: None,
    coders: BOTH,
    outputs: &OutputKind::ALL,
    lookup: "general",
    mainloop: None,
    many: None,
};
/// Layout `quad`, which only coder `huffman` supports.
const QUAD: Row = Row { coders: &[Module::Huffman], mainloop: Some(QUAD_THREADS), many: Some(MANY_THREADS), ..TILE };
const JOINED: Row = Row { lookup: "fields", ..TILE };

macro_rules! modes {
    ($($(#[doc = $about:literal])* $mode:ident: $row:expr,)*) => {
        /// The assumptions of a kernel's compiler about the planes that the kernel decodes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Mode {
            $($(#[doc = $about])* $mode,)*
        }

        impl Mode {
            /// Every mode.
            pub const ALL: [Self; [$(stringify!($mode)),*].len()] = [$(Self::$mode),*];

            const fn row(self) -> &'static Row {
                match self {
                    $(Self::$mode => const { &$row },)*
                }
            }
        }
    };
}

modes! {
    /// Layout `byte`, tables of 12 bits, no filter, scales as in scheme `int8`.
    Byte: Row { name: "byte", number: Some(0), ..TILE },
    /// Layout `pair` with shift 3, tables of 12 bits, no filter, scales as in scheme `int8`.
    Pair: Row { name: "pair", number: Some(1), mainloop: Some(BLOCK_THREADS), ..TILE },
    /// Layout `pair` with smaller shifts, no filter.
    Low: Row { name: "low", number: Some(3), mainloop: Some(BLOCK_THREADS), ..TILE },
    /// Layout `pair` with smaller shifts, filter `trellis`.
    Trellis: Row { name: "trellis", number: Some(4), mainloop: Some(BLOCK_THREADS), ..TILE },
    /// Layout `quad`, no filter.
    Quad: Row { name: "quad", lookup: "quad", ..QUAD },
    /// Layout `quad`, filter `trellis`.
    QuadTrellis: Row { name: "quadtrellis", lookup: "quadtrellis", ..QUAD },
    /// Any layout that is not `quad`, shift, table and filter; elements are symbols.
    General: Row { name: "general", number: Some(2), ..TILE },
    /// Layout `split` of elements whose bits are those of common floats, tables of 12 bits.
    Split: Row { name: "split", outputs: FLOATS, ..JOINED },
    /// Any plane whose symbols are joined with other bits of elements.
    Fields: Row { name: "fields", outputs: &[], ..JOINED },
}

/// The multiplying kernels of a mode: for how many vectors, and whether the first chunk of each warp is decoded before
/// the vectors are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// One vector.
    One,
    /// One vector, decoded early.
    OneEarly,
    /// Up to eight vectors.
    Eight,
    /// Up to eight vectors, decoded early.
    EightEarly,
    /// Up to sixteen vectors.
    Sixteen,
    /// Up to eight vectors, by a kernel of many vectors.
    Many8,
    /// Up to sixteen vectors, by a kernel of many vectors.
    Many16,
    /// Up to 32 vectors, by a kernel of many vectors.
    Many32,
    /// Up to 64 vectors, by a kernel of many vectors.
    Many64,
    /// Up to 128 vectors, by a kernel of many vectors.
    Many128,
    /// Up to eight vectors for each routed expert, by a kernel of many vectors.
    Routed8,
    /// Up to 32 vectors for each routed expert, by a kernel of many vectors.
    Routed32,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Self; 12] = [
        Self::One,
        Self::OneEarly,
        Self::Eight,
        Self::EightEarly,
        Self::Sixteen,
        Self::Many8,
        Self::Many16,
        Self::Many32,
        Self::Many64,
        Self::Many128,
        Self::Routed8,
        Self::Routed32,
    ];

    /// Whether a kernel of many vectors is meant: those of layout `quad` in the module `huffmanmany`, for which cuda/many.h
    /// says how they work.
    pub fn is_many(self) -> bool {
        matches!(
            self,
            Self::Many8 | Self::Many16 | Self::Many32 | Self::Many64 | Self::Many128 | Self::Routed8 | Self::Routed32
        )
    }

    /// The last part of the kernels' names.
    fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::OneEarly => "1_early",
            Self::Eight => "8",
            Self::EightEarly => "8_early",
            Self::Sixteen => "16",
            Self::Many8 => "many8",
            Self::Many16 => "many16",
            Self::Many32 => "many32",
            Self::Many64 => "many64",
            Self::Many128 => "many128",
            Self::Routed8 => "routed8",
            Self::Routed32 => "routed32",
        }
    }
}

impl Mode {
    /// The part of its kernels' names.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// `MODE_*` of `cuda/abi.h`, for kernels of `Tile`.
    #[cfg(test)]
    pub(crate) fn number(self) -> Option<u32> {
        self.row().number
    }

    /// The coders that have planes of this mode: the modules that decode them.
    pub fn coders(self) -> &'static [Module] {
        self.row().coders
    }

    /// The types of elements that its kernels write; none if a kernel is told of each element's bits.
    pub fn outputs(self) -> &'static [OutputKind] {
        self.row().outputs
    }

    /// The kernel that decodes to `kind`, in the module of a coder.
    pub fn decoding_kernel(self, coder: Module, kind: OutputKind) -> String {
        let Row { name, outputs, .. } = self.row();
        let coder = coder.name();
        if outputs.is_empty() {
            format!("wcodec_{coder}_{name}")
        } else {
            format!("wcodec_{coder}_{name}_{}", kind.name())
        }
    }

    /// The kernel that looks up rows of planes of a coder.
    pub fn lookup_kernel(self, coder: Module) -> String {
        format!("wcodec_{}_rows_{}", coder.name(), self.row().lookup)
    }

    /// The kernel that multiplies vectors of type `kind` with planes of a coder; `None` if none does.
    pub fn multiplying_kernel(self, coder: Module, kind: OutputKind, variant: Variant) -> Option<String> {
        self.multiplying_threads(variant)?;
        Some(format!("wcodec_{}_{}_times_{}_{}", coder.name(), self.name(), kind.name(), variant.name()))
    }

    /// Threads of the largest block of that kernel.
    pub fn multiplying_threads(self, variant: Variant) -> Option<u32> {
        let Row { mainloop, many, .. } = *self.row();
        let mainloop = mainloop?;
        match variant {
            Variant::One | Variant::Eight => Some(mainloop),
            Variant::OneEarly => Some(BLOCK_THREADS),
            Variant::EightEarly | Variant::Sixteen => Some(HALF_BLOCK_THREADS),
            Variant::Many8 | Variant::Routed8 => many.map(|_| SHARING_THREADS),
            Variant::Many128 => many.map(|_| FEW_THREADS),
            Variant::Many16 | Variant::Many32 | Variant::Many64 | Variant::Routed32 => many,
        }
    }
}
