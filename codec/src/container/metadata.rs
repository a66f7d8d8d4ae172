//! Keys of a container's metadata that are conventions. What they say is about the whole file: what copies some of its tensors leaves them out.

/// Key of a container's metadata: the name of the file beside it that has the model's other tensors.
pub const REST_KEY: &str = "wcodec.rest";
/// Key of a container's metadata: how bits were chosen, as JSON text.
pub const PLAN_KEY: &str = "wcodec.plan";
/// Key of a container's metadata: what the model's steps and levels were calibrated on, as JSON text.
pub const CALIBRATION_KEY: &str = "wcodec.calibration";
/// Key of a container's metadata: what was measured of the file, as JSON text.
pub const QUALITY_KEY: &str = "wcodec.quality";
/// Key of a container's metadata: what is to be known of codes that it has with the scales beside them, as JSON text.
pub const QUANTIZED_KEY: &str = "wcodec.quantized";

/// Those that what has some of the tensors goes without.
pub const OF_THE_WHOLE: [&str; 3] = [REST_KEY, PLAN_KEY, QUALITY_KEY];
