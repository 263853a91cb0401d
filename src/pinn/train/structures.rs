//! Structures as the loop uses them: prepared once, with their labels, in batches of a fixed size or as stored.

use crate::engine::pinet::PinetFrame;
use crate::error::Result;
use crate::loss::pinn::{PinnLabels, PinnLoss};
use crate::model::pinet::PinetModel;
use crate::pinn::data::{Sample, Source};
use crate::sample::{FrameId, Prepared};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A prepared structure and what the loss compares it with.
pub struct Structure {
    pub frame: PinetFrame,
    pub labels: PinnLabels,
}

/// What one draw of the queue brings: one structure, or those that were stored together as a batch.
pub struct Structures(pub Vec<Structure>);

impl Prepared for Structures {
    fn bytes(&self) -> usize {
        let of = |s: &Structure| {
            let lists = [&s.labels.force, &s.labels.f_weights];
            Prepared::bytes(&s.frame) + 8 * lists.into_iter().flatten().map(Vec::len).sum::<usize>()
        };
        self.0.iter().map(of).sum()
    }
}

/// The engine needs nothing beyond [`Structures`].
pub struct Nothing;

impl Prepared for Nothing {
    fn bytes(&self) -> usize {
        0
    }
}

/// A data set in units of draws.
#[derive(Clone)]
pub struct Batches {
    source: Arc<dyn Source>,
    model: Arc<PinetModel>,
    loss: Arc<PinnLoss>,
    /// Structures of a batch; `None`: batches as they are stored.
    size: Option<usize>,
}

impl Batches {
    /// `size` structures a batch; `None` where the data set is stored in batches.
    pub fn new(
        source: Arc<dyn Source>,
        model: Arc<PinetModel>,
        loss: Arc<PinnLoss>,
        size: Option<usize>,
    ) -> Result<Self> {
        if size.is_none() && source.batches().is_none() {
            return Err(crate::err!(
                "{}: structures are stored one by one, and no batch size was given",
                source.place()
            )
            .help("give the number of structures of a batch with -b, e.g. -b 10"));
        }
        Ok(Batches { source, model, loss, size })
    }

    /// Units that a sampler draws, and how many make a batch.
    pub fn units(&self) -> (usize, usize) {
        match (self.size, self.source.batches()) {
            (Some(size), _) => (self.source.len(), size),
            (None, stored) => (stored.map_or(0, <[_]>::len), 1),
        }
    }

    /// Batches in the order of the data set.
    pub fn n_batches(&self) -> usize {
        let (units, each) = self.units();
        units.div_ceil(each)
    }

    /// The `k`-th batch in the order of the data set.
    pub fn batch(&self, k: usize) -> Result<Vec<Structure>> {
        let (units, each) = self.units();
        let mut all = Vec::new();
        for unit in k * each..units.min((k + 1) * each) {
            all.extend(self.load(FrameId { system: 0, frame: unit })?.0);
        }
        Ok(all)
    }

    /// One unit.
    pub fn load(&self, id: FrameId) -> Result<Structures> {
        let range = match (self.size, self.source.batches()) {
            (None, Some(stored)) => stored[id.frame].clone(),
            _ => id.frame..id.frame + 1,
        };
        range.map(|index| self.structure(index)).collect::<Result<_>>().map(Structures)
    }

    /// Elements that the network does not know have no properties of their own. Each is told once.
    fn warn_about_elements(&self, sample: &Sample) {
        static TOLD: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
        let known = &self.model.options.atom_types;
        for &element in sample.elems.iter().filter(|element| !known.contains(element)) {
            if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(element) {
                log::warn!(
                    "{}: element {element} is not among atom_types {known:?} of params.yml: the network cannot tell it from \
                     others that are not",
                    self.source.place()
                );
            }
        }
    }

    fn structure(&self, index: usize) -> Result<Structure> {
        let sample = self.source.read(index)?;
        self.warn_about_elements(&sample);
        let prepare = || -> Result<Structure> {
            let cell = sample.cell.map(|rows| std::array::from_fn(|k| rows[k / 3][k % 3]));
            let frame = PinetFrame::new(&self.model, &sample.elems, sample.coord.as_flattened(), cell)?;
            let labels = labels_of(&sample);
            self.loss.require(&frame, &labels)?;
            Ok(Structure { frame, labels })
        };
        prepare().map_err(|e| e.at(format!("{}: structure {index}", self.source.place())))
    }
}

fn labels_of(sample: &Sample) -> PinnLabels {
    PinnLabels {
        energy: sample.e_data,
        force: sample.f_data.as_ref().map(|f| f.as_flattened().to_vec()),
        stress: sample.s_data.map(|rows| std::array::from_fn(|k| rows[k / 3][k % 3])),
        dipole: sample.d_data.map(|d| d.length()),
        e_weight: sample.e_weight,
        f_weights: sample.f_weights.as_ref().map(|f| f.as_flattened().to_vec()),
        d_weight: sample.d_weight,
    }
}
