//! The library as programs have it that load it at run time and know nothing but its symbols: CP2K and `dp_ipi`.

use phalanx::Potential;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

type Handle = *mut c_void;
type New = unsafe extern "C" fn(*const c_char) -> Handle;
type Delete = unsafe extern "C" fn(Handle);
type CheckOk = unsafe extern "C" fn(Handle) -> *const c_char;
type DeleteChar = unsafe extern "C" fn(*const c_char);
/// Model, atoms, coordinates, types, cell; energy, forces, virial, energies of atoms, virials of atoms.
type Compute = unsafe extern "C" fn(
    Handle,
    c_int,
    *const f64,
    *const c_int,
    *const f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
);
/// As [`Compute`] with a number of frames before the atoms, and frame and atom parameters after the cell.
type Compute2 = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    *const f64,
    *const c_int,
    *const f64,
    *const f64,
    *const f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
);

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
const COORD: [f64; 12] = [0.0, 0.0, 0.0, 0.9, 0.1, 0.0, -0.2, 1.0, 0.1, 2.5, 0.3, 0.4];
const TYPES: [c_int; 4] = [0, 1, 1, 0];
const CELL: [f64; 9] = [7.0, 0.0, 0.0, 0.5, 7.5, 0.0, 0.0, -0.25, 8.0];

/// The library that was built with this test, opened as a program would.
struct Library(*mut c_void);

impl Library {
    fn open() -> Self {
        let test = std::env::current_exe().unwrap();
        let path: PathBuf = test.parent().unwrap().join("libdeepmd_c.so");
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a name that ends with a zero; what the library does when it is loaded is sound.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{} cannot be loaded", path.display());
        Library(library)
    }

    /// A function of the library; `F` is its type in the header.
    fn find<F: Copy>(&self, name: &CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: an open library and a name that ends with a zero.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is missing");
        // SAFETY: a pointer to a function of the type that the header gives it.
        unsafe { std::mem::transmute_copy(&symbol) }
    }

    fn error(&self, model: Handle) -> String {
        let (check, free): (CheckOk, DeleteChar) =
            (self.find(c"DP_DeepPotCheckOK"), self.find(c"DP_DeleteChar"));
        // SAFETY: a text that ends with a zero, which is not used after it is freed.
        unsafe {
            let text = check(model);
            let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
            free(text);
            owned
        }
    }

    fn model(&self) -> Handle {
        let new: New = self.find(c"DP_NewDeepPot");
        let name = CString::new(format!("{GOLDEN}/dp_test/one_side.dp")).unwrap();
        // SAFETY: a name that ends with a zero.
        let model = unsafe { new(name.as_ptr()) };
        assert_eq!(self.error(model), "");
        model
    }
}

fn near(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} and {want:?}");
}

#[test]
fn cp2k_creates_computes_and_deletes_by_the_address_of_its_handle() {
    let library = Library::open();
    let model = library.model();
    let compute: Compute = library.find(c"DP_DeepPotCompute");
    let delete: Delete = library.find(c"DP_DeleteDeepPot");
    let mut want = Potential::load(format!("{GOLDEN}/dp_test/one_side.dp").as_ref()).unwrap();
    let want = want.evaluate(&COORD, Some(CELL), &TYPES, &[], &[]).unwrap();
    let (mut energy, mut force, mut virial) = ([0.0], [0.0; 12], [0.0; 9]);
    let (mut atoms, mut virials) = ([0.0; 4], [0.0; 36]);
    // SAFETY: arrays of the right sizes; CP2K gives the address of its handle to the last one.
    unsafe {
        compute(
            model,
            4,
            COORD.as_ptr(),
            TYPES.as_ptr(),
            CELL.as_ptr(),
            energy.as_mut_ptr(),
            force.as_mut_ptr(),
            virial.as_mut_ptr(),
            atoms.as_mut_ptr(),
            virials.as_mut_ptr(),
        );
        delete((&raw const model).cast_mut().cast());
    }
    assert_eq!(library.error(model), "");
    near(&energy, &[want.energy]);
    near(&force, &want.force);
    near(&virial, &want.virial);
    near(&atoms, &want.atom_energy);
    near(&virials, &want.atom_virial);
}

#[test]
fn ipi_computes_frames_at_once_and_hears_of_mistakes() {
    let library = Library::open();
    let model = library.model();
    let compute: Compute2 = library.find(c"DP_DeepPotCompute2");
    let delete: Delete = library.find(c"DP_DeleteDeepPot");
    let mut moved = COORD;
    moved[4] += 0.25;
    let mut potential = Potential::load(format!("{GOLDEN}/dp_test/one_side.dp").as_ref()).unwrap();
    let call = |coord: &[f64]| {
        let (mut energy, mut force, mut virial) = ([7.0; 2], [7.0; 24], [7.0; 18]);
        let (cells, none) = ([CELL, CELL].concat(), null_mut());
        // SAFETY: arrays of the right sizes for two frames of four atoms.
        unsafe {
            compute(
                model,
                2,
                4,
                coord.as_ptr(),
                TYPES.as_ptr(),
                cells.as_ptr(),
                null(),
                null(),
                energy.as_mut_ptr(),
                force.as_mut_ptr(),
                virial.as_mut_ptr(),
                none,
                none,
            );
        }
        (energy, force, virial)
    };
    let (energy, force, virial) = call(&[COORD, moved].concat());
    assert_eq!(library.error(model), "");
    for (k, coord) in [COORD, moved].iter().enumerate() {
        let want = potential.evaluate(coord, Some(CELL), &TYPES, &[], &[]).unwrap();
        near(&energy[k..=k], &[want.energy]);
        near(&force[12 * k..12 * (k + 1)], &want.force);
        near(&virial[9 * k..9 * (k + 1)], &want.virial);
    }
    moved[4] = f64::NAN;
    assert_eq!(
        call(&[COORD, moved].concat()).0[1],
        7.0,
        "nothing is written for a frame that cannot be evaluated"
    );
    assert!(library.error(model).contains("atom 1"), "{}", library.error(model));
    // SAFETY: the handle itself.
    unsafe { delete(model) };
    assert!(library.error(model).contains("no handle"));
}
