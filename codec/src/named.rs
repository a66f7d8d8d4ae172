//! Enums whose variants have names in files and on the command line.

macro_rules! named {
    ($(#[$doc:meta])* $ty:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $ty { $($(#[$vdoc])* $variant),* }

        impl $ty {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name used in the index and on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The variant with this name, or an [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) error that
            /// lists the valid names.
            pub fn from_name(name: &str) -> $crate::Result<Self> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err($crate::Code::UNKNOWN_NAME.error(format!(concat!("unknown ", $what, " '{}'"), name))
                        .advice(concat!("known:", $(" ", $name),*))),
                }
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named;
