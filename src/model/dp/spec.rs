//! placeholder

/// Statistics of the data that the model is normalised with.
#[derive(Debug, Clone, PartialEq)]
pub struct DpStatistics {
    pub davg: Vec<[f64; 4]>,
    pub dstd: Vec<[f64; 4]>,
    pub bias: Vec<f64>,
    pub out_std: Vec<f64>,
    pub fparam_avg: Vec<f64>,
    pub fparam_inv_std: Vec<f64>,
    pub aparam_avg: Vec<f64>,
    pub aparam_inv_std: Vec<f64>,
}
