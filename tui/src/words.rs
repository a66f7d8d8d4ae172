//! Enums whose variants have a word and a sentence each, said once: for the command line, the screen and the documentation.

macro_rules! worded {
    ($(#[$meta:meta])* $name:ident { $($(#[$attr:meta])* $variant:ident = $word:literal, $about:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = $about] $(#[$attr])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// The word for it.
            pub fn name(self) -> &'static str {
                [$($word),*][self as usize]
            }

            /// The next one, around, or the one before.
            pub fn next(self, back: bool) -> Self {
                crate::keymap::around(&Self::ALL, self, back)
            }

            /// A sentence on it.
            pub fn about(self) -> &'static str {
                [$($about),*][self as usize]
            }
        }
    };
}
