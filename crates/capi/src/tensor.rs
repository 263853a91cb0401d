//! Models of dipoles and polarizabilities: `DP_DeepTensor..`.

use crate::arrays::{array, bytes_for_c, path, put, size, text_for_c};
use crate::registry::Object;
use crate::{Handle, border};
use phalanx::potential::{Derivatives, Domain, Outputs};
use phalanx::{OutputModel, Result, bail, err};
use std::ffi::{c_char, c_double, c_int};
use std::path::Path;

/// A model, and its selected types for callers that read them where they are.
pub struct Tensor {
    model: OutputModel,
    selected: Vec<c_int>,
}

impl Tensor {
    fn load(file: &Path) -> Result<Self> {
        let model = OutputModel::load(file)?;
        if !matches!(model.kind(), "dipole" | "polar") {
            return Err(err!(
                "{}: wanted a model of dipoles or polarizabilities, found {}",
                file.display(),
                model.kind()
            )
            .help("the Python package evaluates it (phalanx.DeepDOS, phalanx.DeepProperty)"));
        }
        let selected = model.selected_types().iter().map(|&t| t as c_int).collect();
        Ok(Tensor { model, selected })
    }
}

/// What is to be evaluated, as C gives it.
struct Input {
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
}

/// Ghosts, and the handle of a neighbour list; nothing where neighbours are found here.
type Listed = Option<(c_int, Handle)>;

/// Where results go. NULL means that nobody wants them.
struct Output {
    global: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_tensor: *mut *mut c_double,
    atom_virial: *mut c_double,
    n_atom_tensor: *mut c_int,
}

impl Output {
    const NOTHING: Output = Output {
        global: std::ptr::null_mut(),
        force: std::ptr::null_mut(),
        virial: std::ptr::null_mut(),
        atom_tensor: std::ptr::null_mut(),
        atom_virial: std::ptr::null_mut(),
        n_atom_tensor: std::ptr::null_mut(),
    };

    fn wanted(&self) -> Derivatives {
        match (self.force.is_null() && self.virial.is_null(), self.atom_virial.is_null()) {
            (true, true) => Derivatives::None,
            (_, true) => Derivatives::OfFrame,
            (_, false) => Derivatives::OfAtoms,
        }
    }

    /// Says that there are no tensors, for callers that free them before they ask what went wrong.
    ///
    /// # Safety
    /// Both addresses must be null or valid.
    unsafe fn clear(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.atom_tensor.is_null() {
                *self.atom_tensor = std::ptr::null_mut();
            }
            if !self.n_atom_tensor.is_null() {
                *self.n_atom_tensor = 0;
            }
        }
    }

    /// Writes what was found; tensors are those of the atoms of selected types, one after another.
    ///
    /// # Safety
    /// There must be room for it.
    unsafe fn put(&self, found: &Outputs, types: &[c_int], selected: &[c_int]) -> Result<()> {
        let width = found.output.len();
        let rows = found.atom_output.chunks_exact(width).zip(types).filter(|(_, t)| selected.contains(t));
        let tensors: Vec<f64> = rows.flat_map(|(row, _)| row.to_vec()).collect();
        let Ok(n) = c_int::try_from(tensors.len()) else { bail!("there are more tensors than C can count") };
        // SAFETY: the caller's promise; the copy is that of whoever called, who frees it.
        unsafe {
            put(self.global, 0, &found.output);
            put(self.force, 0, &found.force);
            put(self.virial, 0, &found.virial);
            put(self.atom_virial, 0, &found.atom_virial);
            if !self.atom_tensor.is_null() {
                let bytes: Vec<u8> = tensors.iter().flat_map(|x| x.to_ne_bytes()).collect();
                *self.atom_tensor = bytes_for_c(&bytes).cast_mut().cast();
            }
            if !self.n_atom_tensor.is_null() {
                *self.n_atom_tensor = n;
            }
        }
        Ok(())
    }
}

/// Evaluates a configuration.
///
/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null, and a list must point to what is there.
unsafe fn compute(handle: Handle, input: &Input, listed: Listed, out: &Output) {
    // SAFETY: the caller's promise.
    unsafe { out.clear() };
    let listed = listed.map(|(n_ghosts, list)| (n_ghosts, border::list_of(list)));
    on_tensor(handle, (), |tensor| {
        let n = size("natoms", input.n_atoms)?;
        // SAFETY: the caller's promise, also below.
        let (coord, types) =
            unsafe { (array("coord", input.coord, 3 * n)?, array("atype", input.types, n)?) };
        let Some((n_ghosts, list)) = listed else {
            let cell = if input.cell.is_null() { &[] } else { unsafe { array("cell", input.cell, 9)? } };
            let cell = cell.first_chunk().copied();
            let found = tensor.model.evaluate(coord, cell, types, &[], &[], out.wanted())?;
            return unsafe { out.put(&found, types, &tensor.selected) };
        };
        let Some(n_local) = n.checked_sub(size("nghost", n_ghosts)?) else {
            bail!("there are {n_ghosts} ghosts among {n} atoms");
        };
        let list = list?;
        let lists = unsafe { list.of_atoms(n_local)? };
        let domain = Domain { coord, types, lists: &lists, mask: list.mask };
        let found = tensor.model.evaluate_with_neighbors(&domain, &[], &[], out.wanted())?;
        unsafe { out.put(&found, &types[..n_local], &tensor.selected) }
    });
}

/// As [`border::on`] for models of tensors; earlier errors are forgotten.
fn on_tensor<R>(handle: Handle, fallback: R, body: impl FnOnce(&mut Tensor) -> Result<R>) -> R {
    border::forget_error(handle);
    ask(handle, fallback, body)
}

/// The same where errors that are there stay.
fn ask<R>(handle: Handle, fallback: R, body: impl FnOnce(&mut Tensor) -> Result<R>) -> R {
    border::on(handle, fallback, |object| match object {
        Object::Tensor(tensor) => body(tensor),
        _ => bail!("the handle is that of another object, wanted that of a model of tensors"),
    })
}

/// # Safety
/// `name` must be null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_NewDeepTensor(name: *const c_char) -> Handle {
    // SAFETY: the caller's promise.
    border::make(|| Ok(Object::Tensor(Box::new(Tensor::load(&unsafe { path(name)? })?))))
}

/// The scope of names is one of TensorFlow's, which models here do not have.
///
/// # Safety
/// `name` must be null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_NewDeepTensorWithParam(
    name: *const c_char,
    _gpu_rank: c_int,
    _name_scope: *const c_char,
) -> Handle {
    // SAFETY: the caller's promise.
    unsafe { DP_NewDeepTensor(name) }
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeleteDeepTensor(model: Handle) {
    border::delete(model);
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorCheckOK(model: Handle) -> *const c_char {
    border::check(model)
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepTensorComputeTensor(
    model: Handle,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    tensor: *mut *mut c_double,
    n: *mut c_int,
) {
    let out = Output { atom_tensor: tensor, n_atom_tensor: n, ..Output::NOTHING };
    // SAFETY: the caller's promise.
    unsafe { compute(model, &Input { n_atoms, coord, types, cell }, None, &out) };
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null; the list must point to what is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepTensorComputeTensorNList(
    model: Handle,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    n_ghosts: c_int,
    list: Handle,
    tensor: *mut *mut c_double,
    n: *mut c_int,
) {
    let out = Output { atom_tensor: tensor, n_atom_tensor: n, ..Output::NOTHING };
    // SAFETY: the caller's promise.
    unsafe { compute(model, &Input { n_atoms, coord, types, cell }, Some((n_ghosts, list)), &out) };
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepTensorCompute(
    model: Handle,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    global: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_tensor: *mut *mut c_double,
    atom_virial: *mut c_double,
    n_atom_tensor: *mut c_int,
) {
    let out = Output { global, force, virial, atom_tensor, atom_virial, n_atom_tensor };
    // SAFETY: the caller's promise.
    unsafe { compute(model, &Input { n_atoms, coord, types, cell }, None, &out) };
}

/// # Safety
/// Arrays must have the sizes that `c_api.h` says, or be null; the list must point to what is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeepTensorComputeNList(
    model: Handle,
    n_atoms: c_int,
    coord: *const c_double,
    types: *const c_int,
    cell: *const c_double,
    n_ghosts: c_int,
    list: Handle,
    global: *mut c_double,
    force: *mut c_double,
    virial: *mut c_double,
    atom_tensor: *mut *mut c_double,
    atom_virial: *mut c_double,
    n_atom_tensor: *mut c_int,
) {
    let out = Output { global, force, virial, atom_tensor, atom_virial, n_atom_tensor };
    // SAFETY: the caller's promise.
    unsafe { compute(model, &Input { n_atoms, coord, types, cell }, Some((n_ghosts, list)), &out) };
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetCutoff(model: Handle) -> c_double {
    ask(model, 0.0, |tensor| Ok(tensor.model.rcut()))
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetNumbTypes(model: Handle) -> c_int {
    ask(model, 0, |tensor| Ok(tensor.model.type_map().len() as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetOutputDim(model: Handle) -> c_int {
    ask(model, 0, |tensor| Ok(tensor.model.width() as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetNumbSelTypes(model: Handle) -> c_int {
    ask(model, 0, |tensor| Ok(tensor.selected.len() as c_int))
}

/// They are there as long as the model is.
#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetSelTypes(model: Handle) -> *mut c_int {
    ask(model, std::ptr::null_mut(), |tensor| Ok(tensor.selected.as_mut_ptr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepTensorGetTypeMap(model: Handle) -> *const c_char {
    text_for_c(&ask(model, String::new(), |tensor| Ok(tensor.model.type_map().join(" "))))
}
