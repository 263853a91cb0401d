//! Damaged files give errors: never a panic, never memory that the file does not fill.
//!
//! The short runs belong to the usual tests. The long ones are started by hand, each on its own:
//! `PHALANX_FUZZ_SECONDS=150 cargo test --release --lib pinn::data::fuzz::long_trr -- --ignored --nocapture`.

use super::energies::read_energies;
use super::extxyz;
use super::mimic::{Mimic, MimicFiles, MimicOptions};
use super::mpt::Topology;
use super::runner;
use super::source::Source;
use super::tfrecord::Tfrecord;
use super::trr::Trajectory;
use crate::error::Result;
use crate::pinn::split::PythonRandom;
use crate::report::record::{HEAD_BYTES, TAIL_BYTES, payload_length, put_record};
use std::path::Path;
use std::time::{Duration, Instant};

/// A reader, good files to start from, and what is done with a damaged one.
struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    /// Damages the content of records instead of the file, so that checksums hold.
    records: bool,
    read: fn(&Path) -> Result<()>,
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new("tests/pinn_data").join(name)).unwrap()
}

fn read_all(source: &dyn Source) -> Result<()> {
    (0..source.len()).try_for_each(|i| source.read(i).map(|_| ()))
}

fn mpt() -> Target {
    let read = |path: &Path| {
        let topology = Topology::read(path)?;
        // The trajectory limits the atoms of a run; here a number does.
        if topology.n_atoms()? < 1_000_000 { topology.elems().map(|_| ()) } else { Ok(()) }
    };
    Target { name: "mpt", seeds: vec![file("mimic/sample.mpt")], records: false, read }
}

fn trr() -> Target {
    let read = |path: &Path| {
        let trajectory = Trajectory::open(path)?;
        let all = (0..trajectory.frames().len()).try_for_each(|i| trajectory.read(i).map(|_| ()));
        let folder = Path::new("tests/pinn_data/mimic");
        let files = MimicFiles {
            mpt: folder.join("sample.mpt"),
            trr: path.into(),
            energies: folder.join("ENERGIES"),
        };
        let run = Mimic::open(&files, MimicOptions { drop_last_frame: true, ..MimicOptions::default() });
        all.and(run.and_then(|run| read_all(&run)))
    };
    Target {
        name: "trr",
        seeds: vec![file("mimic/sample_single.trr"), file("mimic/sample_double.trr")],
        records: false,
        read,
    }
}

fn energies() -> Target {
    let mut restarted = file("mimic/ENERGIES");
    restarted.extend_from_slice(b" <<<<<<  NEW DATA  >>>>>>\n");
    restarted.extend_from_slice(&file("mimic/ENERGIES"));
    let read = |path: &Path| read_energies(path).map(|_| ());
    Target { name: "ENERGIES", seeds: vec![file("mimic/ENERGIES"), restarted], records: false, read }
}

/// The damaged file stands beside a sound .yml file.
fn tfrecord(records: bool) -> Target {
    let read = |path: &Path| {
        let mut result = Ok(());
        for name in ["sample.yml", "sample_batch2.yml"] {
            let yml = path.with_extension("yml");
            let text = String::from_utf8(file(&format!("tfrecord/{name}"))).unwrap();
            let cut = text.find("info:").unwrap();
            std::fs::write(&yml, &text[..cut]).unwrap();
            result = Tfrecord::open(&yml).and_then(|set| read_all(&set));
        }
        result
    };
    let seeds = vec![file("tfrecord/sample.tfr"), file("tfrecord/sample_batch2.tfr")];
    Target { name: if records { "tfrecord data" } else { "tfrecord" }, seeds, records, read }
}

fn text() -> Target {
    let runner =
        b"begin\nlattice 9 0 0\nlattice 0 9 0\nlattice 0 0 9\natom 0 0 1 O -0.5 0 .1 .2 .3\nenergy -1\nend\n";
    let xyz = b"2\nLattice=\"5 0 0 0 5 0 0 0 6\" Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.5 pbc=\"T T T\"\n\
                O 0 0 0.5 0.1 0.2 0.3\nH 0 0 1.5 -0.1 -0.2 -0.3\n";
    let read = |path: &Path| {
        let runner = runner::open(path).and_then(|set| read_all(&set));
        let qm9 = super::qm9::Qm9::open(path.to_str().unwrap(), super::qm9::LabelMap::parse("").unwrap());
        let xyz = extxyz::open(path).and_then(|set| read_all(&set));
        runner.and(xyz).and(qm9.and_then(|set| read_all(&set)))
    };
    Target { name: "text", seeds: vec![runner.repeat(2), xyz.repeat(2)], records: false, read }
}

/// A whole number below `n`.
fn below(random: &mut PythonRandom, n: usize) -> usize {
    random.bits() as usize % n.max(1)
}

/// Changes bytes in one of many ways.
fn damage(bytes: &mut Vec<u8>, random: &mut PythonRandom) {
    let at = below(random, bytes.len());
    let len = (1 + below(random, 64)).min(bytes.len() - at);
    const VALUES: [u32; 10] = [0, 1, 2, 7, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x0100_0000];
    match below(random, 9) {
        0 => bytes[at] ^= 1 << below(random, 8),
        1 => bytes[at] = random.bits() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..at + len)),
        4 => {
            let part = bytes[at..at + len].to_vec();
            bytes.splice(at..at, part);
        }
        5 => bytes[at..at + len].fill([0, 0xff, 0x7f, b' ', b'9'][below(random, 5)]),
        6 => {
            let word = VALUES[below(random, VALUES.len())];
            let word = if below(random, 2) == 0 { word.to_be_bytes() } else { word.to_le_bytes() };
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&word[..end - at]);
        }
        7 => {
            let other = below(random, bytes.len() - len + 1);
            let part = bytes[other..other + len].to_vec();
            bytes[at..at + len].copy_from_slice(&part);
        }
        _ => {
            let noise: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
            bytes.splice(at..at, noise);
        }
    }
    if bytes.is_empty() {
        bytes.push(random.bits() as u8);
    }
}

/// Damages the data of one record and gives it a checksum that holds.
fn damage_record(bytes: &[u8], random: &mut PythonRandom) -> Vec<u8> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = HEAD_BYTES + payload_length(rest).unwrap() as usize;
        records.push(rest[HEAD_BYTES..end].to_vec());
        rest = &rest[end + TAIL_BYTES..];
    }
    let which = below(random, records.len());
    for _ in 0..1 + below(random, 3) {
        damage(&mut records[which], random);
    }
    let mut out = Vec::new();
    records.iter().for_each(|record| put_record(&mut out, record));
    out
}

/// Reads damaged files until `more` says no. Gives the number of files, and of those that were read all the same.
fn run(target: &Target, seed: u64, mut more: impl FnMut(u64) -> bool) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.tfr");
    let mut random = PythonRandom::new(seed);
    let (mut n, mut sound) = (0, 0);
    while more(n) {
        let mut bytes = target.seeds[below(&mut random, target.seeds.len())].clone();
        if target.records {
            bytes = damage_record(&bytes, &mut random);
        } else {
            (0..1 + below(&mut random, 3)).for_each(|_| damage(&mut bytes, &mut random));
        }
        std::fs::write(&path, &bytes).unwrap();
        let result = std::panic::catch_unwind(|| (target.read)(&path));
        match result {
            Err(_) => {
                let kept = std::env::temp_dir().join(format!("phalanx-fuzz-{}-{seed}-{n}", target.name));
                std::fs::write(&kept, &bytes).unwrap();
                panic!("{}: file {n} of seed {seed} panics; kept as {}", target.name, kept.display());
            }
            Ok(Ok(())) => sound += 1,
            Ok(Err(error)) => assert!(!error.message().is_empty(), "an error says something"),
        }
        n += 1;
    }
    (n, sound)
}

fn short(target: Target) {
    let (n, sound) = run(&target, 7, |n| n < 1500);
    assert!(sound < n, "{}: some damage must be found", target.name);
}

fn long(target: Target) {
    let seconds = std::env::var("PHALANX_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(120);
    let (start, end) = (Instant::now(), Duration::from_secs(seconds));
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (n, sound) = run(&target, seed, |_| start.elapsed() < end);
    println!("{}: {n} files of seed {seed}, {sound} of them readable, no panic", target.name);
}

#[test]
fn damaged_topologies_give_errors() {
    short(mpt());
}

#[test]
fn damaged_trajectories_give_errors() {
    short(trr());
}

#[test]
fn damaged_energies_give_errors() {
    short(energies());
}

#[test]
fn damaged_tfrecords_give_errors() {
    short(tfrecord(false));
}

#[test]
fn damaged_data_in_sound_records_gives_errors() {
    short(tfrecord(true));
}

#[test]
fn damaged_text_gives_errors() {
    short(text());
}

#[test]
#[ignore = "takes minutes"]
fn long_mpt() {
    long(mpt());
}

#[test]
#[ignore = "takes minutes"]
fn long_trr() {
    long(trr());
}

#[test]
#[ignore = "takes minutes"]
fn long_energies() {
    long(energies());
}

#[test]
#[ignore = "takes minutes"]
fn long_tfrecord() {
    long(tfrecord(false));
}

#[test]
#[ignore = "takes minutes"]
fn long_tfrecord_data() {
    long(tfrecord(true));
}

#[test]
#[ignore = "takes minutes"]
fn long_text() {
    long(text());
}
