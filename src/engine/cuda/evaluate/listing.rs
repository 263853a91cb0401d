//! The atoms of a domain on the device: positions, types, who may be near, and where results go.

use super::super::layout::Listed;
use super::SUMMARY;
use crate::engine::Evaluation;
use crate::gpu::{Buffer, Device, DevicePtr, Pinned, Ptr};
use crate::neighbor::Domain;
use crate::{Result, bail};
use rayon::prelude::*;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Numbers that one thread copies at a time.
const PIECE: usize = 1 << 15;

/// Memory that grows and is kept: a new list of about as many atoms asks for none.
struct Grown<T>(Option<Buffer<T>>);

impl<T> Default for Grown<T> {
    fn default() -> Self {
        Grown(None)
    }
}

impl<T: crate::gpu::memory::Plain> Grown<T> {
    /// True where the memory is another one now, set to zero.
    fn make_room(&mut self, device: &Arc<Device>, n: usize, what: &str) -> Result<bool> {
        if self.0.as_ref().is_some_and(|buffer| buffer.bytes() >= n * size_of::<T>()) {
            return Ok(false);
        }
        self.0 = None;
        self.0 = Some(Buffer::zeroed(device, n + n / 8, what)?);
        Ok(true)
    }

    fn address(&self) -> DevicePtr {
        self.0.as_ref().map_or(0, Buffer::address)
    }
}

/// Page-locked memory that grows.
#[derive(Default)]
struct Staging(Option<Pinned>);

impl Staging {
    fn make_room(&mut self, device: &Arc<Device>, bytes: usize) -> Result<&mut Pinned> {
        if self.0.as_ref().is_none_or(|memory| memory.size() < bytes) {
            self.0 = None;
            self.0 = Some(Pinned::new(device, bytes + bytes / 8)?);
        }
        match &mut self.0 {
            Some(memory) => Ok(memory),
            None => bail!("there is no page-locked memory"),
        }
    }
}

/// Atoms with their lists.
#[derive(Default)]
pub struct Listing {
    n_atoms: usize,
    n_local: usize,
    /// `[n_atoms]`
    known_types: Vec<i32>,
    /// Local atoms of the model, sorted by type.
    order: Vec<u32>,
    /// `[n_types + 1]` rows of each type.
    block: Vec<usize>,
    coord: Grown<f64>,
    types: Grown<i32>,
    list_start: Grown<u32>,
    list: Grown<u32>,
    order_there: Grown<u32>,
    /// Sums in whole numbers.
    force: Grown<i64>,
    atom_virial: Grown<i64>,
    wants_atom_virial: bool,
    /// Summary, forces, energies of atoms.
    results: Grown<f64>,
    virials: Grown<f64>,
    up: Staging,
    down: Staging,
    down_virials: Staging,
    start: Vec<u32>,
}

impl Listing {
    /// Whether a domain has the atoms that are listed.
    pub fn is_of(&self, domain: &Domain) -> bool {
        (self.n_atoms, self.n_local) == (domain.n_atoms(), domain.n_local())
            && self.known_types == domain.types
    }

    pub fn n_rows(&self) -> usize {
        self.order.len()
    }

    pub fn order(&self) -> &[u32] {
        &self.order
    }

    pub fn block(&self) -> &[usize] {
        &self.block
    }

    /// Copies types and lists to the device.
    pub fn take(&mut self, device: &Arc<Device>, domain: &Domain, n_types: usize) -> Result<()> {
        domain.check(n_types)?;
        // Until all of it is there, no domain is the one that is listed.
        self.known_types.clear();
        let (n_atoms, n_local) = (domain.n_atoms(), domain.n_local());
        let n_pairs = domain.list_starts(&mut self.start)?;
        if n_atoms >= i32::MAX as usize / 9 {
            bail!("{n_atoms} atoms are more than one GPU evaluates");
        }
        let mut order: Vec<u32> = (0..n_local as u32).filter(|&i| domain.types[i as usize] >= 0).collect();
        order.sort_by_key(|&i| domain.types[i as usize]);
        let type_of = |i: u32| domain.types[i as usize] as usize;
        self.block = (0..=n_types).map(|t| order.partition_point(|&i| type_of(i) < t)).collect();
        self.order = order;
        self.coord.make_room(device, 3 * n_atoms, "positions")?;
        self.types.make_room(device, n_atoms, "types")?;
        self.list_start.make_room(device, n_local + 1, "neighbour lists")?;
        self.list.make_room(device, n_pairs, "neighbour lists")?;
        self.order_there.make_room(device, n_local, "tables")?;
        self.results.make_room(device, SUMMARY + 4 * n_atoms, "forces")?;
        self.force.make_room(device, 3 * n_atoms, "forces")?;
        // What is left from an evaluation that failed, and energies of atoms that are ghosts now.
        clear(device, &self.force)?;
        clear(device, &self.atom_virial)?;
        clear(device, &self.results)?;
        write(&self.types, domain.types)?;
        write(&self.list_start, &self.start)?;
        write(&self.order_there, &self.order)?;
        let staged = self.up.make_room(device, 4 * n_pairs)?;
        // SAFETY: the last copy from it has ended: an evaluation waits for its results, and this function for the copy below.
        let bytes = unsafe { &mut staged.bytes_mut()[..4 * n_pairs] };
        let Ok(list) = <[u32]>::mut_from_bytes(bytes) else { bail!("page-locked memory is not aligned") };
        domain.flatten_lists(list, &self.start)?;
        // SAFETY: there is room; it is waited for.
        unsafe { staged.copy_to(device.stream(), self.list.address(), 0, 4 * n_pairs)? };
        device.synchronize()?;
        (self.n_atoms, self.n_local) = (n_atoms, n_local);
        self.known_types.extend_from_slice(domain.types);
        Ok(())
    }

    /// Makes room for the virials of atoms, or forgets them; true where that changed something.
    pub fn want_atom_virial(&mut self, device: &Arc<Device>, wanted: bool) -> Result<bool> {
        if !wanted {
            return Ok(std::mem::replace(&mut self.wants_atom_virial, false));
        }
        let grown = self.atom_virial.make_room(device, 9 * self.n_atoms, "virials of atoms")?;
        let grown = self.virials.make_room(device, 9 * self.n_atoms, "virials of atoms")? || grown;
        Ok(!std::mem::replace(&mut self.wants_atom_virial, true) || grown)
    }

    /// Where everything is.
    pub fn addresses(&self) -> Listed {
        Listed {
            coord: self.coord.address(),
            types: self.types.address(),
            list_start: self.list_start.address(),
            list: self.list.address(),
            order: self.order_there.address(),
            force: self.force.address(),
            atom_virial: if self.wants_atom_virial { self.atom_virial.address() } else { 0 },
            atom_energy: self.results.address() + 8 * (SUMMARY + 3 * self.n_atoms) as u64,
            n_atoms: self.n_atoms as i32,
            ..Listed::default()
        }
    }

    /// Forces, virials of atoms, summary.
    pub fn result_pointers(&self) -> [Ptr<f64>; 3] {
        let results = self.results.address();
        [results + 8 * SUMMARY as u64, self.virials.address(), results].map(Ptr::at)
    }

    /// Copies positions to the device.
    pub fn upload(&mut self, device: &Arc<Device>, domain: &Domain) -> Result<()> {
        let bytes = 24 * self.n_atoms;
        let staged = self.up.make_room(device, bytes)?;
        // SAFETY: an evaluation waits for its results, so the copy of the last one has ended.
        let to = unsafe { &mut staged.bytes_mut()[..bytes] };
        let Ok(to) = <[f64]>::mut_from_bytes(to) else { bail!("page-locked memory is not aligned") };
        copy(to, domain.coord);
        if let Some(k) = position_of_no_number(to) {
            bail!("atom {}: the coordinate {} is not a number", k / 3, to[k]);
        }
        // SAFETY: there is room, and the memory is kept and left alone until the results are there.
        unsafe { staged.copy_to(device.stream(), self.coord.address(), 0, bytes) }
    }

    /// Copies what was found to page-locked memory, and waits for it.
    pub fn download(&mut self, device: &Arc<Device>, atom_virial: bool) -> Result<[f64; SUMMARY]> {
        let bytes = 8 * (SUMMARY + 4 * self.n_atoms);
        let from = self.results.address();
        let down = self.down.make_room(device, bytes)?;
        // SAFETY: there is room; it is waited for, also where the second copy fails.
        let started = unsafe { down.copy_from(device.stream(), from, bytes) };
        let more = match atom_virial {
            false => Ok(()),
            true => {
                let from = self.virials.address();
                // SAFETY: as above.
                self.down_virials
                    .make_room(device, 72 * self.n_atoms)
                    .and_then(|down| unsafe { down.copy_from(device.stream(), from, 72 * self.n_atoms) })
            }
        };
        device.synchronize()?;
        started.and(more)?;
        let found = self.found()?;
        Ok(std::array::from_fn(|k| found[k]))
    }

    fn found(&self) -> Result<&[f64]> {
        numbers_of(&self.down, SUMMARY + 4 * self.n_atoms)
    }

    /// The numbers of atoms that were downloaded.
    pub fn results(&self, out: &mut Evaluation, atom_virial: bool) -> Result<()> {
        let n = self.n_atoms;
        let found = &self.found()?[SUMMARY..];
        out.force.resize(3 * n, 0.0);
        out.atom_energy.resize(n, 0.0);
        out.atom_virial.resize(if atom_virial { 9 * n } else { 0 }, 0.0);
        copy(&mut out.force, &found[..3 * n]);
        copy(&mut out.atom_energy, &found[3 * n..]);
        if atom_virial {
            copy(&mut out.atom_virial, numbers_of(&self.down_virials, 9 * n)?);
        }
        Ok(())
    }
}

/// What was copied to page-locked memory; every download waits for its copies.
fn numbers_of(staged: &Staging, n: usize) -> Result<&[f64]> {
    // SAFETY: no copy to it is under way after `Listing::download`.
    let bytes = staged.0.as_ref().map_or(&[][..], |memory| unsafe { memory.bytes() });
    match bytes.get(..8 * n).map(<[f64]>::ref_from_bytes) {
        Some(Ok(numbers)) => Ok(numbers),
        _ => bail!("page-locked memory is too small"),
    }
}

fn clear<T>(device: &Arc<Device>, grown: &Grown<T>) -> Result<()> {
    let Some(buffer) = &grown.0 else { return Ok(()) };
    // SAFETY: inside this memory.
    unsafe { device.clear_at(buffer.address(), buffer.bytes()) }
}

fn write<T: crate::gpu::memory::Plain>(grown: &Grown<T>, values: &[T]) -> Result<()> {
    grown.0.as_ref().map_or(Ok(()), |buffer| buffer.write_bytes(0, values.as_bytes()))
}

/// Copies numbers, on all threads of the pool where there are many.
fn copy(to: &mut [f64], from: &[f64]) {
    if to.len() <= PIECE || rayon::current_thread_index().is_none() {
        return to.copy_from_slice(from);
    }
    to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// Where a number is none; the sum of a piece tells whether it has one.
fn position_of_no_number(x: &[f64]) -> Option<usize> {
    let has_none = |x: &[f64]| x.iter().map(|x| x * 0.0).sum::<f64>() != 0.0;
    if x.len() <= PIECE || rayon::current_thread_index().is_none() {
        return if has_none(x) { x.iter().position(|x| !x.is_finite()) } else { None };
    }
    if x.par_chunks(PIECE).any(has_none) { x.iter().position(|x| !x.is_finite()) } else { None }
}
