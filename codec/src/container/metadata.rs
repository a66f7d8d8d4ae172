//! Conventional keys of a container's metadata. Some describe the file as a whole: code that copies only part of the
//! tensors leaves those out.

/// Metadata key: the name of the file beside the container that has the model's other tensors.
pub const REST_KEY: &str = "wcodec.rest";
/// Metadata key: how bits were chosen, as JSON text.
pub const PLAN_KEY: &str = "wcodec.plan";
/// Metadata key: the data that the model's steps and levels were calibrated on, as JSON text.
pub const CALIBRATION_KEY: &str = "wcodec.calibration";
/// Metadata key: measurements of the file's quality, as JSON text.
pub const QUALITY_KEY: &str = "wcodec.quality";
/// Metadata key: the description of stored codes whose scales are tensors beside them, as JSON text.
pub const QUANTIZED_KEY: &str = "wcodec.quantized";

/// The keys that are left out when only part of the tensors is copied.
pub const OF_THE_WHOLE: [&str; 3] = [REST_KEY, PLAN_KEY, QUALITY_KEY];
