//! The place of a tensor's compressed bytes while it is decoded on a device.

use crate::named::named;

named! {
    /// The place of a tensor's compressed bytes while a decoder has it: a property of each tensor.
    Residency, "residency" {
        /// The device's memory.
        Device = "device",
        /// Pinned memory of the host, from which they are sent to the device each time.
        Host = "host",
        /// The file, from which they are read and sent each time.
        Disk = "disk",
    }
}

/// The residency of a tensor, with the byte at which the packed tensor begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In the packed tensors on the device.
    Device(usize),
    /// In the packed tensors in pinned memory.
    Host(usize),
    Disk,
}
