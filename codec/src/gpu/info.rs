//! Devices as the driver describes them.

use std::ffi::c_int;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};
use serde::Serialize;

use super::driver::{self, DriverResult};
use crate::error::Result;

/// Facts about a device that are known without using it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Number among the devices that CUDA_VISIBLE_DEVICES leaves.
    pub ordinal: usize,
    /// The maker's name of it.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: u64,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Most bytes of shared memory that a block can ask for.
    pub shared_memory_per_block: u32,
    /// Bytes of shared memory that the blocks on a multiprocessor share.
    pub shared_memory_per_multiprocessor: u32,
}

impl DeviceInfo {
    pub(super) fn read(ordinal: usize) -> Result<(sys::CUdevice, Self)> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(coded!(NO_DEVICE, "there is no GPU {ordinal}").advice(format!(
                "the last one is GPU {}; CUDA_VISIBLE_DEVICES may hide others",
                count.saturating_sub(1)
            )));
        }
        let handle = result::device::get(ordinal as c_int).named("cuDeviceGet")?;
        let attribute = |a| -> Result<u32> {
            // SAFETY: The handle is a device's.
            let value = unsafe { result::device::get_attribute(handle, a) }.named("cuDeviceGetAttribute")?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        // SAFETY: The handle is a device's.
        let memory = unsafe { result::device::total_mem(handle) }.named("cuDeviceTotalMem")? as u64;
        let info = Self {
            ordinal,
            name: result::device::get_name(handle).named("cuDeviceGetName")?,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_memory_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_memory_per_multiprocessor: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?,
        };
        Ok((handle, info))
    }

    /// Whether it can run the kernels.
    ///
    /// # Errors
    /// It is too old, with its name and what is needed.
    pub fn supported(&self) -> Result<()> {
        let oldest = wcodec_kernels::OLDEST;
        if self.compute_capability >= oldest {
            return Ok(());
        }
        let (major, minor) = self.compute_capability;
        Err(coded!(
            GPU_TOO_OLD,
            "GPU {} ({}) has compute capability {major}.{minor}, and {}.{} is needed",
            self.ordinal,
            self.name,
            oldest.0,
            oldest.1
        )
        .advice("use a GPU of the Turing generation (T4, RTX 20) or later"))
    }
}

fn device_count() -> Result<usize> {
    driver::available()?;
    Ok(usize::try_from(result::device::get_count().named("cuDeviceGetCount")?).unwrap_or(0))
}

/// Every device that the driver shows, too old ones among them. Uses none of them.
///
/// # Errors
/// As [`available`](super::available).
pub fn device_infos() -> Result<Vec<DeviceInfo>> {
    (0..device_count()?).map(|ordinal| Ok(DeviceInfo::read(ordinal)?.1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn info(compute_capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            ordinal: 1,
            name: "Tesla V100".into(),
            compute_capability,
            memory: 1 << 34,
            multiprocessors: 80,
            shared_memory_per_block: 98_304,
            shared_memory_per_multiprocessor: 98_304,
        }
    }

    #[test]
    fn old_devices_are_refused_by_name() {
        for good in [(7, 5), (8, 0), (9, 0), (12, 1)] {
            info(good).supported().unwrap();
        }
        let e = info((7, 0)).supported().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Device);
        let text = "GPU 1 (Tesla V100) has compute capability 7.0, and 7.5 is needed (";
        assert!(e.to_string().starts_with(text), "{e}");
    }

    #[test]
    fn without_a_driver_there_are_none() {
        let Err(reason) = driver::available() else { return };
        assert_eq!(device_infos().unwrap_err().to_string(), reason.to_string());
    }
}
