//! Evaluation by itself: a model on a GPU that is only used, for atoms whose neighbours somebody has listed.
//!
//! Positions go up, forces come down. Who is near is found on the device from positions and list ([`listing`]), some rows at a time
//! ([`chunk`]), so that memory follows the atoms. Weights and coefficients of the embedding series are made once. The second
//! evaluation of the same arrangement is recorded, all others are replayed.

mod chunk;
mod fold;
mod listing;
#[cfg(test)]
mod tests;

use super::core::{Core, Terms};
use super::layout::{Checks, Listed};
use super::program::{END_EVALUATION, EVALUATION};
use crate::engine::Evaluation;
use crate::engine::cpu::chebyshev::Plan;
use crate::engine::cpu::frame::empty_slot;
use crate::engine::cpu::net::{self, NetTrace};
use crate::engine::reference::env;
use crate::gpu::{Buffer, Device, Graph, Launch, Real};
use crate::model::dp::Dp;
use crate::neighbor::Domain;
use crate::{Result, bail};
use chunk::{Chunk, Net, Work};
use fold::Fold;
use listing::Listing;
use std::sync::Arc;
use std::time::Instant;

/// Rows that are worked on at a time, unless there is too little memory: enough for every kernel to run at its best.
const CHUNK_ROWS: usize = 49_152;
/// Part of the free memory that intermediate results may take.
const PART_OF_FREE: f64 = 0.6;
/// Numbers of an evaluation beside those of atoms: virial, energy, what was checked.
const SUMMARY: usize = 16;
/// Pairs that may add to the force of one atom.
const MOST_SUMMANDS: f64 = 1024.0;
/// Units of forces, 1 / (eV/A): those of a stable simulation, and those that are left for one that is not.
const SCALES: [f64; 2] = [(1u64 << 42) as f64, (1u64 << 20) as f64];
/// Blocks of the last kernel on each multiprocessor.
const END_BLOCKS: usize = 4;

/// Where the time of an evaluation goes, s.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    pub list: f64,
    pub upload: f64,
    pub kernels: f64,
    pub download: f64,
}

/// Tables of the model that do not change with atoms or series.
struct Tables {
    sel: Buffer<u32>,
    excluded: Buffer<u32>,
    bias: Buffer<f64>,
}

/// Tables of the series in force.
struct SeriesTables {
    /// `[n_types]` squares of the distances below which the series does not hold.
    closest: Buffer<f64>,
    /// `[n_types + 1, columns]` see [`Listed`].
    empty: Buffer<Real>,
}

/// A model on a GPU that is only used.
pub struct Evaluator {
    core: Core,
    params: Vec<f64>,
    fold: Fold,
    tables: Tables,
    series: SeriesTables,
    chunk_rows: usize,
    records: bool,
    listing: Listing,
    work: Work,
    chunks: Vec<Chunk>,
    checks: Buffer<Checks>,
    graph: Option<Graph>,
    /// Evaluations since the arrangement changed, with or without virials of atoms.
    runs: (usize, bool),
    /// Where time goes is measured, which makes an evaluation wait between its parts.
    pub measures: bool,
    pub times: Times,
}

impl Evaluator {
    /// Whether it knows what this model has beside one descriptor with a series.
    pub fn takes(model: &Dp) -> bool {
        let takes_off_energies = (0..model.n_types()).any(|t| model.removes_vacuum(t));
        model.options.pair_exclude_types.is_empty() && !(model.n_extra() > 0 && takes_off_energies)
    }

    /// For a model that it [takes](Evaluator::takes). The series reaches down to `min_distance`, A; `None` where no series describes the
    /// embedding nets.
    pub fn new(
        device: &Arc<Device>,
        model: &Arc<Dp>,
        params: &[f64],
        min_distance: f64,
    ) -> Result<Option<Self>> {
        let mut core = Core::new(device, model, min_distance, 1, Terms { loss: None, virial: true })?;
        core.set_params(params)?;
        core.adapt_if_needed(params)?;
        let Some(plan) = core.plan() else { return Ok(None) };
        EVALUATION.iter().for_each(|kernel| device.foresee(kernel));
        Ok(Some(Evaluator {
            fold: Fold::new(&core.network, params)?,
            tables: Tables::new(device, model, params)?,
            series: SeriesTables::new(device, model, plan)?,
            chunk_rows: CHUNK_ROWS,
            records: std::env::var("PHALANX_GRAPHS").map_or(true, |value| value != "0"),
            listing: Listing::default(),
            work: Work::default(),
            chunks: Vec::new(),
            checks: Buffer::of(device, &[Checks { closest: u64::MAX >> 1, ..Default::default() }], "tables")?,
            graph: None,
            runs: (0, false),
            params: params.to_vec(),
            measures: false,
            times: Times::default(),
            core,
        }))
    }

    /// Works on at most so many rows at a time.
    pub fn with_chunk_rows(mut self, rows: usize) -> Self {
        self.chunk_rows = rows.max(1);
        self
    }

    /// The plan of the series in force.
    pub fn plan(&self) -> Option<&Plan> {
        self.core.plan()
    }

    /// Evaluates a domain; false where atoms are so close that no series describes the nets there: nothing is found then.
    ///
    /// - extra  `[n_local, n_extra]` normalised frame and atom parameters
    /// - same   the list is that of the last call, and so are the types: only positions have changed
    ///
    /// Takes all threads of the rayon pool that this is called from.
    pub fn evaluate(
        &mut self,
        out: &mut Evaluation,
        domain: &Domain,
        extra: &[f64],
        same: bool,
        atom_virial: bool,
    ) -> Result<bool> {
        self.core.device.bind()?;
        let began = Instant::now();
        if !(same && self.listing.is_of(domain)) {
            self.list(domain)?;
        }
        if self.listing.n_rows() == 0 {
            *out = Evaluation::zeros(domain.n_atoms(), atom_virial);
            return Ok(true);
        }
        self.arrange(extra, atom_virial)?;
        self.times.list = began.elapsed().as_secs_f64();
        self.upload(domain, extra)?;
        loop {
            let summary = self.run(SCALES[0], atom_virial)?;
            if summary.closest < f64::INFINITY {
                if !self.reach(summary.closest.sqrt())? {
                    return Ok(false);
                }
                self.arrange(extra, atom_virial)?;
                continue;
            }
            if summary.too_large {
                // Forces that no simulation survives: with coarser units.
                let summary = self.run(SCALES[1], atom_virial)?;
                if summary.too_large {
                    bail!("forces are no numbers, or too large for any: atoms are too close to each other");
                }
                summary.write(out);
            } else {
                summary.write(out);
            }
            let began = Instant::now();
            self.listing.results(out, atom_virial)?;
            self.times.download += began.elapsed().as_secs_f64();
            return Ok(true);
        }
    }

    /// Takes another list of neighbours.
    fn list(&mut self, domain: &Domain) -> Result<()> {
        self.listing.take(&self.core.device, domain, self.core.model.n_types())
    }

    /// Memory and launches for the atoms that are listed; nothing where they are as before.
    fn arrange(&mut self, extra: &[f64], atom_virial: bool) -> Result<()> {
        let Some(series) = self.core.series_on_device() else { bail!("there is no series") };
        let (network, constants) = (&self.core.network, *self.core.constants());
        let net = Net { network, series, fold: &self.fold };
        if self.listing.want_atom_virial(&self.core.device, atom_virial)? {
            self.runs = (0, atom_virial);
        }
        let n_rows = self.listing.n_rows();
        let each = chunk::row_bytes(&net);
        let free = (self.core.device.memory()?.0 + self.work.bytes()) as f64 * PART_OF_FREE;
        let rows = self.chunk_rows.min((free / each as f64) as usize).max(WARP_ROWS).min(n_rows.max(1));
        self.work.make_room(&net, rows, n_rows, extra.len())?;
        let base = self.listed(series.embedding.first_panel);
        let chunks = chunk::arrange(&net, &self.work, &self.listing, constants, base, rows);
        if !chunk::same(&self.chunks, &chunks) {
            self.graph = None;
            self.runs.0 = 0;
            self.work.place(network, chunks, &mut self.chunks)?;
        }
        if self.runs.1 != atom_virial {
            self.graph = None;
            self.runs = (0, atom_virial);
        }
        Ok(())
    }

    /// What all chunks share.
    fn listed(&self, first_panel: u64) -> Listed {
        let (model, listing) = (&self.core.model, &self.listing);
        let rcut = model.descriptor().rcut;
        Listed {
            sel: self.tables.sel.address(),
            excluded: self.tables.excluded.address(),
            bias: self.tables.bias.address(),
            closest: self.series.closest.address(),
            empty: self.series.empty.address(),
            checks: self.checks.address(),
            first_panel,
            rcut2: rcut * rcut,
            scale: SCALES[0],
            limit: (1u64 << 62) as f64 / MOST_SUMMANDS,
            n_sel: model.n_sel() as i32,
            ..listing.addresses()
        }
    }

    /// Copies positions and extra inputs to the device.
    fn upload(&mut self, domain: &Domain, extra: &[f64]) -> Result<()> {
        let began = Instant::now();
        self.listing.upload(&self.core.device, domain)?;
        self.work.upload_extra(&self.core.device, &self.listing, extra, self.core.model.n_extra())?;
        if self.measures {
            self.core.device.synchronize()?;
        }
        self.times.upload = began.elapsed().as_secs_f64();
        Ok(())
    }

    /// All kernels, and the copy of what they found.
    fn run(&mut self, scale: f64, atom_virial: bool) -> Result<Summary> {
        let began = Instant::now();
        let usual = scale == SCALES[0];
        if self.records && usual && self.runs.0 == 1 {
            let graph = Graph::record(&self.core.device, || self.start(scale))?;
            self.graph = Some(graph);
        }
        match self.graph.as_ref().filter(|_| usual) {
            // SAFETY: whatever changes the memory of the chunks forgets the graph.
            Some(graph) => unsafe { graph.launch()? },
            None => self.start(scale)?,
        }
        if usual {
            self.runs.0 += 1;
        }
        if self.measures {
            self.core.device.synchronize()?;
        }
        self.times.kernels = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let summary = Summary::of(self.listing.download(&self.core.device, atom_virial)?);
        self.times.download = began.elapsed().as_secs_f64();
        Ok(summary)
    }

    /// Starts all kernels.
    fn start(&self, scale: f64) -> Result<()> {
        for chunk in &self.chunks {
            // SAFETY: the memory of the chunks is kept as long as they are.
            unsafe { chunk.start(&self.core.device, scale)? };
        }
        let Some(last) = self.chunks.last() else { return Ok(()) };
        let e = Listed { scale, ..last.listed };
        let [force, virial, found] = self.listing.result_pointers();
        let device = &self.core.device;
        let launch = Launch::new((END_BLOCKS * device.multiprocessors).max(SUMMARY), 256);
        // SAFETY: results have room for all atoms.
        unsafe { END_EVALUATION.launch(device, device.stream(), launch, (e, force, virial, found)) }
    }

    /// Makes the series reach down to a distance, A; false where none does.
    fn reach(&mut self, r: f64) -> Result<bool> {
        let model = self.core.model.clone();
        let high = (0..model.n_types()).map(|c| argument(&model, c, r)).fold(f64::NEG_INFINITY, f64::max);
        if !high.is_finite() || !self.core.reach(high, &self.params)? {
            return Ok(false);
        }
        self.core.device.synchronize()?;
        let Some(plan) = self.core.plan() else { return Ok(false) };
        self.series = SeriesTables::new(&self.core.device, &model, plan)?;
        Ok(true)
    }
}

/// Rows that a block of warps works on.
const WARP_ROWS: usize = 8;

/// What an evaluation found beside the numbers of atoms.
struct Summary {
    virial: [f64; 9],
    energy: f64,
    /// Square of the shortest distance that the series does not reach; infinite where it reaches all.
    closest: f64,
    too_large: bool,
}

impl Summary {
    fn of(numbers: [f64; SUMMARY]) -> Summary {
        let closest = numbers[10];
        Summary {
            virial: std::array::from_fn(|k| numbers[k]),
            energy: numbers[9],
            closest: if closest.is_nan() || closest > 1e300 { f64::INFINITY } else { closest },
            too_large: numbers[11] != 0.0,
        }
    }

    fn write(&self, out: &mut Evaluation) {
        (out.energy, out.virial) = (self.energy, self.virial);
    }
}

/// The argument of the nets of a centre type at a distance.
fn argument(model: &Dp, center: usize, r: f64) -> f64 {
    let [s, ..] = env::radial(model.descriptor(), r);
    (s - model.stats.davg[center][0]) / model.stats.dstd[center][0]
}

impl Tables {
    fn new(device: &Arc<Device>, model: &Dp, params: &[f64]) -> Result<Tables> {
        let n_types = model.n_types();
        let sel: Vec<u32> = model.sel().iter().map(|&n| n as u32).collect();
        let pairs = &model.descriptor().exclude_types;
        let is_excluded =
            |a: usize, b: usize| pairs.iter().any(|&(x, y)| (x, y) == (a, b) || (y, x) == (a, b));
        let excluded: Vec<u32> =
            (0..n_types * n_types).map(|k| u32::from(is_excluded(k / n_types, k % n_types))).collect();
        let bias: Vec<f64> =
            (0..n_types).map(|t| model.stats.bias[t] - vacuum_energy(model, params, t)).collect();
        Ok(Tables {
            sel: Buffer::of(device, &sel, "tables")?,
            excluded: Buffer::of(device, &excluded, "tables")?,
            bias: Buffer::of(device, &bias, "tables")?,
        })
    }
}

/// What is taken off the energy of atoms of a type: that of one without neighbours.
fn vacuum_energy(model: &Dp, params: &[f64], t: usize) -> f64 {
    if !model.removes_vacuum(t) {
        return 0.0;
    }
    let mut trace = NetTrace::default();
    net::forward(&mut trace, &model.fitting[t], params, &vec![0.0; model.n_descriptor()])[0]
}

impl SeriesTables {
    fn new(device: &Arc<Device>, model: &Dp, plan: &Plan) -> Result<SeriesTables> {
        let closest: Vec<f64> = (0..model.n_types()).map(|c| closest(model, plan, c).powi(2)).collect();
        let mut empty = vec![0.0; (model.n_types() + 1) * plan.columns()];
        for (center, row) in empty.chunks_exact_mut(plan.columns()).enumerate() {
            let is_center = center < model.n_types();
            for neighbor in 0..model.n_types() {
                let (panel, s) = match is_center {
                    true => (plan.empty_panel(center, neighbor), empty_slot(model, center)),
                    false => (plan.zero_panel(neighbor), 0.0),
                };
                let angle = plan.argument(panel, s).clamp(-1.0, 1.0).acos();
                let first = model.descriptor().form().first(s);
                let terms = row[plan.columns_of(panel)].iter_mut().enumerate();
                terms.for_each(|(k, to)| *to = first * (k as f64 * angle).cos());
            }
        }
        Ok(SeriesTables {
            closest: Buffer::of(device, &closest, "tables")?,
            empty: Buffer::reals(device, &empty, "tables")?,
        })
    }
}

/// The shortest distance from a centre at which the series of a plan hold; arguments fall with the distance.
fn closest(model: &Dp, plan: &Plan, center: usize) -> f64 {
    let holds = |r: f64| {
        let s = argument(model, center, r);
        plan.covers(s, s)
    };
    let (mut low, mut high) = (0.0, model.descriptor().rcut);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if middle > 0.0 && holds(middle) { high = middle } else { low = middle }
    }
    high
}
