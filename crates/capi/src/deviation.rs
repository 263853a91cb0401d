//! Several models that are evaluated for the same atoms: `DP_DeepPotModelDevi..`.

use crate::arrays::{array, size};
use crate::potential::{
    DP_DeepBaseModelGetNumbTypes, DP_DeepPotGetDimAParam, DP_DeepPotGetDimFParam, DP_DeepPotSetChargeSpin,
    Input, Output, load, rank,
};
use crate::registry::Object;
use crate::{Handle, border};
use phalanx::{Potential, Result, bail};
use std::ffi::{c_char, c_double, c_int};

/// Refuses models that cannot be given the same atoms.
fn check_same(models: &[Potential]) -> Result<()> {
    let Some(first) = models.first() else { bail!("there are no models") };
    let facts = |model: &Potential| (model.type_map().to_vec(), model.numb_fparam(), model.numb_aparam());
    for (k, model) in models.iter().enumerate() {
        if facts(model) != facts(first) {
            bail!(
                "model {k} has the types, frame and atom parameters {:?}, the first has {:?}",
                facts(model),
                facts(first)
            );
        }
    }
    Ok(())
}

/// # Safety
/// `names` must point to `n` texts, `contents` and `bytes` to `n_contents` each, none of them where there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_NewDeepPotModelDeviWithParam(
    names: *const *const c_char,
    n: c_int,
    gpu_rank: c_int,
    contents: *const *const c_char,
    n_contents: c_int,
    bytes: *const c_int,
) -> Handle {
    border::make(|| {
        let (n, n_contents) = (size("n_models", n)?, size("n_file_contents", n_contents)?);
        // SAFETY: the caller's promise.
        let (names, contents, bytes) = unsafe {
            (
                array("the names of the models", names, n)?,
                array("the contents of the models", contents, n_contents)?,
                array("the sizes of the models", bytes, n_contents)?,
            )
        };
        let content = |k: usize| match (contents.get(k), bytes.get(k)) {
            (Some(&content), Some(&bytes)) => (content, bytes),
            _ => (std::ptr::null(), 0),
        };
        let models: Vec<Potential> = (0..n)
            .map(|k| {
                let (content, bytes) = content(k);
                // SAFETY: as above.
                unsafe { load(names[k], content, bytes) }?.of_local_rank(rank(gpu_rank))
            })
            .collect::<Result<_>>()?;
        check_same(&models)?;
        Ok(Object::Models(models))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeleteDeepPotModelDevi(models: Handle) {
    border::delete(models);
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviCheckOK(models: Handle) -> *const c_char {
    border::check(models)
}

compute_with_list!(DP_DeepPotModelDeviComputeNList2, DP_DeepPotModelDeviComputeNList3, ..);

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviGetDimFParam(models: Handle) -> c_int {
    DP_DeepPotGetDimFParam(models)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviGetDimAParam(models: Handle) -> c_int {
    DP_DeepPotGetDimAParam(models)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviGetDimChgSpin(_models: Handle) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviHasDefaultFParam(_models: Handle) -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviIsAParamNAll(_models: Handle) -> bool {
    false
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepPotModelDeviSetChargeSpin(models: Handle, values: *const c_double, n: c_int) {
    DP_DeepPotSetChargeSpin(models, values, n);
}

/// The largest of all.
#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelDeviGetCutoff(models: Handle) -> c_double {
    border::on(models, 0.0, |object| match object {
        Object::Models(models) => Ok(models.iter().map(Potential::rcut).fold(0.0, f64::max)),
        _ => bail!("the handle is that of a neighbour list, wanted that of models"),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelDeviGetNumbTypes(models: Handle) -> c_int {
    DP_DeepBaseModelGetNumbTypes(models)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeepBaseModelDeviGetNumbTypesSpin(_models: Handle) -> c_int {
    0
}
