//! A Deep Potential model as plain data: what a model file holds, and all that a prediction needs.

use crate::model::activation::Activation;
use crate::model::dp::options::{DescriptorOptions, ModelOptions, Sel};
use crate::model::dp::short_range::PairTable;
use crate::model::dp::table::EmbeddingTable;
use crate::{Result, bail};

/// A Deep Potential model with everything that predicts: no training state.
#[derive(Debug, Clone, PartialEq)]
pub struct DpModel {
    /// `sel` is [`Sel::Fixed`] here: a model file has no room for "auto".
    pub options: ModelOptions,
    pub stats: DpStatistics,
    /// Embedding nets of one descriptor after another, from s(r) to the last entry of `neuron`. With `type_one_side` net j serves neighbours of
    /// type j. Without, net i + j * n_types serves centres of type i with neighbours of type j: the centre runs
    /// fastest. Those of se_e3 serve two neighbours of types i and j. What se_atten has is in [`DescriptorOptions::nets`].
    pub descriptor_nets: Vec<Net>,
    /// Where the model is compressed: one table for each of `descriptor_nets`, and predictions are made from these.
    pub tables: Option<Vec<EmbeddingTable>>,
    /// Fitting net t serves atoms of type t; where types are embedded, one net serves all. Inputs: descriptor, then fparam, then aparam, both normalised.
    pub fitting_nets: Vec<Net>,
    /// Smallest distance between two atoms of the training data, A. Compression of models asks for it.
    pub min_nbor_dist: Option<f64>,
    /// Where this is the plain model of one with embedded types: what training goes on with.
    pub embedded: Option<TrainedTypes>,
}

/// A model with embedded types as it is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedTypes {
    pub options: ModelOptions,
    /// Those of [`EmbeddedTypes::table`](super::type_embedding::EmbeddedTypes::table).
    pub params: Vec<f64>,
}

/// The numbers that come from statistics of the data rather than from training.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DpStatistics {
    /// Mean of the environment rows (s, s x/r, s y/r, s z/r) for each centre type, taken off each row. `[descriptors, types]`
    pub davg: Vec<[f64; 4]>,
    /// Standard deviation of the same; each row is divided by it.
    pub dstd: Vec<[f64; 4]>,
    /// `[types, width]` what is added to the output of each atom of a type; the energy, eV.
    pub bias: Vec<f64>,
    /// `[types, width]` spread of the labels for each type. Predictions of properties are multiplied by it, energies are not.
    pub out_std: Vec<f64>,
    /// Mean of each frame parameter. [numb_fparam]
    pub fparam_avg: Vec<f64>,
    /// One over the standard deviation of each frame parameter. [numb_fparam]
    pub fparam_inv_std: Vec<f64>,
    /// Mean of each atom parameter. [numb_aparam]
    pub aparam_avg: Vec<f64>,
    /// One over the standard deviation of each atom parameter. [numb_aparam]
    pub aparam_inv_std: Vec<f64>,
    /// The pair energies at short range, where the model has them ([`ModelOptions::short_range`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair_table: Option<PairTable>,
}

impl DpStatistics {
    /// Refuses what does not fit the model: another number of types or parameters, or no numbers.
    pub fn check(&self, options: &ModelOptions) -> Result<()> {
        let (n_types, fit) = (options.type_map.len(), &options.fitting);
        let n_tabulated = self.pair_table.as_ref().map(|table| table.n_types());
        if n_tabulated != options.short_range.as_ref().map(|_| n_types) {
            bail!(
                "the statistics do not fit the model: a table of pair energies (use_srtab) of {n_tabulated:?} types for {n_types} types, \
                 and the options say {:?}",
                options.short_range
            );
        }
        let n_rows = options.descriptors.list.len() * n_types;
        let n_outputs = n_types * fit.output().width;
        let lengths = [
            ("davg", self.davg.len(), n_rows, "types"),
            ("dstd", self.dstd.len(), n_rows, "types"),
            ("bias", self.bias.len(), n_outputs, "outputs of types"),
            ("out_std", self.out_std.len(), n_outputs, "outputs of types"),
            ("fparam_avg", self.fparam_avg.len(), fit.numb_fparam, "frame parameters"),
            ("fparam_inv_std", self.fparam_inv_std.len(), fit.numb_fparam, "frame parameters"),
            ("aparam_avg", self.aparam_avg.len(), fit.numb_aparam, "atom parameters"),
            ("aparam_inv_std", self.aparam_inv_std.len(), fit.numb_aparam, "atom parameters"),
        ];
        if let Some((name, found, wanted, what)) =
            lengths.iter().find(|(_, found, wanted, _)| found != wanted)
        {
            bail!(
                "the statistics do not fit the model: {name} is for {found}, the model has {wanted} {what}"
            );
        }
        let rows = self.davg.iter().chain(&self.dstd).flatten();
        let lists = [
            &self.bias,
            &self.out_std,
            &self.fparam_avg,
            &self.fparam_inv_std,
            &self.aparam_avg,
            &self.aparam_inv_std,
        ];
        if rows.chain(lists.into_iter().flatten()).any(|x| !x.is_finite()) {
            bail!("the statistics of the model hold something that is not a number");
        }
        if self.dstd.iter().flatten().any(|&x| x == 0.0) {
            bail!("the statistics of the model hold a deviation (dstd) of zero");
        }
        Ok(())
    }
}

/// A multilayer perceptron.
#[derive(Debug, Clone, PartialEq)]
pub struct Net {
    pub layers: Vec<Layer>,
}

/// y = idt * activation(x w + b), plus x where `resnet` holds and n_out = n_in, plus (x, x) where n_out = 2 n_in.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub n_in: usize,
    pub n_out: usize,
    /// [n_in, n_out], row by row.
    pub w: Vec<f64>,
    /// [n_out], or empty where the layer has no bias.
    pub b: Vec<f64>,
    /// Step of the residual branch. [n_out]
    pub idt: Option<Vec<f64>>,
    /// Asks for the skip connection; other shapes than the two above go without one.
    pub resnet: bool,
    pub activation: Activation,
}

impl DpModel {
    pub fn n_types(&self) -> usize {
        self.options.type_map.len()
    }
}

/// Where the embedding net of a pair of types stands among `DpModel::descriptor_nets`.
pub fn descriptor_net_index(type_one_side: bool, n_types: usize, centre: usize, neighbour: usize) -> usize {
    if type_one_side { neighbour } else { centre + neighbour * n_types }
}

impl DescriptorOptions {
    /// The slots of each neighbour type. Only after neighbour statistics have replaced "auto".
    pub fn fixed_sel(&self) -> &[usize] {
        match &self.sel {
            Sel::Fixed(sel) => sel,
            Sel::Auto(_) => panic!("sel = \"auto\" must be replaced by numbers before a model is made"),
        }
    }
}
