//! Evaluation with a neighbour list: the same for one model and for several, in an older form and one with charge and spin.

/// Declares both forms for these of the models behind a handle. Ghosts stand where images are, so the cell
/// does not matter.
macro_rules! compute_with_list {
    ($without_spin:ident, $with_spin:ident, $models:expr) => {
        /// # Safety
        /// Arrays must have the sizes that `c_api.h` says, or be null; the list must point to what is there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $without_spin(
            models: Handle,
            n_frames: c_int,
            n_atoms: c_int,
            coord: *const c_double,
            types: *const c_int,
            cell: *const c_double,
            n_ghosts: c_int,
            list: Handle,
            age: c_int,
            fparam: *const c_double,
            aparam: *const c_double,
            energy: *mut c_double,
            force: *mut c_double,
            virial: *mut c_double,
            atom_energy: *mut c_double,
            atom_virial: *mut c_double,
        ) {
            let (none, frames) = (std::ptr::null(), n_frames);
            #[rustfmt::skip]
            // SAFETY: the caller's promise.
            unsafe {
                $with_spin(
                    models, frames, n_atoms, coord, types, cell, n_ghosts, list, age, fparam, aparam, none, energy, force,
                    virial, atom_energy, atom_virial,
                )
            };
        }

        /// # Safety
        /// Arrays must have the sizes that `c_api.h` says, or be null; the list must point to what is there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $with_spin(
            models: Handle,
            n_frames: c_int,
            n_atoms: c_int,
            coord: *const c_double,
            types: *const c_int,
            cell: *const c_double,
            n_ghosts: c_int,
            list: Handle,
            age: c_int,
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
            let list = border::list_of(list);
            // SAFETY: the caller's promise.
            border::on_models(models, (), |models| unsafe {
                input.evaluate_listed(&mut models[$models], n_ghosts, list, age, charge_spin, out)
            });
        }
    };
}
