//! What a run tells: log lines, progress, lcurve.out, TensorBoard, where the time went.
//!
//! Formats follow DeePMD-kit 3.2.0, because its users' scripts read them.

pub mod number; // C's %e, which Rust does not have
pub mod log; // the back end of the `log` crate: console, file, ranks
pub mod progress; // the bar on a terminal
pub mod lcurve; // lcurve.out
pub mod timing; // wall time, eta and the average of a run
pub mod messages; // the sentences of a run
pub mod record; // records with checksums, and the messages inside
pub mod tensorboard; // event files, written
pub mod events; // event files, read
pub mod profile; // spans, the table at the end, the timeline
pub mod dashboard; // a page in the browser while a run goes on
