//! What a model is: its options, parameters, statistics and networks.

pub mod activation;
pub mod electrons;
pub mod params;
pub mod net;
pub mod dp;
pub mod pinet;
