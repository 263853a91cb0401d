//! The real `pinn` binary, run in fresh folders: what it prints, what it writes, how it ends.

use phalanx::pinn::data::{Source, detect, tfrecord::Tfrecord};
use phalanx::report::tensorboard::EventWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fresh folder to run `pinn` in.
struct Place(tempfile::TempDir);

/// How a run ended.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn pinn(&self, args: &[&str]) -> Run {
        let output =
            Command::new(env!("CARGO_BIN_EXE_pinn")).args(args).current_dir(self.0.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Run {
    #[track_caller]
    fn prints(self, want: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(0), want), "{}", self.stderr);
    }

    #[track_caller]
    fn fails(self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pinn_data").join(name).to_str().unwrap().to_owned()
}

/// Ten frames of a helium atom whose energy is its number.
fn ten_frames() -> String {
    (0..10).map(|i| format!("1\nenergy={i}\nHe 0 0 {i}\n")).collect()
}

fn energies(place: &Place, name: &str) -> Vec<f64> {
    let set = Tfrecord::open(&place.path(name)).unwrap();
    (0..set.len()).map(|i| set.read(i).unwrap().e_data.unwrap()).collect()
}

#[test]
fn a_data_set_is_converted_in_its_order_under_the_name_that_was_asked_for() {
    let place = Place::new();
    place.write("a.xyz", &ten_frames());
    place.pinn(&["convert", "a.xyz"]).prints("10 samples written to dataset.tfr\n");
    assert_eq!(energies(&place, "dataset.yml"), (0..10).map(f64::from).collect::<Vec<_>>());
    place.pinn(&["convert", "a.xyz", "-o", "some.yml", "-t", "4"]).prints("4 samples written to some.tfr\n");
    assert_eq!(energies(&place, "some.yml"), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn subsets_hold_the_structures_that_pinn_would_draw() {
    let place = Place::new();
    place.write("a.xyz", &ten_frames());
    let want =
        "8 samples written to train.tfr\n1 samples written to vali.tfr\n1 samples written to test.tfr\n";
    place.pinn(&["convert", "a.xyz", "-o", "train:8,vali:1,test:1"]).prints(want);
    // splits.json, n10_seed0_8_1_1
    assert_eq!(energies(&place, "train.yml"), [7.0, 8.0, 1.0, 5.0, 3.0, 4.0, 2.0, 0.0]);
    assert_eq!((energies(&place, "vali.yml"), energies(&place, "test.yml")), (vec![9.0], vec![6.0]));
    let want = "4 samples written to train.tfr\n1 samples written to eval.tfr\n";
    place.pinn(&["convert", "a.xyz", "-o", "train:8,eval:2", "--no-shuffle", "-t", "5"]).prints(want);
    assert_eq!(energies(&place, "train.yml"), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(energies(&place, "eval.yml"), [8.0]);
}

#[test]
fn every_format_is_found_and_converted() {
    let place = Place::new();
    let mimic = format!(
        "{},{},{}",
        data("mimic/sample.mpt"),
        data("mimic/sample_double.trr"),
        data("mimic/ENERGIES")
    );
    let run = place.pinn(&["convert", &mimic, "-o", "mimic"]);
    assert!(run.stderr.contains("energies are in Hartree and forces in kJ/(mol A)"), "{}", run.stderr);
    run.prints("5 samples written to mimic.tfr\n");
    let (source, written) =
        (detect::open(&mimic, "auto").unwrap(), Tfrecord::open(&place.path("mimic.yml")).unwrap());
    for i in 0..5 {
        assert_eq!(source.read(i).unwrap(), written.read(i).unwrap());
    }
    place
        .pinn(&["convert", &data("tfrecord/sample_batch2.yml"), "-o", "again"])
        .prints("3 samples written to again.tfr\n");
    let water = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/water/data_0");
    place
        .pinn(&["convert", water.to_str().unwrap(), "-o", "w", "-t", "2"])
        .prints("2 samples written to w.tfr\n");
    let keys = Tfrecord::open(&place.path("w.yml")).unwrap().keys();
    assert_eq!(keys.names(), ["cell", "e_data", "f_data", "s_data"]);
}

#[test]
fn conversions_that_cannot_be_done_leave_nothing_behind() {
    let place = Place::new();
    place.write("a.xyz", &ten_frames());
    place.write("bad.xyz", &ten_frames().replace("energy=7", "energy=x"));
    place.pinn(&["convert", "no.xyz"]).fails(1, &["no.xyz: no such file or folder"]);
    place.pinn(&["convert", "bad.xyz"]).fails(1, &["bad.xyz: frame 7: line 23: energy: found \"x\""]);
    place.pinn(&["convert", "a.xyz", "-o", "a:1,b"]).fails(1, &["--output: found \"b\", wanted name:ratio"]);
    place
        .pinn(&["convert", "a.xyz", "-o", "a:10,b:0.001"])
        .fails(1, &["b: none of the 10 structures is left"]);
    place.pinn(&["convert", "a.xyz", "-f", "runer"]).fails(1, &["did you mean `runner`?"]);
    place.pinn(&["convert", "a.xyz", "-f", "cp2k"]).fails(1, &["the format cp2k is not supported"]);
    place.pinn(&["convert", "a.xyz", "-t", "0"]).fails(1, &["--total 0"]);
    place.pinn(&["convert"]).fails(2, &["FILENAME"]);
    let mut names: Vec<_> =
        std::fs::read_dir(place.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.xyz", "bad.xyz"]);
}

#[test]
fn metrics_are_printed_by_step() {
    let place = Place::new();
    let mut writer = EventWriter::create(&place.path("model/eval")).unwrap();
    writer.scalars(10, [("METRICS/F_RMSE", 2.0), ("METRICS/E_RMSE", 0.5), ("METRICS/E_MAE", 0.25)]).unwrap();
    writer.scalars(2000, [("METRICS/F_RMSE", 1.5), ("loss", 3.0)]).unwrap();
    drop(writer);
    let want = "# Step  E_RMSE  F_RMSE\n10          5.000000e-01   2.000000e+00 \n2000                 nan   1.500000e+00 \n";
    place.pinn(&["log", "model/eval"]).prints(want);
    place.pinn(&["log", "model/eval", "-t", "loss", "-f", "%.1f|"]).prints("# Step  loss\n2000      3.0|\n");
    place.pinn(&["log", "model/eval", "-t", "S_"]).fails(1, &["no tag contains \"S_\"", "METRICS/E_MAE"]);
    place.pinn(&["log", "model"]).fails(1, &["found no event files", "there are some in model/eval"]);
    drop(EventWriter::create(&place.path("fresh")).unwrap());
    place.pinn(&["log", "fresh"]).fails(1, &["hold no metrics yet"]);
    place.pinn(&["log", "none"]).fails(1, &["none: cannot list"]);
    place.pinn(&["log", "model/eval", "-f", "%s"]).fails(1, &["--fmt: \"%s\" is not the format of a number"]);
}

#[test]
fn repetitions_of_a_model_are_averaged() {
    let place = Place::new();
    place.write("m/a-1/eval.log", "# Step  E_MAE  F_MAE\n10 1 1\n20 0.5 2.0\n");
    place.write("m/a-2/eval.log", "# Step  E_MAE  F_MAE\n20 1.5 4.0\n");
    place.write("m/bc-1/eval.log", "# Step  E_MAE  F_MAE\n30 0.125 1.0\n");
    let a = "{'model': 'a', 'Step': '20', 'E_MAE_MEAN': '2.0000', 'E_MAE_STD': '1.0000', \
             'F_MAE_MEAN': '3.0000', 'F_MAE_STD': '1.0000'}\n";
    let bc = "{'model': 'bc', 'Step': '30', 'E_MAE_MEAN': '0.2500', 'E_MAE_STD': '0.0000', \
              'F_MAE_MEAN': '1.0000', 'F_MAE_STD': '0.0000'}\n";
    place.pinn(&["report", "m", "-e", "2", "-f", "1"]).prints(&format!("{a}{bc}"));
    place.pinn(&["report", "m", "-e", "2", "-f", "1", "-k", "b", "-k", "c"]).prints(bc);
    let run = place.pinn(&["report", "m", "-k", "bc"]);
    assert!(
        run.stdout.contains("'F_MAE_MEAN': '0.0000'") && run.stderr.contains("give -f 1"),
        "{}",
        run.stderr
    );
    place.pinn(&["report", "m", "-k", "zz"]).fails(1, &["found no eval.log"]);
    place.pinn(&["report", "m", "-l", "other.log"]).fails(1, &["found no other.log"]);
    place.write("w/1/eval.log", "# Step  E_MAE\n20 1.5\n");
    place.write("w/1/name-7/params.yml", "");
    place
        .pinn(&["report", "w", "-w"])
        .prints("{'model': 'name', 'Step': '20', 'E_MAE_MEAN': '1.5000', 'E_MAE_STD': '0.0000'}\n");
}

#[test]
fn the_version_and_unknown_commands() {
    let place = Place::new();
    place.pinn(&["version"]).prints(&format!("Phalanx version: {}\n", env!("CARGO_PKG_VERSION")));
    place.pinn(&["convrt"]).fails(2, &["pinn convrt: there is no such command", "did you mean `convert`?"]);
    assert!(place.pinn(&[]).stdout.contains("Usage: pinn"));
}
