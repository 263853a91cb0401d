//! Systems of every format, and what is refused.

use super::field::{Need, OutputLabel, Wants};
use super::frame::Frame;
use super::system::System;
use super::testing::{TestSystem, WANTS, message, names, ramp};
use crate::error::Result;
use npyz::Order;

fn open(system: &TestSystem) -> Result<System> {
    System::open(&system.path(), &names(&["O", "H"]), &WANTS)
}

fn check(system: &TestSystem) -> Result<()> {
    open(system)?.check_finite(&|_| ())
}

#[track_caller]
fn refused(system: &TestSystem, wanted: &str) {
    let found = message(check(system), system);
    assert!(found.contains(wanted), "found:  {found}\nwanted: {wanted}");
}

fn frames(system: &System) -> Vec<Frame> {
    (0..system.n_frames).map(|i| system.read_frame(i).unwrap()).collect()
}

#[test]
fn npy_frames_come_from_every_set_in_order() {
    let files = TestSystem::water(2);
    files.set("set.010", 1, 50.0).set("set.002", 3, 20.0);
    let system = open(&files).unwrap();
    assert_eq!((system.n_atoms, system.n_frames, system.pbc, system.mixed), (3, 6, true, false));
    let energies: Vec<f64> = frames(&system).iter().map(|f| f.labels.energy.unwrap()).collect();
    assert_eq!(energies, [-100.0, -99.75, -80.0, -79.75, -79.5, -50.0]);
    let frame = system.read_frame(3).unwrap();
    assert_eq!(frame.coord, ramp(3, 9, 20.0)[9..18]);
    assert_eq!(frame.labels.force.unwrap(), ramp(3, 9, 20.5)[9..18]);
    assert_eq!(frame.cell, Some([9.0, 0.0, 0.0, 1.0, 9.0, 0.0, 0.0, 0.0, 9.0]));
    assert_eq!((frame.labels.virial, frame.labels.atom_energy), (None, None));
}

#[test]
fn every_float_type_byte_order_and_memory_order_reads_the_same() {
    let want = frames(&open(&TestSystem::water(3)).unwrap());
    let coord = ramp(3, 9, 0.0);
    let single: Vec<f32> = coord.iter().map(|&x| x as f32).collect();
    // Column-major: all frames of column 0 first.
    let columns: Vec<f64> =
        (0..9).flat_map(|c| (0..3).map(move |f| (f, c))).map(|(f, c)| coord[f * 9 + c]).collect();
    // [3 frames, 3 atoms, 3]: the last index is slowest.
    let cube: Vec<f64> =
        (0..27).map(|i| (i % 3, i / 3 % 3, i / 9)).map(|(f, a, d)| coord[f * 9 + a * 3 + d]).collect();
    let files = TestSystem::water(3);
    let same = || assert_eq!(frames(&open(&files).unwrap()), want);
    files.typed("set.000/coord.npy", &[3, 9], &single, "<f4", Order::C);
    same();
    files.typed("set.000/coord.npy", &[3, 9], &single, ">f4", Order::C);
    same();
    files.typed("set.000/coord.npy", &[3, 9], &coord, ">f8", Order::C);
    same();
    files.typed("set.000/coord.npy", &[3, 9], &columns, "<f8", Order::Fortran);
    same();
    files.typed("set.000/coord.npy", &[3, 3, 3], &cube, "<f8", Order::Fortran);
    same();
    files.npy("set.000/coord.npy", &[3, 3, 3], &coord).npy(
        "set.000/energy.npy",
        &[3, 1],
        &ramp(3, 1, -100.0),
    );
    same();
    check(&files).unwrap();
}

#[test]
fn one_frame_may_lack_the_dimension_of_frames() {
    let files = TestSystem::water(1);
    let want = frames(&open(&files).unwrap());
    files.npy("set.000/coord.npy", &[9], &ramp(1, 9, 0.0)).npy("set.000/energy.npy", &[], &[-100.0]);
    assert_eq!(frames(&open(&files).unwrap()), want);
}

#[test]
fn types_are_renumbered_by_name() {
    let files = TestSystem::water(1);
    let open_as = |map: &[&str]| System::open(&files.path(), &names(map), &WANTS).unwrap().types;
    assert_eq!(*open_as(&["O", "H"]), [0, 1, 1]);
    assert_eq!(*open_as(&["H", "C", "O"]), [2, 0, 0]);
    files.remove("type_map.raw").text("type.raw", "1 0\n0");
    assert_eq!(*open_as(&["H", "O"]), [1, 0, 0]);
    // Names that do not occur may be unknown to the model.
    files.text("type_map.raw", "O H Xe");
    assert_eq!(*open_as(&["O", "H"]), [1, 0, 0]);
}

#[test]
fn open_boundaries_need_no_cells() {
    let files = TestSystem::water(2);
    files.text("nopbc", "").remove("set.000/box.npy");
    let system = open(&files).unwrap();
    assert!(!system.pbc);
    assert_eq!(system.read_frame(1).unwrap().cell, None);
    check(&files).unwrap();
}

#[test]
fn labels_that_are_not_wanted_are_never_opened() {
    let files = TestSystem::water(2);
    files.text("set.000/force.npy", "not an npy file").text("set.000/virial.npy", "nor this");
    let wants = Wants { energy: true, ..Wants::default() };
    let system = System::open(&files.path(), &names(&["O", "H"]), &wants).unwrap();
    assert_eq!(system.read_frame(0).unwrap().labels.force, None);
    refused(&files, "set.000/force.npy: not a readable npy file");
}

#[test]
fn parameters_weights_and_atomic_energies_are_read() {
    let files = TestSystem::water(2);
    files.npy("set.000/fparam.npy", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    files.typed("set.000/aparam.npy", &[2, 3], &[1i64, 2, 3, 4, 5, 6], "<i8", Order::C);
    files.npy("set.000/atom_pref.npy", &[2, 3], &ramp(2, 3, 0.0));
    files.npy("set.000/atomic_ener.npy", &[2, 3], &ramp(2, 3, 7.0));
    files.typed("set.000/atom_ener_coeff.npy", &[2, 3], &[1i64, 1, 1, 1, -1, 2], "<i8", Order::C);
    let labels = Wants { atom_energy: true, atom_pref: true, atom_ener_coeff: true, ..WANTS };
    let mut wants = Wants { numb_fparam: 2, numb_aparam: 1, ..labels };
    let open = |wants: &Wants| System::open(&files.path(), &names(&["O", "H"]), wants);
    let frame = open(&wants).unwrap().read_frame(1).unwrap();
    assert_eq!((frame.fparam, frame.aparam), (vec![3.0, 4.0], vec![4.0, 5.0, 6.0]));
    assert_eq!(frame.labels.atom_energy.unwrap(), [7.75, 8.0, 8.25]);
    assert_eq!(frame.labels.atom_ener_coeff.unwrap(), [1.0, -1.0, 2.0]);
    assert_eq!(frame.labels.atom_pref.unwrap(), [0.75, 0.75, 0.75, 1.0, 1.0, 1.0, 1.25, 1.25, 1.25]);
    files.npy("set.000/atom_pref.npy", &[2, 9], &ramp(2, 9, 0.0));
    let frame = open(&wants).unwrap().read_frame(0).unwrap();
    assert_eq!(frame.labels.atom_pref.unwrap(), ramp(1, 9, 0.0));
    wants.numb_fparam = 3;
    assert!(
        message(open(&wants), &files).contains("fparam.npy: shape [2, 2]: 2 numbers for each frame found, 3")
    );
    files.remove("set.000/fparam.npy");
    assert!(message(open(&wants), &files).contains("set.000/fparam.npy: not found"));
    wants.numb_fparam = 0;
    files.remove("set.000/aparam.npy");
    assert!(message(open(&wants), &files).contains("numb_aparam = 1"));
}

fn mixed(types: &[i32]) -> TestSystem {
    let files = TestSystem::water(2);
    files.typed("set.000/real_atom_types.npy", &[2, 3], types, "<i4", Order::C);
    files
}

#[test]
fn mixed_types_belong_to_their_frame_and_may_be_virtual() {
    let files = mixed(&[0, 1, -1, 1, 1, 0]);
    let system = System::open(&files.path(), &names(&["H", "O"]), &WANTS).unwrap();
    assert!(system.mixed);
    assert_eq!(*system.read_frame(0).unwrap().types, [1, 0, -1]);
    assert_eq!(*system.read_frame(1).unwrap().types, [0, 0, 1]);
    check(&files).unwrap();
}

#[test]
fn mixed_types_outside_the_map_are_refused() {
    refused(&mixed(&[0, 1, -1, 1, 2, 0]), "set.000/real_atom_types.npy: frame 1: atom 1: type 2 is outside");
    refused(&mixed(&[0, 1, -2, 1, 1, 0]), "real_atom_types.npy: frame 0: atom 2: type -2 is outside");
    let files = mixed(&[0; 6]);
    files.remove("type_map.raw");
    refused(&files, "type_map.raw: not found");
    let files = mixed(&[0; 6]);
    files.set("set.001", 1, 0.0);
    refused(&files, "set.001/real_atom_types.npy: not found, but set.000/real_atom_types.npy is there");
    let files = mixed(&[0; 6]);
    files.text("type_map.raw", "Xe\nH\n");
    refused(&files, "type 0 is Xe (type_map.raw), which the model does not know");
}

#[test]
fn raw_text_gives_the_same_frames_as_npy() {
    let npy = TestSystem::water(3);
    let want = frames(&open(&npy).unwrap());
    let raw = TestSystem::empty();
    raw.text("type.raw", "0 1 1").text("type_map.raw", "O H");
    let rows = |values: Vec<f64>, width: usize| {
        let line = |row: &[f64]| row.iter().map(|x| format!("{x:e}")).collect::<Vec<_>>().join("  ") + "\n";
        values.chunks(width).map(line).collect::<String>()
    };
    raw.text("coord.raw", &format!("# a comment\n\n{}", rows(ramp(3, 9, 0.0), 9)));
    raw.text("box.raw", &"9 0 0 1 9 0 0 0 9\n".repeat(3));
    raw.text("energy.raw", rows(ramp(3, 1, -100.0), 1).trim_end());
    raw.text("force.raw", &rows(ramp(3, 9, 0.5), 9));
    assert_eq!(frames(&open(&raw).unwrap()), want);
    check(&raw).unwrap();
    raw.text("energy.raw", "1\n2\nthree\n");
    refused(&raw, "energy.raw: line 3: 'three' is not a number");
    raw.text("energy.raw", "1\n2\n");
    refused(&raw, "energy.raw: shape [2, 1]: 2 frames, but coord holds 3");
    raw.text("energy.raw", "1\n2\n3 4\n");
    refused(&raw, "energy.raw: line 3: 2 numbers found, 1 wanted");
    raw.text("energy.raw", "1\n2\nnan\n");
    refused(&raw, "energy.raw: frame 2: found NaN at number 1 of 1");
}

#[test]
fn missing_files_are_named() {
    let cases = [
        ("set.000/coord.npy", "set.000/coord.npy: not found"),
        ("set.000/box.npy", "set.000/box.npy: not found\n  help: a periodic system needs its cells"),
        ("type.raw", ".: found no type.raw"),
    ];
    for (file, wanted) in cases {
        let files = TestSystem::water(2);
        files.remove(file);
        refused(&files, wanted);
    }
    let files = TestSystem::empty();
    files.text("type.raw", "0\n");
    refused(&files, ".: found neither a set.* folder nor coord.raw");
    files.text("type.raw", "\n").set("set.000", 1, 0.0);
    refused(&files, "type.raw: found no atoms");
    let nowhere = System::open("nowhere/to/be/found", &names(&["O"]), &WANTS);
    assert!(message(nowhere, &files).contains("nowhere/to/be/found: no such system"));
}

#[test]
fn wrong_shapes_are_refused() {
    let cases: [(&str, &[usize], &str); 6] = [
        (
            "coord",
            &[2, 6],
            "coord.npy: shape [2, 6]: 6 numbers for each frame found, 9 wanted for the 3 atoms",
        ),
        ("box", &[2, 3], "box.npy: shape [2, 3]: 3 numbers for each frame found, 9 wanted"),
        ("energy", &[3], "energy.npy: shape [3]: 3 frames, but coord holds 2"),
        ("energy", &[2, 3], "energy.npy: shape [2, 3]: 3 numbers for each frame found, 1 wanted"),
        ("force", &[3, 9], "force.npy: shape [3, 9]: 3 frames, but coord holds 2"),
        ("virial", &[2, 6], "virial.npy: shape [2, 6]: 6 numbers for each frame found, 9 wanted"),
    ];
    for (name, shape, wanted) in cases {
        let files = TestSystem::water(2);
        files.npy(&format!("set.000/{name}.npy"), shape, &vec![1.0; shape.iter().product()]);
        refused(&files, wanted);
    }
    let files = TestSystem::water(2);
    files.npy("set.000/coord.npy", &[0, 9], &[]).npy("set.000/box.npy", &[0, 9], &[]);
    files.npy("set.000/energy.npy", &[0], &[]).npy("set.000/force.npy", &[0, 9], &[]);
    refused(&files, ".: found no frames");
}

#[test]
fn elements_that_are_not_floats_are_refused() {
    let files = TestSystem::water(2);
    files.typed("set.000/coord.npy", &[2, 9], &[1i64; 18], "<i8", Order::C);
    refused(&files, "set.000/coord.npy: found whole numbers, wanted float64 or float32");
    let header =
        b"\x93NUMPY\x01\x00\x46\x00{'descr': '<U3', 'fortran_order': False, 'shape': (2, 9), }          \n";
    std::fs::write(files.file("set.000/coord.npy"), [&header[..], &[0; 216]].concat()).unwrap();
    refused(&files, "set.000/coord.npy: found elements of type <U3, wanted numbers");
}

#[test]
fn truncated_files_are_refused() {
    let files = TestSystem::water(2);
    let bytes = std::fs::read(files.file("set.000/force.npy")).unwrap();
    std::fs::write(files.file("set.000/force.npy"), &bytes[..bytes.len() - 1]).unwrap();
    refused(&files, "set.000/force.npy: the file ends early");
    std::fs::write(files.file("set.000/force.npy"), &bytes[..20]).unwrap();
    refused(&files, "set.000/force.npy: not a readable npy file");
    std::fs::write(files.file("set.000/force.npy"), b"").unwrap();
    refused(&files, "set.000/force.npy: not a readable npy file");
}

#[test]
fn nan_and_cells_without_volume_are_refused_by_frame() {
    let files = TestSystem::water(2);
    files.set("set.001", 3, 0.0);
    let mut force = ramp(3, 9, 0.0);
    force[9 + 4] = f64::NAN;
    files.npy("set.001/force.npy", &[3, 9], &force);
    refused(&files, "set.001/force.npy: frame 1 (frame 3 of the system): found NaN at number 5 of 9");
    let files = TestSystem::water(1);
    files.npy("set.000/energy.npy", &[1], &[f64::NEG_INFINITY]);
    refused(&files, "set.000/energy.npy: frame 0: found -inf");
    files.npy("set.000/energy.npy", &[1], &[1.0]).npy("set.000/box.npy", &[1, 9], &[0.0; 9]);
    refused(&files, "set.000/box.npy: frame 0: the cell");
    files.npy("set.000/box.npy", &[1, 9], &[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 0.0, 5.0]);
    refused(&files, "has no volume");
    // A left-handed cell is a cell.
    files.npy("set.000/box.npy", &[1, 9], &[0.0, 5.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
    check(&files).unwrap();
}

#[test]
fn types_outside_the_map_are_refused_by_line() {
    let files = TestSystem::water(1);
    files.text("type.raw", "0\n1\n2\n");
    refused(&files, "type.raw: line 3: type 2 is outside type_map.raw, which names 2 types");
    files.remove("type_map.raw");
    refused(&files, "type.raw: line 3: type 2 is outside the model's type_map, which names 2 types");
    files.text("type.raw", "0\n-1\n1\n");
    refused(&files, "type.raw: line 2: type -1 is outside");
    files.text("type.raw", "0\n1\nH\n");
    refused(&files, "type.raw: line 3: 'H' is not a type index");
    files.text("type.raw", "0\n1\n1\n").text("type_map.raw", "O\nXe\n");
    refused(&files, "type.raw: line 2: type 1 is Xe (type_map.raw), which the model does not know");
}

#[test]
fn no_file_stays_open() {
    let files = TestSystem::water(2);
    let system = open(&files).unwrap();
    system.read_frame(1).unwrap();
    std::fs::remove_dir_all(files.root()).unwrap();
    let found = message(system.read_frame(1), &files);
    assert!(found.contains("set.000/coord.npy: cannot read"), "{found}");
}

/// Labels of dipoles, of the atoms of these types alone where there are any.
fn wants_dipoles(selected: &[usize]) -> Wants {
    let (of_frames, of_atoms) = (Need::No, Need::Optional);
    let output =
        OutputLabel { name: "dipole".into(), width: 3, of_frames, of_atoms, selected: selected.to_vec() };
    Wants { output: Some(output), ..WANTS }
}

#[test]
fn labels_of_selected_atoms_stand_among_zeros_for_the_others() {
    let files = TestSystem::water(2);
    let open =
        |selected: &[usize]| System::open(&files.path(), &names(&["H", "O"]), &wants_dipoles(selected));
    // The second and third atom are H, type 0 of the model.
    files.npy("set.000/atomic_dipole.npy", &[2, 6], &ramp(2, 6, 1.0));
    let system = open(&[0]).unwrap();
    assert!(system.has_selected_labels());
    for (k, row) in ramp(2, 6, 1.0).chunks(6).enumerate() {
        let label = system.read_frame(k).unwrap().labels.atom_output.unwrap();
        assert_eq!((&label[..3], &label[3..]), (&[0.0; 3][..], row));
    }
    let wanted = "set.000/atomic_dipole.npy: shape [2, 6]: 6 numbers for each frame found, 9 or 3 wanted for the 3 atoms";
    let found = message(open(&[1]), &files);
    assert!(found.contains(wanted), "{found}");
    let found = message(open(&[]), &files);
    assert!(found.contains("6 numbers for each frame found, 9 wanted"), "{found}");
    let found = message(open(&[0, 1]), &files);
    assert!(found.contains("6 numbers for each frame found, 9 wanted"), "{found}");
    // Those of all atoms are what they are.
    files.npy("set.000/atomic_dipole.npy", &[2, 9], &ramp(2, 9, 1.0));
    let system = open(&[0]).unwrap();
    assert!(!system.has_selected_labels());
    assert_eq!(system.read_frame(1).unwrap().labels.atom_output.unwrap(), ramp(2, 9, 1.0)[9..]);
}

#[test]
fn derivatives_of_positions_have_three_numbers_for_each_atom_and_coordinate() {
    let files = TestSystem::water(2);
    let wants = Wants { numb_generalized_coord: 2, ..WANTS };
    let open = || System::open(&files.path(), &names(&["O", "H"]), &wants);
    assert_eq!(open().unwrap().read_frame(0).unwrap().labels.drdq, None);
    files.npy("set.000/drdq.npy", &[2, 9, 2], &ramp(2, 18, 1.0));
    assert_eq!(open().unwrap().read_frame(1).unwrap().labels.drdq.unwrap(), ramp(2, 18, 1.0)[18..]);
    files.npy("set.000/drdq.npy", &[2, 9], &ramp(2, 9, 1.0));
    let found = message(open(), &files);
    let wanted = "set.000/drdq.npy: shape [2, 9]: 9 numbers for each frame found, 18 wanted for the 3 atoms";
    assert!(found.contains(wanted) && found.contains("3 x atoms x numb_generalized_coord"), "{found}");
}

#[test]
fn all_frames_may_stand_in_one_row_of_a_file() {
    let files = TestSystem::water(2);
    let wants = Wants { numb_aparam: 1, ..WANTS };
    let open = || System::open(&files.path(), &names(&["O", "H"]), &wants);
    files.npy("set.000/aparam.npy", &[1, 6], &ramp(2, 3, 1.0));
    assert_eq!(open().unwrap().read_frame(1).unwrap().aparam, ramp(2, 3, 1.0)[3..]);
    files.npy("set.000/aparam.npy", &[1, 5], &ramp(1, 5, 1.0));
    let found = message(open(), &files);
    assert!(found.contains("set.000/aparam.npy: shape [1, 5]: 1 frames, but coord holds 2"), "{found}");
}
