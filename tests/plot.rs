//! `dp plot` and `pinn plot`: the real binaries draw what runs leave behind.

mod common;

use common::Place;

/// Two runs, as DeePMD-kit and as we write them; the second one stopped in the middle of a row.
fn with_curves() -> Place {
    let place = Place::new();
    for folder in ["one", "two"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let head = "#  step      rmse_val    rmse_trn    rmse_f_val  rmse_f_trn         lr\n";
    let row = |step: u32, x: f64| {
        format!("{step:7} {:.2e} {:.2e} {:.2e} {:.2e} 1.0e-03\n", 20.0 * x, 18.0 * x, x, 0.9 * x)
    };
    let rows = |n: u32| (0..n).map(|i| row(100 * i, 1.0 / f64::from(i + 1))).collect::<String>();
    place.write("one/lcurve.out", format!("{head}{}", rows(20)));
    place.write("two/lcurve.out", format!("{head}# a note\n{}   2000 1.0e", rows(5)));
    place
}

#[test]
fn runs_are_compared_in_one_figure() {
    let place = with_curves();
    place.dp("plot one/lcurve.out two/lcurve.out -o a.svg -o a.png -t water").succeeds();
    let svg = place.text("a.svg");
    for text in
        [">water<", ">one<", ">two<", ">validation<", ">force RMSE (eV/Å)<", ">learning rate<", ">10⁻¹<"]
    {
        assert!(svg.contains(text), "{text} is not in the figure");
    }
    // Two curves of each run for two quantities and one for the rate, and the dashes of the legend.
    assert_eq!(svg.matches("stroke-width=\"1.5\"").count(), 10);
    let png = place.read("a.png");
    assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
    // 300 pixels to an inch: two panels are 7 inches wide.
    assert_eq!(u32::from_be_bytes(png[16..20].try_into().unwrap()), 2100);
    place.dp("plot one/lcurve.out -q rmse_f").succeeds();
    assert!(!place.text("lcurve.svg").contains("learning rate"));
}

#[test]
fn branches_of_a_run_have_colours_of_their_own() {
    let place = Place::new();
    let head = "# step rmse_f_val_water rmse_f_trn_water rmse_f_trn_ice lr\n";
    place.write("lcurve.out", format!("{head} 1 3e-1 2e-1 5e-1 1e-3\n 100 2e-1 1e-1 3e-1 1e-4\n"));
    place.dp("plot lcurve.out -q rmse_f").succeeds();
    let svg = place.text("lcurve.svg");
    for text in [">water<", ">ice<", ">training<", ">validation<", ">force RMSE (eV/Å)<"] {
        assert_eq!(svg.matches(text).count(), 1, "{text} in {svg}");
    }
    // Three curves, and in the legend two colours and two kinds.
    assert_eq!(svg.matches("stroke-width=\"1.5\"").count(), 3);
    place.dp("plot lcurve.out -q rmse_f_trn_ice").fails(&["there are: rmse_f lr"]);
}

/// The files of `dp test -d` for models that predict no energy: one for each frame, or one for each system.
#[test]
fn outputs_of_frames_and_atoms_stand_beside_labels() {
    let place = Place::new();
    for (name, columns, row) in [
        ("a.dos.out.0", "data_dos pred_dos", "1 2\n3 3"),
        ("a.dos.out.1", "data_dos pred_dos", "5 5\n6 6"),
        ("a.dos.out.1.0", "data_dos pred_dos", "7 7\n8 8"),
        ("a.ados.out.0", "data_ados pred_ados", "7 7.5"),
        ("b.out", "data_x data_y data_z pred_x pred_y pred_z", "1 2 3 1 2 4"),
        ("b.out.1", "data_x data_y data_z pred_x pred_y pred_z", "1 2 3 1 2 3"),
        ("b.output", "data_x data_y data_z pred_x pred_y pred_z", "1 2 3 9 9 9"),
    ] {
        place.write(name, format!("# water - 0: {columns}\n{row}\n"));
    }
    place.dp("plot a").succeeds();
    let svg = place.text("parity.svg");
    // sqrt(1 / 6)
    for text in
        ["density of states<", "density of states of atoms<", "RMSE 4.08e-01 1/eV<", "RMSE 5.00e-01 1/eV<"]
    {
        assert!(svg.contains(text), "{text} in {svg}");
    }
    std::fs::create_dir(place.path("b")).unwrap(); // hides nothing
    for (args, rmse) in [("plot b", "RMSE 4.08e-01<"), ("plot b.out", "RMSE 5.77e-01<")] {
        place.dp(args).succeeds();
        let svg = place.text("parity.svg");
        assert!(svg.contains(">dipole<") && svg.contains(rmse) && svg.contains(">label<"), "{svg}");
    }
}

#[test]
fn predictions_stand_beside_labels() {
    let place = Place::new();
    let rows: String = (0..50).map(|i| format!("{i}.0 0 1 {}.1 0.2 1\n", i)).collect();
    place.write("detail.f.out", format!("# sys: data_fx data_fy data_fz pred_fx pred_fy pred_fz\n{rows}"));
    place.write("detail.v_peratom.out", "# sys: data_vxx pred_vxx\n0 1\n0 2\n");
    place.dp("plot detail").succeeds();
    let svg = place.text("parity.svg");
    // sqrt((0.1^2 + 0.2^2) / 3)
    assert!(svg.contains("RMSE 1.29e-01 eV/Å"), "{svg}");
    // Labels that are not there are no labels.
    assert!(!svg.contains("virial"));
    place.dp("plot detail.v_peratom.out -o v.svg").succeeds();
    assert!(place.text("v.svg").contains("RMSE 1.58e+00 eV/atom"));
}

#[test]
fn what_cannot_be_drawn_is_named_and_nothing_is_written() {
    let place = with_curves();
    place.write("rubbish", "not a curve\n");
    place.write("other.json", "{\"a\": 1}");
    place.write("detail.f.out", "1 2 3\n");
    for (args, wants) in [
        ("plot nothing", "there is no such file"),
        ("plot rubbish", "line 1: found no row of a learning curve"),
        ("plot other.json", "there is no traceEvents"),
        ("plot detail.f.out", "line 1: found no labels and as many predictions"),
        ("plot one/lcurve.out -q rmse_g", "there are: rmse rmse_f lr"),
        ("plot one/lcurve.out -o a.pdf", "written as .svg or .png"),
        ("plot one/lcurve.out -n a -n b", "found 2 names for 1 files"),
        ("plot one/lcurve.out -o no/where.svg", "no"),
    ] {
        place.dp(args).fails(&[wants]);
    }
    let mut left: Vec<_> =
        std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["detail.f.out", "one", "other.json", "rubbish", "two"]);
}
