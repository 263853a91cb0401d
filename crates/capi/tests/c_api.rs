//! The library as C calls it: results, texts of errors, and rubbish.

use deepmd_c::*;
use phalanx::Potential;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
const COORD: [f64; 12] = [0.0, 0.0, 0.0, 0.9, 0.1, 0.0, -0.2, 1.0, 0.1, 2.5, 0.3, 0.4];
const TYPES: [c_int; 4] = [0, 1, 1, 0];

fn golden(name: &str) -> CString {
    CString::new(format!("{GOLDEN}/{name}")).unwrap()
}

/// A text of the library, which is freed.
fn text(given: *const c_char) -> String {
    assert!(!given.is_null());
    // SAFETY: it ends with a zero, and is not used any more when it is freed.
    unsafe {
        let text = CStr::from_ptr(given).to_string_lossy().into_owned();
        DP_DeleteChar(given);
        text
    }
}

fn open(name: &str) -> Handle {
    // SAFETY: a name that ends with a zero.
    unsafe { DP_NewDeepPotWithParam2(golden(name).as_ptr(), 0, null(), 0) }
}

/// Four atoms of which the last is a ghost, and their list.
struct Domain {
    atoms: [c_int; 3],
    counts: [c_int; 3],
    neighbors: [[c_int; 3]; 3],
    firsts: [*mut c_int; 3],
}

impl Domain {
    fn new() -> Box<Self> {
        let mut domain = Box::new(Domain {
            atoms: [0, 1, 2],
            counts: [3; 3],
            neighbors: [[1, 2, 3 | 0x4000_0000], [0, 2, 3], [0, 1, 3]],
            firsts: [null_mut(); 3],
        });
        domain.firsts = domain.neighbors.each_mut().map(|list| list.as_mut_ptr());
        domain
    }

    fn list(&mut self) -> Handle {
        let list =
            DP_NewNlist(3, self.atoms.as_mut_ptr(), self.counts.as_mut_ptr(), self.firsts.as_mut_ptr());
        DP_NlistSetMask(list, 0x1fff_ffff);
        assert_eq!(text(DP_NlistCheckOK(list)), "");
        list
    }
}

#[derive(Debug, PartialEq, Clone)]
struct Found {
    energy: f64,
    force: [f64; 12],
    virial: [f64; 9],
    atom_energy: [f64; 4],
    atom_virial: [f64; 36],
}

/// A frame of four atoms with a list of the first three.
fn compute(model: Handle, list: Handle, coord: &[f64; 12], types: &[c_int; 4]) -> (Found, String) {
    let mut out = Found {
        energy: 7.0,
        force: [7.0; 12],
        virial: [7.0; 9],
        atom_energy: [7.0; 4],
        atom_virial: [7.0; 36],
    };
    // SAFETY: arrays of the right sizes.
    unsafe {
        DP_DeepPotComputeNList2(
            model,
            1,
            4,
            coord.as_ptr(),
            types.as_ptr(),
            null(),
            1,
            list,
            0,
            null(),
            null(),
            &mut out.energy,
            out.force.as_mut_ptr(),
            out.virial.as_mut_ptr(),
            out.atom_energy.as_mut_ptr(),
            out.atom_virial.as_mut_ptr(),
        );
    }
    (out, text(DP_DeepPotCheckOK(model)))
}

#[test]
fn a_model_and_a_list_give_what_the_rust_library_gives() {
    let model = open("dp_test/one_side.dp");
    assert_eq!(text(DP_DeepPotCheckOK(model)), "");
    assert_eq!(text(DP_DeepBaseModelGetTypeMap(model)), "O H");
    assert_eq!((DP_DeepBaseModelGetNumbTypes(model), DP_DeepPotGetDimFParam(model)), (2, 0));
    let mut domain = Domain::new();
    let list = domain.list();
    let (got, error) = compute(model, list, &COORD, &TYPES);
    assert_eq!(error, "");

    let mut potential = Potential::load(format!("{GOLDEN}/dp_test/one_side.dp").as_ref()).unwrap();
    assert_eq!(DP_DeepBaseModelGetCutoff(model), potential.rcut());
    let lists: [&[i32]; 3] = [&[1, 2, 3], &[0, 2, 3], &[0, 1, 3]];
    let same = phalanx::potential::Domain { coord: &COORD, types: &TYPES, lists: &lists, mask: -1 };
    let want = potential.evaluate_with_neighbors(&same, &[], &[], true).unwrap();
    assert_eq!((got.energy, &got.force[..], got.virial), (want.energy, &want.force[..], want.virial));
    assert_eq!((&got.atom_energy[..], &got.atom_virial[..]), (&want.atom_energy[..], &want.atom_virial[..]));
    DP_DeleteNlist(list);
    DP_DeleteDeepPot(model);
}

#[test]
fn several_models_give_their_results_one_after_the_other() {
    let names = ["dp_test/one_side.dp", "se_e2_a/one_side_virial/initial.dp"];
    let paths = names.map(golden);
    let pointers = paths.each_ref().map(|path| path.as_ptr());
    // SAFETY: two names.
    let models = unsafe { DP_NewDeepPotModelDeviWithParam(pointers.as_ptr(), 2, 0, null(), 0, null()) };
    assert_eq!(text(DP_DeepPotModelDeviCheckOK(models)), "");
    let mut domain = Domain::new();
    let list = domain.list();
    let (mut energy, mut force) = ([0.0; 2], [0.0; 24]);
    // SAFETY: arrays of the right sizes.
    unsafe {
        DP_DeepPotModelDeviComputeNList2(
            models,
            1,
            4,
            COORD.as_ptr(),
            TYPES.as_ptr(),
            null(),
            1,
            list,
            0,
            null(),
            null(),
            energy.as_mut_ptr(),
            force.as_mut_ptr(),
            null_mut(),
            null_mut(),
            null_mut(),
        );
    }
    assert_eq!(text(DP_DeepPotModelDeviCheckOK(models)), "");
    for (k, name) in names.iter().enumerate() {
        let model = open(name);
        let (alone, _) = compute(model, list, &COORD, &TYPES);
        assert_eq!((energy[k], &force[12 * k..12 * (k + 1)]), (alone.energy, &alone.force[..]), "{name}");
        assert!(DP_DeepBaseModelDeviGetCutoff(models) >= DP_DeepBaseModelGetCutoff(model));
        DP_DeleteDeepPot(model);
    }
    DP_DeleteDeepPotModelDevi(models);
}

#[test]
fn mistakes_are_texts_and_leave_outputs_and_the_model_alone() {
    let model = open("dp_test/one_side.dp");
    let mut domain = Domain::new();
    let list = domain.list();
    let (good, _) = compute(model, list, &COORD, &TYPES);
    let untouched = |found: &Found| found.energy == 7.0 && found.force == [7.0; 12];

    let mut broken = COORD;
    broken[4] = f64::NAN;
    let (found, error) = compute(model, list, &broken, &TYPES);
    assert!(untouched(&found) && error == "atom 1: the coordinate NaN is not a number", "{error}");
    let (_, error) = compute(model, list, &COORD, &[0, 1, 2, 0]);
    assert!(error.starts_with("atom 2 has type 2"), "{error}");
    for wrong in [4, -1, c_int::MAX] {
        domain.neighbors[1][2] = wrong;
        let (found, error) = compute(model, list, &COORD, &TYPES);
        assert!(untouched(&found) && error.contains("the neighbour list names atom"), "{error}");
    }
    domain.neighbors[1][2] = 3;
    domain.counts[1] = -5;
    assert!(compute(model, list, &COORD, &TYPES).1.contains("numneigh is -5"));
    domain.counts[1] = 3;
    domain.atoms[1] = 0;
    assert!(compute(model, list, &COORD, &TYPES).1.contains("twice"));
    domain.atoms[1] = 1;
    assert_eq!(compute(model, list, &COORD, &TYPES), (good, String::new()), "as before");

    // Nothing at all.
    // SAFETY: nulls are looked for.
    unsafe {
        let n = null_mut();
        DP_DeepPotComputeNList2(
            model,
            1,
            4,
            null(),
            null(),
            null(),
            0,
            n,
            0,
            null(),
            null(),
            n.cast(),
            n.cast(),
            n.cast(),
            n.cast(),
            n.cast(),
        );
    }
    assert!(text(DP_DeepPotCheckOK(model)).contains("neighbour list"));
    DP_DeleteNlist(list);
    assert!(compute(model, list, &COORD, &TYPES).1.contains("was deleted"));
}

#[test]
fn files_that_are_no_models_say_why() {
    for (name, wanted) in [
        ("absent.dp", "cannot read"),
        ("README.md", "none of a model file"),
        ("potential/make.py", "none of a model file"),
    ] {
        let model = open(name);
        let error = text(DP_DeepPotCheckOK(model));
        assert!(error.contains(wanted), "{name}: {error}");
        assert_eq!(DP_DeepBaseModelGetNumbTypes(model), 0);
        let mut domain = Domain::new();
        let (found, later) = compute(model, domain.list(), &COORD, &TYPES);
        assert!(found.energy == 7.0 && later == error, "{name}: the reason stays: {later}");
        DP_DeleteDeepPot(model);
    }
    // SAFETY: nulls are looked for.
    let model = unsafe { DP_NewDeepPotWithParam2(null(), 0, null(), 0) };
    assert!(text(DP_DeepPotCheckOK(model)).contains("NULL"));
    let rubbish = b"rubbish";
    // SAFETY: so many bytes.
    let model = unsafe { DP_NewDeepPotWithParam2(c"model.dp".as_ptr(), 0, rubbish.as_ptr().cast(), 7) };
    assert!(text(DP_DeepPotCheckOK(model)).contains("not an HDF5 file"));
}

#[test]
fn a_model_comes_from_the_bytes_of_its_file() {
    let path = golden("dp_test/one_side.dp");
    let mut bytes = 0;
    // SAFETY: a name and a place for the size.
    let model = unsafe {
        let content = DP_ReadFileToChar2(path.as_ptr(), &mut bytes);
        let model = DP_NewDeepPotWithParam2(c"somewhere/else.dp".as_ptr(), 0, content, bytes);
        DP_DeleteChar(content);
        model
    };
    assert_eq!(bytes as u64, std::fs::metadata(path.to_str().unwrap()).unwrap().len());
    assert_eq!(text(DP_DeepPotCheckOK(model)), "");
    // SAFETY: as above.
    let error = text(unsafe { DP_ReadFileToChar2(c"absent.dp".as_ptr(), &mut bytes) });
    assert!(bytes == -(error.len() as c_int) && error.contains("cannot read"), "{bytes} {error}");
}

#[test]
fn handles_that_are_none_are_errors() {
    let model = open("dp_test/one_side.dp");
    // CP2K gives the address of the handle.
    DP_DeleteDeepPot((&raw const model).cast_mut().cast());
    assert_eq!(text(DP_DeepPotCheckOK(model)), "", "still there");
    DP_DeleteDeepPot(model);
    DP_DeleteDeepPot(model);
    DP_DeleteDeepPot(null_mut());
    for foreign in [
        model,
        null_mut(),
        (&raw const model).cast_mut().cast(),
        std::ptr::without_provenance_mut(usize::MAX),
    ] {
        assert!(text(DP_DeepPotCheckOK(foreign)).contains("no handle"));
        assert_eq!(DP_DeepBaseModelGetCutoff(foreign), 0.0);
        assert_eq!(text(DP_DeepBaseModelGetTypeMap(foreign)), "");
        assert_eq!(compute(foreign, foreign, &COORD, &TYPES).0.energy, 7.0);
        DP_NlistSetMask(foreign, 1);
    }
    // One kind of handle for another.
    let mut domain = Domain::new();
    let list = domain.list();
    assert!(compute(list, list, &COORD, &TYPES).1.contains("wanted that of a model"));
    let model = open("dp_test/one_side.dp");
    assert!(compute(model, model, &COORD, &TYPES).1.contains("the handle of the neighbour list is none"));
    DP_DeepSpinModelDeviSetChargeSpin(model, null(), 0);
    assert!(text(DP_DeepSpinCheckOK(model)).contains("of another kind"));
}

#[test]
fn spin_models_and_modifiers_say_that_they_are_absent() {
    let name = golden("dp_test/one_side.dp");
    let spin = DP_NewDeepSpinWithParam2(name.as_ptr(), 0, null(), 0);
    assert!(text(DP_DeepSpinCheckOK(spin)).starts_with("Phalanx has no spin models"));
    assert_eq!((DP_DeepSpinGetDimFParam(spin), DP_DeepSpinUsesNativeSpinScheme(spin)), (0, false));
    DP_DeleteDeepSpin(spin);
    let modifier = DP_NewDipoleChargeModifierWithParam(name.as_ptr(), 0, null());
    assert!(
        text(DP_DipoleChargeModifierCheckOK(modifier)).starts_with("Phalanx has no dipole charge modifier")
    );
}

/// Tensors of atoms that the library gives, which are freed.
fn freed(values: *mut f64, n: c_int) -> Vec<f64> {
    assert!(!values.is_null() && n >= 0);
    // SAFETY: so many numbers, not used any more when they are freed.
    unsafe {
        let tensors = std::slice::from_raw_parts(values, n as usize).to_vec();
        libc::free(values.cast());
        tensors
    }
}

#[test]
fn tensors_with_their_derivatives_are_those_of_the_rust_library() {
    use phalanx::OutputModel;
    use phalanx::potential::Derivatives;
    for (name, width) in [("se_e2_a/dipole/initial.dp", 3), ("se_e2_a/polar/initial.dp", 9)] {
        // SAFETY: a name that ends with a zero, and no scope.
        let model = unsafe { DP_NewDeepTensorWithParam(golden(name).as_ptr(), 0, null()) };
        assert_eq!(text(DP_DeepTensorCheckOK(model)), "");
        assert_eq!((DP_DeepTensorGetOutputDim(model), DP_DeepTensorGetNumbTypes(model)), (width, 2));
        assert_eq!(text(DP_DeepTensorGetTypeMap(model)), "O H");
        assert_eq!(DP_DeepTensorGetNumbSelTypes(model), 2);
        // SAFETY: there are two.
        let selected = unsafe { std::slice::from_raw_parts(DP_DeepTensorGetSelTypes(model), 2) };
        assert_eq!(selected, [0, 1]);

        let mut want = OutputModel::load(format!("{GOLDEN}/{name}").as_ref()).unwrap();
        assert_eq!(DP_DeepTensorGetCutoff(model), want.rcut());
        let mut domain = Domain::new();
        let list = domain.list();
        let lists: [&[i32]; 3] = [&[1, 2, 3], &[0, 2, 3], &[0, 1, 3]];
        let same = phalanx::potential::Domain { coord: &COORD, types: &TYPES, lists: &lists, mask: -1 };
        let listed = want.evaluate_with_neighbors(&same, &[], &[], Derivatives::OfAtoms).unwrap();
        let alone = want.evaluate(&COORD, None, &TYPES, &[], &[], Derivatives::OfAtoms).unwrap();
        let w = width as usize;
        for (want, is_listed, n_local) in [(&listed, true, 3), (&alone, false, 4)] {
            let (mut global, mut force, mut virial) = (vec![7.0; w], vec![7.0; 12 * w], vec![7.0; 9 * w]);
            let (mut atom_virial, mut values, mut n) = (vec![7.0; 36 * w], null_mut(), -1);
            // SAFETY: arrays of the right sizes.
            unsafe {
                let (g, f, v, av) =
                    (global.as_mut_ptr(), force.as_mut_ptr(), virial.as_mut_ptr(), atom_virial.as_mut_ptr());
                let (x, t, at, size) = (COORD.as_ptr(), TYPES.as_ptr(), &mut values, &mut n);
                match is_listed {
                    true => DP_DeepTensorComputeNList(model, 4, x, t, null(), 1, list, g, f, v, at, av, size),
                    false => DP_DeepTensorCompute(model, 4, x, t, null(), g, f, v, at, av, size),
                }
            }
            assert_eq!(text(DP_DeepTensorCheckOK(model)), "");
            assert_eq!((&global, &force, &virial), (&want.output, &want.force, &want.virial));
            assert_eq!((&atom_virial, n), (&want.atom_virial, width * n_local));
            assert_eq!(freed(values, n), want.atom_output[..w * n_local as usize]);
            // SAFETY: as above.
            unsafe {
                let (x, t, at, size) = (COORD.as_ptr(), TYPES.as_ptr(), &mut values, &mut n);
                match is_listed {
                    true => DP_DeepTensorComputeTensorNList(model, 4, x, t, null(), 1, list, at, size),
                    false => DP_DeepTensorComputeTensor(model, 4, x, t, null(), at, size),
                }
            }
            assert_eq!(freed(values, n), want.atom_output[..w * n_local as usize]);
        }
        DP_DeleteNlist(list);
        DP_DeleteDeepTensor(model);
    }
}

#[test]
fn models_that_have_no_tensors_and_bad_atoms_are_refused_with_a_text() {
    for (name, said) in [
        ("dp_test/one_side.dp", "the model predicts an energy"),
        ("se_e2_a/dos/initial.dp", "wanted a model of dipoles or polarizabilities, found dos"),
        ("absent.dp", "absent.dp"),
    ] {
        // SAFETY: a name that ends with a zero.
        let tensor = unsafe { DP_NewDeepTensor(golden(name).as_ptr()) };
        let told = text(DP_DeepTensorCheckOK(tensor));
        assert!(told.contains(said), "{told}");
        assert_eq!(text(DP_DeepTensorGetTypeMap(tensor)), "");
        let (mut values, mut n) = (null_mut(), 3);
        // SAFETY: places for what comes back.
        unsafe {
            let (none, list) = (null(), null_mut());
            DP_DeepTensorComputeTensorNList(tensor, 0, none, null(), none, 0, list, &mut values, &mut n);
        }
        assert!(values.is_null() && n == 0);
        DP_DeleteDeepTensor(tensor);
    }
    // SAFETY: a name that ends with a zero.
    let tensor = unsafe { DP_NewDeepTensor(golden("se_e2_a/dipole/initial.dp").as_ptr()) };
    let (mut values, mut n) = (null_mut(), 3);
    // SAFETY: arrays of the right sizes.
    unsafe {
        let types = [0, 1, 1, 5];
        DP_DeepTensorComputeTensor(tensor, 4, COORD.as_ptr(), types.as_ptr(), null(), &mut values, &mut n);
    }
    assert!(values.is_null() && n == 0);
    assert_eq!(text(DP_DeepTensorCheckOK(tensor)), "atom 3 has type 5, the model has the types 0 to 1");
    // One kind of handle for another.
    let potential = open("dp_test/one_side.dp");
    assert_eq!(DP_DeepTensorGetOutputDim(potential), 0);
    assert!(text(DP_DeepPotCheckOK(potential)).contains("wanted that of a model of tensors"));
    assert_eq!(DP_DeepBaseModelGetNumbTypes(tensor), 0);
    assert!(text(DP_DeepTensorCheckOK(tensor)).contains("wanted that of a model"));
}

#[test]
fn whole_frames_are_evaluated_one_after_the_other() {
    let model = open("dp_test/one_side.dp");
    let mut other = COORD;
    other[9] += 0.25;
    let coord = [COORD, other].concat();
    let (mut energy, mut force) = ([0.0; 2], [0.0; 24]);
    let n = null_mut();
    // SAFETY: arrays of the right sizes.
    unsafe {
        DP_DeepPotCompute2(
            model,
            2,
            4,
            coord.as_ptr(),
            TYPES.as_ptr(),
            null(),
            null(),
            null(),
            energy.as_mut_ptr(),
            force.as_mut_ptr(),
            n,
            n,
            n,
        );
    }
    assert_eq!(text(DP_DeepPotCheckOK(model)), "");
    for (k, coord) in [COORD, other].iter().enumerate() {
        let (mut alone, mut forces) = (0.0, [0.0; 12]);
        // SAFETY: as above.
        unsafe {
            DP_DeepPotCompute(
                model,
                4,
                coord.as_ptr(),
                TYPES.as_ptr(),
                null(),
                &mut alone,
                forces.as_mut_ptr(),
                n,
                n,
                n,
            );
        }
        assert_eq!((energy[k], &force[12 * k..12 * (k + 1)]), (alone, &forces[..]));
    }
    assert!(energy[0] != energy[1]);
}

#[test]
fn many_threads_may_call_at_once() {
    let model = open("dp_test/one_side.dp").addr();
    let mut domain = Domain::new();
    let list = domain.list().addr();
    let handle = std::ptr::without_provenance_mut;
    let (want, _) = compute(handle(model), handle(list), &COORD, &TYPES);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(
                        compute(handle(model), handle(list), &COORD, &TYPES),
                        (want.clone(), String::new())
                    );
                    let own = open("dp_test/one_side.dp");
                    assert_eq!(DP_DeepBaseModelGetCutoff(own), 4.0);
                    DP_DeleteDeepPot(own);
                }
            });
        }
    });
}

#[test]
fn atoms_of_some_types_are_numbered_and_gathered() {
    let (mut forward, mut backward, mut counts) = ([9; 5], [9; 5], [9; 2]);
    let types = [0, 1, 2, 1, 0];
    // SAFETY: arrays of the right sizes.
    unsafe {
        let [n, ghosts] = counts.each_mut().map(|x| &raw mut *x);
        DP_SelectByType(
            5,
            types.as_ptr(),
            2,
            2,
            [1, 0].as_ptr(),
            forward.as_mut_ptr(),
            n,
            backward.as_mut_ptr(),
            ghosts,
        );
        assert_eq!((forward, backward, counts), ([0, 1, -1, 2, 3], [0, 1, 3, 4, 9], [4, 2]));
        let mut out = [0; 8];
        let values: [c_int; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        DP_SelectMapInt(values.as_ptr(), forward.as_ptr(), 2, 5, 4, out.as_mut_ptr());
        assert_eq!(out, [1, 2, 3, 4, 7, 8, 9, 10]);
    }
}
