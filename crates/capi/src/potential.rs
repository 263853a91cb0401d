//! One model: `DP_DeepPot..`, and what it has in common with all models, `DP_DeepBaseModel..`.

use crate::arrays::{array, path, put, size, text_for_c};
use crate::list::List;
use crate::registry::Object;
use crate::{Handle, border};
use phalanx::potential::{Domain, Evaluation};
use phalanx::{Potential, Result, bail};
use std::ffi::{c_char, c_double, c_int};

/// A model from its file, or from the content of it where that is given.
///
/// # Safety
/// The name must end with a zero, the content have as many bytes as is said.
pub unsafe fn load(name: *const c_char, content: *const c_char, bytes: c_int) -> Result<Potential> {
    // SAFETY: the caller's promise.
    let (name, bytes) = unsafe {
        let bytes = if content.is_null() { 0 } else { size("the size of the file's content", bytes)? };
        (path(name)?, array::<u8>("the file's content", content.cast(), bytes)?)
    };
    if bytes.is_empty() { Potential::load(&name) } else { Potential::from_bytes(&name, bytes.to_vec()) }
}

/// What is to be evaluated, as C gives it.
pub struct Input {
    pub n_frames: c_int,
    pub n_atoms: c_int,
    pub coord: *const c_double,
    pub types: *const c_int,
    pub cell: *const c_double,
    pub fparam: *const c_double,
    pub aparam: *const c_double,
}

/// Where results go. NULL means that nobody wants them.
#[derive(Clone, Copy)]
pub struct Output {
    pub energy: *mut c_double,
    pub force: *mut c_double,
    pub virial: *mut c_double,
    pub atom_energy: *mut c_double,
    pub atom_virial: *mut c_double,
}

impl Output {
    /// Writes the k-th of several results, each of `n_atoms` atoms.
    ///
    /// # Safety
    /// There must be room for it.
    pub unsafe fn put(&self, k: usize, n_atoms: usize, found: &Evaluation) {
        // SAFETY: the caller's promise.
        unsafe {
            put(self.energy, k, &[found.energy]);
            put(self.force, 3 * k * n_atoms, &found.force);
            put(self.virial, 9 * k, &found.virial);
            put(self.atom_energy, k * n_atoms, &found.atom_energy);
            put(self.atom_virial, 9 * k * n_atoms, &found.atom_virial);
        }
    }
}

/// An array of parameters; NULL stands for none, which is an error where the model wants some.
///
/// # Safety
/// Where it is not null there must be `len` numbers.
unsafe fn parameters<'a>(name: &str, data: *const c_double, len: usize) -> Result<&'a [f64]> {
    if len > 0 && data.is_null() {
        bail!("the model wants {name}, and there is none");
    }
    // SAFETY: the caller's promise.
    unsafe { array(name, data, len) }
}

impl Input {
    /// Evaluates whole frames, whose neighbours are found here.
    ///
    /// # Safety
    /// Arrays must have the sizes that `c_api.h` says.
    unsafe fn evaluate(&self, model: &mut Potential, out: Output) -> Result<()> {
        let (n_frames, n) = (size("nframes", self.n_frames)?, size("natoms", self.n_atoms)?);
        // SAFETY: the caller's promise, also below.
        let types = unsafe { array("atype", self.types, n)? };
        let (numb_fparam, numb_aparam) = (model.numb_fparam(), n * model.numb_aparam());
        for k in 0..n_frames {
            let (coord, fparam, aparam, cell) = unsafe {
                (
                    array("coord", self.coord, 3 * n * n_frames)?,
                    parameters("fparam", self.fparam, numb_fparam * n_frames)?,
                    parameters("aparam", self.aparam, numb_aparam * n_frames)?,
                    if self.cell.is_null() { &[] } else { array("cell", self.cell, 9 * n_frames)? },
                )
            };
            let found = model.evaluate(
                &coord[3 * n * k..3 * n * (k + 1)],
                cell.chunks_exact(9).nth(k).map(|cell| std::array::from_fn(|c| cell[c])),
                types,
                &fparam[numb_fparam * k..numb_fparam * (k + 1)],
                &aparam[numb_aparam * k..numb_aparam * (k + 1)],
            )?;
            unsafe { out.put(k, n, &found) };
        }
        Ok(())
    }

    /// Evaluates a domain with its neighbour list, by one model after the other.
    ///
    /// # Safety
    /// Arrays must have the sizes that `c_api.h` says, and the list must point to what is there.
    pub unsafe fn evaluate_listed(
        &self,
        models: &mut [Potential],
        n_ghosts: c_int,
        list: Result<List>,
        age: c_int,
        charge_spin: *const c_double,
        out: Output,
    ) -> Result<()> {
        if self.n_frames != 1 {
            bail!("found {} frames, wanted one frame with its neighbour list", self.n_frames);
        }
        refuse_charge_spin(charge_spin)?;
        let (n, n_ghosts) = (size("natoms", self.n_atoms)?, size("nghost", n_ghosts)?);
        let Some(n_local) = n.checked_sub(n_ghosts) else {
            bail!("there are {n_ghosts} ghosts among {n} atoms");
        };
        let list = list?;
        // SAFETY: the caller's promise.
        let (coord, types, lists) = unsafe {
            (array("coord", self.coord, 3 * n)?, array("atype", self.types, n)?, list.of_atoms(n_local)?)
        };
        let domain = Domain { coord, types, lists: &lists, mask: list.mask };
        for (k, model) in models.iter_mut().enumerate() {
            // SAFETY: as above.
            let (fparam, aparam) = unsafe {
                (
                    parameters("fparam", self.fparam, model.numb_fparam())?,
                    parameters("aparam", self.aparam, n_local * model.numb_aparam())?,
                )
            };
            let wants_virials = !out.atom_virial.is_null();
            // A list is new where its age is zero.
            let found = match age {
                ..=0 => model.evaluate_with_neighbors(&domain, fparam, aparam, wants_virials)?,
                _ => model.evaluate_with_same_neighbors(&domain, fparam, aparam, wants_virials)?,
            };
            // SAFETY: as above.
            unsafe { out.put(k, n, &found) };
        }
        Ok(())
    }
}

fn refuse_charge_spin(values: *const c_double) -> Result<()> {
    if !values.is_null() {
        bail!("the model takes neither charge nor spin");
    }
    Ok(())
}

/// As [`border::on_models`] for callers that never ask what went wrong: they read it on the terminal.
fn aloud(handle: Handle, body: impl FnOnce(&mut [Potential]) -> Result<()>) {
    let told = border::on_models(handle, false, |models| {
        body(models).inspect_err(|e| eprintln!("libdeepmd_c: {e}")).map(|()| true)
    });
    if !told && crate::registry::find(handle).is_none() {
        eprintln!("libdeepmd_c: this is no handle, or it was deleted");
    }
}

/// # Safety
/// `name` must be null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_NewDeepPot(name: *const c_char) -> Handle {
    border::make(|| {
        // SAFETY: the caller's promise.
        let loaded = unsafe { load(name, std::ptr::null(), 0) };
        // CP2K goes on without asking whether it went well.
        Ok(Object::Models(vec![loaded.inspect_err(|e| eprintln!("libdeepmd_c: {e}"))?]))
    })
}

/// # Safety
/// `name` must be null or end with a zero; `content` null or of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_NewDeepPotWithParam2(
    name: *const c_char,
    gpu_rank: c_int,
    content: *const c_char,
    bytes: c_int,
) -> Handle {
    // SAFETY: the caller's promise.
    border::make(|| {
        Ok(Object::Models(vec![unsafe { load(name, content, bytes)? }.of_local_rank(rank(gpu_rank))?]))
    })
}

/// The number of this rank on its host, as callers say it.
pub fn rank(gpu_rank: c_int) -> usize {
    gpu_rank.max(0) as usize
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeleteDeepPot(model: Handle) {
    border::delete(model);
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotCheckOK(model: Handle) -> *const c_char {
    border::check(model)
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepPotCompute(
    model: Handle,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    energy: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_energy: *mut c_double,
    atom_virial: *mut c_double,
) {
    let none = std::ptr::null();
    let input = Input { n_frames: 1, n_atoms, coord, types, cell, fparam: none, aparam: none };
    let out = Output { energy, force, virial, atom_energy, atom_virial };
    // SAFETY: the caller's promise.
    aloud(model, |models| unsafe { input.evaluate(&mut models[0], out) });
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepPotCompute2(
    model: Handle,
    n_frames: c_int,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    fparam: *const c_double,
    aparam: *const c_double,
    energy: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_energy: *mut c_double,
    atom_virial: *mut c_double,
) {
    let input = Input { n_frames, n_atoms, coord, types, cell, fparam, aparam };
    let out = Output { energy, force, virial, atom_energy, atom_virial };
    // SAFETY: the caller's promise.
    border::on_models(model, (), |models| unsafe { input.evaluate(&mut models[0], out) });
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepPotCompute3(
    model: Handle,
    n_frames: c_int,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    fparam: *const c_double,
    aparam: *const c_double,
    charge_spin: *const c_double,
    energy: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_energy: *mut c_double,
    atom_virial: *mut c_double,
) {
    let input = Input { n_frames, n_atoms, coord, types, cell, fparam, aparam };
    let out = Output { energy, force, virial, atom_energy, atom_virial };
    border::on_models(model, (), |models| {
        refuse_charge_spin(charge_spin)?;
        // SAFETY: the caller's promise.
        unsafe { input.evaluate(&mut models[0], out) }
    });
}

compute_with_list!(DP_DeepPotComputeNList2, DP_DeepPotComputeNList3, ..1);

/// Asks the first of some models. Errors that are there stay.
pub fn ask<R>(model: Handle, fallback: R, question: impl FnOnce(&Potential) -> R) -> R {
    border::on(model, fallback, |object| match object {
        Object::Models(models) => Ok(question(&models[0])),
        _ => bail!("the handle is that of another object, wanted that of a model"),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotGetDimFParam(model: Handle) -> c_int {
    ask(model, 0, |model| model.numb_fparam() as c_int)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotGetDimAParam(model: Handle) -> c_int {
    ask(model, 0, |model| model.numb_aparam() as c_int)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotGetDimChgSpin(_model: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotHasDefaultFParam(_model: Handle) -> bool {
    false
}

/// Parameters of atoms are those of local atoms.
#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotIsAParamNAll(_model: Handle) -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotSetChargeSpin(model: Handle, values: *const c_double, _n: c_int) {
    border::on_models(model, (), |_| refuse_charge_spin(values));
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelGetCutoff(model: Handle) -> c_double {
    ask(model, 0.0, Potential::rcut)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelGetNumbTypes(model: Handle) -> c_int {
    ask(model, 0, |model| model.type_map().len() as c_int)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelGetNumbTypesSpin(_model: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelGetTypeMap(model: Handle) -> *const c_char {
    text_for_c(&ask(model, String::new(), |model| model.type_map().join(" ")))
}
