//! The real binary in a fresh folder, with small data and a small net.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// How a run of `dp` ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Ended { code: output.status.code(), stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
    }
}

impl Ended {
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Ends with 1, and standard error holds all these texts.
    #[track_caller]
    pub fn fails(self, texts: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }
}

/// A fresh folder to run `dp` in.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    /// With a training and a validation system.
    pub fn with_data() -> Self {
        let place = Place::new();
        small_system(&place.path("train"), 12, 1);
        small_system(&place.path("valid"), 4, 2);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn input(&self, name: &str, input: &Value) {
        self.write(name, input.to_string());
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dp"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).env("OMP_NUM_THREADS", "1");
        command
    }

    pub fn dp(&self, line: &str) -> Ended {
        self.command(line).output().unwrap().into()
    }

    /// Starts `dp` and does not wait.
    pub fn start(&self, line: &str) -> Child {
        self.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Copies a folder with everything below.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            copy_file(&entry.path(), &target)
        }
    }
}

fn copy_file(from: &Path, to: &Path) {
    match std::fs::read_link(from) {
        Ok(target) => std::os::unix::fs::symlink(target, to).unwrap(),
        Err(_) => drop(std::fs::copy(from, to).unwrap()),
    }
}

/// Numbers in [-1, 1) that look random.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn fill(&mut self, n: usize, scale: f64) -> Vec<f64> {
        (0..n).map(|_| scale * self.next()).collect()
    }
}

/// An npy file of float64.
pub fn npy(shape: &[usize], values: &[f64]) -> Vec<u8> {
    npy_of("<f8", shape, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

/// An npy file of anything.
pub fn npy_of(dtype: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Atoms of the small system.
pub const ATOMS: usize = 8;

/// Eight atoms near the corners of a grid in a cell of 5 A; labels of no meaning.
pub fn small_system(folder: &Path, n_frames: usize, seed: u64) {
    let set = folder.join("set.000");
    std::fs::create_dir_all(&set).unwrap();
    std::fs::write(folder.join("type.raw"), "0\n1\n1\n0\n1\n1\n0\n1\n").unwrap();
    std::fs::write(folder.join("type_map.raw"), "O\nH\n").unwrap();
    let mut noise = Noise(seed);
    let mut coord = Vec::new();
    for _ in 0..n_frames {
        for i in 0..ATOMS {
            coord.extend([i & 1, i >> 1 & 1, i >> 2].map(|k| 2.5 * k as f64 + 0.3 * noise.next()));
        }
    }
    let boxes: Vec<f64> =
        (0..n_frames).flat_map(|_| [5.0, 0.0, 0.0, 0.2, 5.1, 0.0, -0.1, 0.3, 5.2]).collect();
    let energy: Vec<f64> = noise.fill(n_frames, 0.5).iter().map(|e| e - 30.0).collect();
    let arrays = [
        ("coord", 3 * ATOMS, coord),
        ("box", 9, boxes),
        ("energy", 1, energy),
        ("force", 3 * ATOMS, noise.fill(3 * ATOMS * n_frames, 0.5)),
        ("virial", 9, noise.fill(9 * n_frames, 0.5)),
    ];
    for (name, width, values) in arrays {
        std::fs::write(set.join(format!("{name}.npy")), npy(&[n_frames, width], &values)).unwrap();
    }
}

/// Labels of everything that a fitting net may predict beside energies, of each frame and of each atom of a system.
pub fn write_outputs(system: &Path, n_frames: usize) {
    let n_atoms = std::fs::read_to_string(system.join("type.raw")).unwrap().split_whitespace().count();
    for (name, width) in [("dos", 3), ("gap", 2), ("dipole", 3), ("polarizability", 9)] {
        for (file, columns) in [(name.to_string(), width), (format!("atom_{name}"), n_atoms * width)] {
            let values: Vec<f64> = (0..n_frames * columns).map(|k| (k as f64 * 0.37).sin()).collect();
            std::fs::write(system.join("set.000").join(file + ".npy"), npy(&[n_frames, columns], &values))
                .unwrap();
        }
    }
}

/// A file with energies of pairs of two types at short range.
pub fn table_of_pairs() -> String {
    let row = |k: usize| {
        let r = 0.05 * k as f64;
        format!("{r:.3} {:e} {:e} {:e}\n", 30.0 * (-r).exp() / r, 10.0 * (-r).exp() / r, 4.0 * (-r).exp() / r)
    };
    (1..90).map(row).collect()
}

/// A training input for it. The learning rate does not depend on the number of steps.
pub fn small_input(steps: u64, save_freq: u64) -> Value {
    json!({
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {"type": "se_e2_a", "sel": [24, 40], "rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6],
                "axis_neuron": 2, "type_one_side": true, "seed": 1},
            "fitting_net": {"neuron": [6, 6], "seed": 1}
        },
        "learning_rate": {"type": "exp", "start_lr": 0.005, "decay_steps": 5, "decay_rate": 0.9},
        "loss": {"start_pref_e": 0.1, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1,
            "start_pref_v": 0.1, "limit_pref_v": 1},
        "training": {
            "training_data": {"systems": ["train"], "batch_size": 2},
            "numb_steps": steps, "seed": 3, "disp_freq": 5, "save_freq": save_freq
        }
    })
}
