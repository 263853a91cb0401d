//! The PiNN family: its data, its parameter files, how data is split over subsets and ranks.

pub mod data; // structures with labels, and the formats they are stored in
pub mod split; // subsets of a data set, as PiNN draws them
pub mod distribute; // files over ranks
pub mod params; // params.yml of both styles
pub mod log; // tables of metrics
pub mod tensorflow; // TensorFlow's checkpoints, with PiNN's names
pub mod train; // `pinn train`
pub mod predict; // a trained network in use
