//! A frame as it lies on the device: one block of bytes, which begins with where its parts are. See `kernels/surroundings.cu`.

use super::graph::Lists;
use crate::Result;
use crate::data::{Frame, Labels};
use crate::engine::blend::Blend;
use crate::engine::cpu::frame::{CpuFrame, CpuFrames};
use crate::engine::cuda::frame::labels_of;
use crate::engine::cuda::layout;
use crate::gpu::memory::in_the_type_of_kernels;
use crate::gpu::{DevicePtr, Numbers};
use crate::model::dp::Dp;
use crate::sample::Prepared;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Words of the head of a frame, of each part, and of a table of pair energies, which stands as a part behind the others.
const HEAD: usize = 16;
/// The word from which on a frame says where the numbers of that table are.
const BLEND: usize = 10;

/// A frame with its neighbours and labels, ready to be copied.
pub struct PlanFrame {
    pub blob: Vec<u8>,
    pub facts: Arc<Facts>,
}

/// What the host must know of a frame that is on the device.
#[derive(Debug)]
pub struct Facts {
    /// The structure of the loss; addresses count from the beginning of the frame, and absent ones are 0.
    header: layout::Frame,
    pub n_atoms: usize,
    pub n_centers: usize,
    /// Of all descriptors.
    pub n_pairs: usize,
    pub labels: u32,
    /// Rows of each list ([`Lists`]).
    pub rows: Vec<u32>,
    /// `[n_centers]` index in the file.
    order: Vec<u32>,
}

impl Facts {
    /// The structure of the loss for a frame that lies at `at`.
    pub fn entry(&self, at: DevicePtr) -> layout::Frame {
        let moved = |offset: DevicePtr| if offset == 0 { 0 } else { at + offset };
        layout::Frame {
            order: moved(self.header.order),
            force: moved(self.header.force),
            atom_energy: moved(self.header.atom_energy),
            atom_pref: moved(self.header.atom_pref),
            atom_coeff: moved(self.header.atom_coeff),
            ..self.header
        }
    }

    /// `[n_centers]` index in the file.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// `[n_atoms]` false for atoms without an energy of their own.
    pub fn centers(&self) -> Vec<bool> {
        let mut is_center = vec![false; self.n_atoms];
        self.order.iter().for_each(|&i| is_center[i as usize] = true);
        is_center
    }
}

impl Prepared for PlanFrame {
    fn bytes(&self) -> usize {
        self.blob.len() + 4 * (self.facts.rows.len() + self.facts.order.len()) + size_of::<Facts>()
    }
}

struct Packer {
    blob: Vec<u8>,
    numbers: Numbers,
}

impl Packer {
    fn put(&mut self, bytes: &[u8]) -> u32 {
        self.blob.resize(self.blob.len().next_multiple_of(16), 0);
        let at = self.blob.len() as u32;
        self.blob.extend_from_slice(bytes);
        at
    }

    fn words(&mut self, words: &[u32]) -> u32 {
        self.put(words.as_bytes())
    }

    fn reals(&mut self, numbers: &[f64]) -> u32 {
        let bytes = in_the_type_of_kernels(numbers, self.numbers);
        self.put(&bytes)
    }

    fn doubles(&mut self, numbers: Option<&[f64]>) -> DevicePtr {
        numbers.map_or(0, |numbers| u64::from(self.put(numbers.as_bytes())))
    }
}

/// The pairs of one descriptor, group after group.
#[derive(Default)]
struct Pairs {
    d: Vec<f64>,
    types: Vec<u32>,
    center: Vec<u32>,
    neighbor: Vec<u32>,
    /// `[n_types, n_centers]`
    first: Vec<u32>,
    count: Vec<u32>,
    /// `[groups + 1]`
    groups: Vec<u32>,
}

impl Pairs {
    fn new(frame: &CpuFrame<f64>, n_types: usize, n_groups: usize) -> Self {
        let n = frame.n_rows();
        let mut pairs = Pairs {
            first: vec![0; n_types * n],
            count: vec![0; n_types * n],
            groups: vec![0; n_groups + 1],
            ..Pairs::default()
        };
        let type_of = |i: usize| frame.block.partition_point(|&first| first <= i) - 1;
        let mut add = |i: usize, t: usize| {
            let center_type = type_of(i);
            let own = frame.pairs(i, t, n_types);
            pairs.first[t * n + i] = pairs.types.len() as u32;
            pairs.count[t * n + i] = own.len() as u32;
            let types = t * n_types + center_type;
            let group = [0, t, types][usize::from(n_groups > 1) + usize::from(n_groups > n_types)];
            pairs.groups[group + 1] += own.len() as u32;
            for p in own {
                pairs.d.extend([0, 1, 2].map(|k| frame.d[k][p]));
                pairs.types.push(types as u32);
                pairs.center.push(i as u32);
                pairs.neighbor.push(frame.j[p]);
            }
        };
        // Those of a group follow each other; where there is one group, those of a centre do.
        match n_groups {
            1 => (0..n).for_each(|i| (0..n_types).for_each(|t| add(i, t))),
            _ => (0..n_types).for_each(|t| (0..n).for_each(|i| add(i, t))),
        }
        for g in 0..n_groups {
            pairs.groups[g + 1] += pairs.groups[g];
        }
        pairs
    }

    /// Rows of every group.
    fn sizes(&self) -> impl Iterator<Item = u32> {
        self.groups.windows(2).map(|ends| ends[1] - ends[0])
    }
}

/// `[n_centers, n_types, 2]` slots in which nobody is seen.
fn still_slots(model: &Dp, frame: &CpuFrame<f64>) -> Vec<f64> {
    let n_types = model.n_types();
    let mut still = vec![0.0; 2 * n_types * frame.n_rows()];
    for (k, &n) in frame.padding.iter().enumerate() {
        // Where types have slots together, the empty ones stand with type 0 and have a type of their own.
        let t = if model.descriptor().is_mixed() { frame.empty_type } else { k % n_types };
        still[2 * (k / n_types * n_types + t)] += f64::from(n);
    }
    for (k, &n) in frame.left_out.iter().enumerate() {
        still[2 * k + 1] = f64::from(n);
    }
    still
}

/// First couple of every centre within the group of its types, `[n_types^2, n_centers]`, and how many each group has.
fn couples(pairs: &Pairs, n_types: usize, n: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut first, mut sizes) = (vec![0; n_types * n_types * n], vec![0; n_types * n_types]);
    for b in 0..n_types {
        for a in 0..=b {
            let group = b * n_types + a;
            for i in 0..n {
                first[group * n + i] = sizes[group];
                sizes[group] += pairs.count[a * n + i] * pairs.count[b * n + i];
            }
        }
    }
    (first, sizes)
}

/// First couple of every centre where all its neighbours meet all, and how many there are.
fn squares(pairs: &Pairs, n_types: usize, n: usize) -> (Vec<u32>, u32) {
    let mut end = 0;
    let first = (0..n).map(|i| {
        let total: u32 = (0..n_types).map(|t| pairs.count[t * n + i]).sum();
        end += total * total;
        end - total * total
    });
    (first.collect(), end)
}

/// What a table of pair energies brings to a frame.
struct Table {
    /// `[n_centers]` its share of each centre, and what it says of it
    weight: Vec<f64>,
    energy: Vec<f64>,
    /// `[n_pairs, 3]`
    d: Vec<f64>,
    weight_d: Vec<f64>,
    energy_d: Vec<f64>,
    neighbor: Vec<u32>,
    /// `[n_types, n_centers]` all pairs of a centre stand with type 0.
    first: Vec<u32>,
    count: Vec<u32>,
}

impl Table {
    /// `size`: types times centres.
    fn new(model: &Dp, blend: &Blend, center_of: &[u32], size: usize) -> Self {
        let zeros = || vec![0.0; size / model.n_types()];
        let mut table = Table {
            weight: zeros(),
            energy: zeros(),
            d: Vec::new(),
            weight_d: Vec::new(),
            energy_d: Vec::new(),
            neighbor: Vec::new(),
            first: vec![0; size],
            count: vec![0; size],
        };
        for (atom, weight, energy, pairs) in blend.atoms(model) {
            let center = center_of[atom] as usize;
            (table.weight[center], table.energy[center]) = (weight, energy);
            (table.first[center], table.count[center]) = (table.neighbor.len() as u32, pairs.len() as u32);
            for pair in pairs {
                table.d.extend(pair.d);
                table.weight_d.extend(pair.weight_d);
                table.energy_d.extend(pair.energy_d);
                table.neighbor.push(pair.j as u32);
            }
        }
        table
    }
}

impl PlanFrame {
    /// Lists neighbours, sorts and packs; one of `parts` for each descriptor.
    pub fn new(parts: &[Arc<Dp>], lists: &Lists, frame: &Frame, numbers: Numbers) -> Result<Self> {
        let frames = CpuFrames::<f64>::prepare(parts, frame)?;
        Ok(Self::pack(parts, lists, &frames, &frame.labels, numbers))
    }

    /// Packs rows that are sorted already, without labels.
    pub fn of_rows(parts: &[Arc<Dp>], lists: &Lists, frames: &CpuFrames<f64>, numbers: Numbers) -> Self {
        Self::pack(parts, lists, frames, &Labels::default(), numbers)
    }

    /// Leaves atoms away that are neither centres nor anybody's neighbours; returns what those that remain were before.
    pub fn number_anew(frames: &mut CpuFrames<f64>) -> Vec<u32> {
        let CpuFrames { parts: frames, blend } = frames;
        let mut number = vec![u32::MAX; frames[0].n_atoms];
        let mut atoms = Vec::new();
        let mut anew = |i: &mut u32| {
            let number = &mut number[*i as usize];
            if *number == u32::MAX {
                *number = atoms.len() as u32;
                atoms.push(*i);
            }
            *i = *number;
        };
        for frame in frames.iter_mut() {
            frame.order.iter_mut().for_each(&mut anew);
            frame.j.iter_mut().for_each(&mut anew);
        }
        blend.number_anew(|atom| {
            let mut number = *atom as u32;
            anew(&mut number);
            *atom = number as usize;
        });
        frames.iter_mut().for_each(|frame| frame.n_atoms = atoms.len());
        atoms
    }

    fn pack(
        parts: &[Arc<Dp>],
        lists: &Lists,
        frames: &CpuFrames<f64>,
        labels: &Labels,
        numbers: Numbers,
    ) -> Self {
        let CpuFrames { parts: frames, blend } = frames;
        let (n_types, first) = (parts[0].n_types(), &frames[0]);
        let (n, n_atoms) = (first.n_rows(), first.n_atoms);
        let blend = parts[0].options.short_range.is_some().then_some(blend);
        let mut head = vec![0u32; HEAD * (1 + parts.len() + usize::from(blend.is_some()))];
        let mut packer = Packer { blob: vec![0; 4 * head.len()], numbers };
        let blocks: Vec<u32> = first.block.iter().map(|&k| k as u32).collect();
        let mut center_of = vec![u32::MAX; n_atoms];
        first.order.iter().enumerate().for_each(|(k, &i)| center_of[i as usize] = k as u32);

        let mut rows: Vec<u32> = match lists.atom_groups {
            1 => vec![n as u32],
            _ => blocks.windows(2).map(|ends| ends[1] - ends[0]).collect(),
        };
        let (mut neighbors, mut n_pairs) = (Vec::new(), 0);
        for (k, (part, own)) in parts.iter().zip(frames).enumerate() {
            let of = &lists.parts[k];
            let pairs = Pairs::new(own, n_types, of.groups);
            rows.extend(pairs.sizes());
            let (mut couple_first, mut square_first) = (Vec::new(), Vec::new());
            if of.couples.is_some() {
                let (first, sizes) = couples(&pairs, n_types, n);
                (couple_first, rows) = (first, [rows, sizes].concat());
            }
            if of.square.is_some() {
                let (first, size) = squares(&pairs, n_types, n);
                square_first = first;
                rows.push(size);
            }
            let words = [
                pairs.types.len() as u32,
                n_pairs,
                packer.reals(&pairs.d),
                packer.words(&pairs.types),
                packer.words(&pairs.center),
                packer.words(&pairs.neighbor),
                packer.words(&pairs.first),
                packer.words(&pairs.count),
                packer.reals(&still_slots(part, own)),
                packer.words(&square_first),
                packer.words(&couple_first),
                packer.words(&pairs.groups),
            ];
            head[HEAD * (1 + k)..][..words.len()].copy_from_slice(&words);
            n_pairs += words[0];
            neighbors.extend(pairs.neighbor);
        }
        if let Some(blend) = blend {
            let table = Table::new(&parts[0], blend, &center_of, n_types * n);
            let words = [
                table.neighbor.len() as u32,
                n_pairs,
                packer.reals(&table.d),
                0,
                0,
                packer.words(&table.neighbor),
                packer.words(&table.first),
                packer.words(&table.count),
            ];
            head[HEAD * (1 + parts.len())..][..words.len()].copy_from_slice(&words);
            let numbers = [table.weight, table.energy, table.weight_d, table.energy_d];
            let words = numbers.map(|numbers| packer.doubles(Some(&numbers)) as u32);
            head[BLEND..BLEND + words.len()].copy_from_slice(&words);
            n_pairs += table.neighbor.len() as u32;
            neighbors.extend(table.neighbor);
        }
        let (reverse_start, reverse) = reversed(&neighbors, n_atoms);
        let order = packer.words(&first.order);
        let words = [
            n as u32,
            n_atoms as u32,
            packer.words(&blocks),
            order,
            packer.words(&center_of),
            packer.reals(&first.extra),
            packer.words(&reverse_start),
            packer.words(&reverse),
            packer.doubles(labels.output.as_deref()) as u32,
            packer.doubles(labels.atom_output.as_deref()) as u32,
        ];
        head[..words.len()].copy_from_slice(&words);
        let header = layout::Frame {
            order: u64::from(order),
            force: packer.doubles(labels.force.as_deref()),
            atom_energy: packer.doubles(labels.atom_energy.as_deref()),
            atom_pref: packer.doubles(labels.atom_pref.as_deref()),
            atom_coeff: packer.doubles(labels.atom_ener_coeff.as_deref()),
            energy: labels.energy.unwrap_or(0.0),
            virial: labels.virial.unwrap_or_default(),
            // In float32 as in loss/ener.rs, so that the digits agree.
            per_atom: f64::from(1.0 / n as f32),
            n_atoms: n_atoms as u32,
            n_rows: n as u32,
            n_pairs,
            labels: labels_of(labels),
            ..Default::default()
        };
        packer.blob[..4 * head.len()].copy_from_slice(head.as_bytes());
        let facts = Facts {
            labels: header.labels,
            header,
            n_atoms,
            n_centers: n,
            n_pairs: n_pairs as usize,
            rows,
            order: first.order.clone(),
        };
        PlanFrame { blob: packer.blob, facts: Arc::new(facts) }
    }
}

/// The pairs in which each atom is the neighbour.
fn reversed(neighbors: &[u32], n_atoms: usize) -> (Vec<u32>, Vec<u32>) {
    let mut start = vec![0u32; n_atoms + 1];
    neighbors.iter().for_each(|&j| start[j as usize + 1] += 1);
    (0..n_atoms).for_each(|k| start[k + 1] += start[k]);
    let (mut next, mut reverse) = (start.clone(), vec![0; neighbors.len()]);
    for (p, &j) in neighbors.iter().enumerate() {
        reverse[next[j as usize] as usize] = p as u32;
        next[j as usize] += 1;
    }
    (start, reverse)
}
