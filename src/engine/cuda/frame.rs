//! A frame as it travels to the device: one block of bytes, and where its parts begin.

use super::layout;
use super::shape::FrameShape;
use crate::Result;
use crate::data::{Frame, Labels};
use crate::engine::cpu::chebyshev::Plan;
use crate::engine::cpu::frame::CpuFrame;
use crate::gpu::memory::in_the_type_of_kernels;
use crate::gpu::staging::{Staged, Staging};
use crate::gpu::{Device, DevicePtr, Numbers, Stream};
use crate::model::dp::Dp;
use crate::model::dp::geometry::{Geometry, blocks_of, list_of_block};
use crate::model::dp::options::Form;
use crate::neighbor::{Blocks, Cut};
use crate::sample::Prepared;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bits of [`HostFrame::labels`], in the order of the terms of the loss.
pub const LABEL_ENERGY: u32 = 1;
pub const LABEL_FORCE: u32 = 2;
pub const LABEL_VIRIAL: u32 = 4;
pub const LABEL_ATOM_ENERGY: u32 = 8;
pub const LABEL_ATOM_PREF: u32 = 16;
pub const LABEL_OUTPUT: u32 = 32;
pub const LABEL_ATOM_OUTPUT: u32 = 64;

/// The bits of the labels that a frame has.
pub fn labels_of(labels: &Labels) -> u32 {
    let bits = [
        (labels.energy.is_some(), LABEL_ENERGY),
        (labels.force.is_some(), LABEL_FORCE),
        (labels.virial.is_some(), LABEL_VIRIAL),
        (labels.atom_energy.is_some(), LABEL_ATOM_ENERGY),
        (labels.atom_pref.is_some(), LABEL_ATOM_PREF),
        (labels.output.is_some(), LABEL_OUTPUT),
        (labels.atom_output.is_some(), LABEL_ATOM_OUTPUT),
    ];
    bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum()
}

/// A frame with its geometry and labels, ready to be copied.
pub struct HostFrame {
    /// All arrays, each from a multiple of 16 bytes on.
    blob: Blob,
    pub facts: Arc<Facts>,
}

/// Where the arrays are.
enum Blob {
    /// In ordinary memory.
    Plain(Vec<u8>),
    /// In memory from which the device copies by itself.
    Staged(Staged),
}

/// What the host must know of a frame that is on the device.
#[derive(Clone)]
pub struct Facts {
    /// Where arrays begin in the block; absent ones have no place.
    parts: Parts,
    header: layout::Frame,
    pub shape: FrameShape,
    /// Equal for frames of the same shape.
    pub shape_hash: u128,
    /// Smallest and largest argument of the nets.
    pub s_range: (f64, f64),
    pub labels: u32,
    /// `[n_atoms]` false for virtual atoms.
    real: Vec<bool>,
    /// Numbers of env.
    components: usize,
}

/// Empty slots of all rows and types and, behind them, slots of excluded neighbours where these count.
fn still_slots(model: &Dp, frame: &CpuFrame<f64>) -> Vec<u32> {
    let mut slots = frame.padding.clone();
    if matches!(model.descriptor().form(), Form::Distances { .. }) {
        slots.extend(&frame.left_out);
        slots.resize(2 * frame.padding.len(), 0);
    }
    slots
}

/// Atoms of each type in the block that has most of them.
fn most_of_type(blocks: &Blocks, frame: &Frame, n_types: usize) -> Vec<u32> {
    let mut most = vec![0; n_types];
    for block in 0..blocks.n_blocks() {
        let mut counts = vec![0; n_types];
        blocks.atoms(block).for_each(|i| counts[frame.types[i] as usize] += 1);
        most.iter_mut().zip(counts).for_each(|(most, n)| *most = n.max(*most));
    }
    most
}

#[derive(Clone, Default)]
struct Parts {
    d: usize,
    j: usize,
    pair_start: usize,
    padding: usize,
    reverse_start: usize,
    reverse: usize,
    order: usize,
    extra: usize,
    block: usize,
    force: Option<usize>,
    atom_energy: Option<usize>,
    atom_pref: Option<usize>,
    atom_coeff: Option<usize>,
    is_real: Option<usize>,
}

struct Packer {
    blob: Vec<u8>,
    numbers: Numbers,
}

impl Packer {
    fn align(&mut self) -> usize {
        self.blob.resize(self.blob.len().next_multiple_of(16), 0);
        self.blob.len()
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let at = self.align();
        self.blob.extend_from_slice(bytes);
        at
    }

    fn whole(&mut self, values: &[u32]) -> usize {
        self.put(values.as_bytes())
    }

    fn double(&mut self, values: &[f64]) -> usize {
        self.put(values.as_bytes())
    }

    /// In the number type of the kernels.
    fn real(&mut self, values: &[f64]) -> usize {
        let bytes = in_the_type_of_kernels(values, self.numbers);
        self.put(&bytes)
    }
}

impl HostFrame {
    /// Lists neighbours, sorts and packs.
    pub fn new(model: &Dp, frame: &Frame, numbers: Numbers) -> Result<Self> {
        Ok(Self::pack(model, frame, &Geometry::new(model, frame)?, numbers, None))
    }

    /// As [`HostFrame::new`] with the atoms of one block as rows, where the frame is cut.
    pub fn of_part(model: &Dp, frame: &Frame, numbers: Numbers, cut: Cut) -> Result<Self> {
        if cut.parts == 1 {
            return Self::new(model, frame, numbers);
        }
        let blocks = blocks_of(model, frame, cut.parts)?;
        let mut geometry = Geometry::default();
        geometry.fill_from(model, frame, &list_of_block(model, frame, &blocks, cut.part))?;
        let most = most_of_type(&blocks, frame, model.n_types());
        Ok(Self::pack(model, frame, &geometry, numbers, Some(most)))
    }

    /// `most`: for a block, see [`FrameShape`].
    fn pack(
        model: &Dp,
        frame: &Frame,
        geometry: &Geometry,
        numbers: Numbers,
        most: Option<Vec<u32>>,
    ) -> Self {
        let sorted = CpuFrame::<f64>::new(model, geometry);
        let mut packer = Packer { blob: Vec::new(), numbers };
        let labels = &frame.labels;
        let real: Vec<bool> = frame.types.iter().map(|&t| t >= 0).collect();
        let n_real = real.iter().filter(|&&real| real).count();
        let flags = || real.iter().map(|&real| u32::from(real)).collect::<Vec<_>>();
        let block: Vec<u32> = sorted.block.iter().map(|&x| x as u32).collect();
        let parts = Parts {
            d: packer.real(&sorted.d.concat()),
            j: packer.whole(&sorted.j),
            pair_start: packer.whole(&sorted.pair_start),
            padding: packer.whole(&still_slots(model, &sorted)),
            reverse_start: packer.whole(&sorted.reverse_start),
            reverse: packer.whole(&sorted.reverse),
            order: packer.whole(&sorted.order),
            extra: packer.real(&sorted.extra),
            block: packer.whole(&block),
            force: labels.force.as_deref().map(|x| packer.double(x)),
            atom_energy: labels.atom_energy.as_deref().map(|x| packer.double(x)),
            atom_pref: labels.atom_pref.as_deref().map(|x| packer.double(x)),
            atom_coeff: labels.atom_ener_coeff.as_deref().map(|x| packer.double(x)),
            is_real: most.as_ref().map(|_| packer.whole(&flags())),
        };
        let labels_bits = labels_of(labels);
        packer.align();
        let header = layout::Frame {
            energy: labels.energy.unwrap_or(0.0),
            virial: labels.virial.unwrap_or_default(),
            // In float32 as in loss/ener.rs, so that the digits agree.
            per_atom: f64::from(1.0 / n_real as f32),
            n_atoms: sorted.n_atoms as u32,
            n_rows: sorted.n_rows() as u32,
            n_pairs: sorted.j.len() as u32,
            labels: labels_bits,
            ..Default::default()
        };
        let words = [&block[..], &[sorted.n_atoms as u32]].concat();
        let facts = Arc::new(Facts {
            shape_hash: xxhash_rust::xxh3::xxh3_128(words.as_bytes()),
            parts,
            header,
            shape: FrameShape { n_atoms: sorted.n_atoms, block, n_real: n_real as u32, most },
            s_range: if sorted.n_rows() == 0 { (f64::INFINITY, f64::NEG_INFINITY) } else { sorted.s_range },
            labels: labels_bits,
            real,
            components: model.descriptor().form().components(),
        });
        HostFrame { blob: Blob::Plain(packer.blob), facts }
    }

    /// From now on the arguments of its nets are said to reach so far.
    pub fn reach(&mut self, s_range: (f64, f64)) {
        self.facts = Arc::new(Facts { s_range, ..Facts::clone(&self.facts) });
    }

    /// A copy in page-locked memory.
    pub fn staged(&self, staging: &Arc<Staging>) -> Result<Self> {
        // SAFETY: copied by the host, now.
        let staged = staging.stage(unsafe { self.bytes() })?;
        Ok(HostFrame { blob: Blob::Staged(staged), facts: self.facts.clone() })
    }

    pub fn is_staged(&self) -> bool {
        matches!(self.blob, Blob::Staged(_))
    }

    /// Bytes of all arrays.
    pub fn size(&self) -> usize {
        match &self.blob {
            Blob::Plain(bytes) => bytes.len(),
            Blob::Staged(staged) => staged.size(),
        }
    }

    /// All arrays.
    ///
    /// # Safety
    ///
    /// Where [`HostFrame::is_staged`], a copy of them to the device must have ended before this frame is dropped.
    unsafe fn bytes(&self) -> &[u8] {
        match &self.blob {
            Blob::Plain(bytes) => bytes,
            // SAFETY: the caller's word.
            Blob::Staged(staged) => unsafe { staged.bytes() },
        }
    }

    /// Copies all arrays to the device, in the order of a stream.
    ///
    /// # Safety
    ///
    /// There is room for them at `to`. Where [`HostFrame::is_staged`], this frame is kept until the stream has passed this point.
    pub unsafe fn copy_to(&self, device: &Device, stream: Stream, to: DevicePtr) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { device.copy_to(stream, to, self.bytes(), "copy a frame to the GPU") }
    }
}

impl Facts {
    pub fn n_rows(&self) -> usize {
        self.header.n_rows as usize
    }

    /// True where a series holds for all arguments of this frame.
    pub fn covered_by(&self, plan: &Plan) -> bool {
        let (low, high) = self.s_range;
        low > high || plan.covers(low, high)
    }

    /// Pairs of all rows.
    pub fn n_pairs(&self) -> usize {
        self.header.n_pairs as usize
    }

    /// `[n_atoms]` false for virtual atoms.
    pub fn real_atoms(&self) -> &[bool] {
        &self.real
    }

    /// Bytes of its features for the series of a plan, and of how its pairs are cut into panels, which stands behind them.
    pub fn feature_bytes(&self, plan: &Plan, numbers: Numbers) -> [usize; 2] {
        let features =
            (self.n_rows() * self.components * plan.columns() * numbers.size()).next_multiple_of(16);
        [features, 4 * (self.n_rows() * plan.panels().len() + 1)]
    }

    /// The structure of the kernels for a block that lies at `blob`, with features at `q` and cuts behind their `bytes`.
    pub fn entry(&self, blob: DevicePtr, q: DevicePtr, bytes: usize) -> layout::Frame {
        let at = |offset: usize| blob + offset as u64;
        let maybe = |offset: Option<usize>| offset.map_or(0, at);
        let p = &self.parts;
        layout::Frame {
            q,
            panel_start: q + bytes as u64,
            d: at(p.d),
            j: at(p.j),
            pair_start: at(p.pair_start),
            padding: at(p.padding),
            reverse_start: at(p.reverse_start),
            reverse: at(p.reverse),
            order: at(p.order),
            extra: at(p.extra),
            force: maybe(p.force),
            atom_energy: maybe(p.atom_energy),
            atom_pref: maybe(p.atom_pref),
            atom_coeff: maybe(p.atom_coeff),
            is_real: maybe(p.is_real),
            ..self.header
        }
    }

    /// Where the rows of each type stand, for a block that lies at `blob`.
    pub fn block_at(&self, blob: DevicePtr) -> DevicePtr {
        blob + self.parts.block as u64
    }
}

impl Prepared for HostFrame {
    fn bytes(&self) -> usize {
        self.size() + size_of::<Self>()
    }
}
