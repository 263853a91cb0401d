//! TFRecords that PiNN wrote, and round trips.

use super::super::sample::tests::water;
use super::*;

fn shared(name: &str) -> PathBuf {
    Path::new("tests/pinn_data/tfrecord").join(name)
}

fn npy(name: &str) -> Vec<f64> {
    let bytes = std::fs::read(shared(name)).unwrap();
    let file = npyz::NpyFile::new(&bytes[..]).unwrap();
    match file.dtype().descr().as_str() {
        "'<f4'" => file.into_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        "'<f8'" => file.into_vec::<f64>().unwrap().into_iter().map(|x| f64::from(x as f32)).collect(),
        "'<i4'" => file.into_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
        "'<i8'" => file.into_vec::<i64>().unwrap().into_iter().map(|x| x as f64).collect(),
        other => panic!("{other}"),
    }
}

fn check_against_npy(set: &Tfrecord) {
    assert_eq!(set.len(), 3);
    let samples: Vec<Sample> = (0..3).map(|i| set.read(i).unwrap()).collect();
    let elems: Vec<f64> = samples.iter().flat_map(|s| s.elems.iter().map(|z| f64::from(*z))).collect();
    let coord: Vec<f64> = samples.iter().flat_map(|s| s.coord.as_flattened().to_vec()).collect();
    let cell: Vec<f64> = samples.iter().flat_map(|s| s.cell.unwrap().as_flattened().to_vec()).collect();
    let energy: Vec<f64> = samples.iter().map(|s| s.e_data.unwrap()).collect();
    let force: Vec<f64> =
        samples.iter().flat_map(|s| s.f_data.clone().unwrap().as_flattened().to_vec()).collect();
    assert_eq!(elems, npy("elems.npy"));
    assert_eq!(coord, npy("coord.npy"));
    assert_eq!(cell, npy("cell.npy"));
    assert_eq!(energy, npy("e_data.npy"));
    assert_eq!(force, npy("f_data.npy"));
}

#[test]
fn records_that_pinn_wrote_hold_its_numbers() {
    let set = Tfrecord::open(&shared("sample.yml")).unwrap();
    assert!(set.batches().is_none());
    assert_eq!(set.keys().names(), ["cell", "e_data", "f_data"]);
    check_against_npy(&set);
}

#[test]
fn batches_that_pinn_wrote_come_apart_into_the_same_structures() {
    let set = Tfrecord::open(&shared("sample_batch2.yml")).unwrap();
    assert_eq!(set.batches(), Some(&[0..2, 2..3][..]));
    check_against_npy(&set);
    assert_eq!(set.read_batch(0).unwrap(), [set.read(0).unwrap(), set.read(1).unwrap()]);
}

#[test]
fn every_label_survives_a_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let yml = folder.path().join("a.yml");
    let mut other = water();
    other.elems.push(8);
    other.coord.push([2.0, 2.0, 2.0]);
    other.f_data.as_mut().unwrap().push([0.0; 3]);
    other.f_weights.as_mut().unwrap().push([0.5; 3]);
    other.q_data.as_mut().unwrap().push(1.0);
    other.oxidation.as_mut().unwrap().push(-2.0);
    let samples = [water().rounded(), other.rounded()];
    assert_eq!(write(&yml, water().keys(), samples.iter().cloned().map(Ok)).unwrap(), 2);
    let set = Tfrecord::open(&yml).unwrap();
    for (i, sample) in samples.iter().enumerate() {
        assert_eq!(&set.read(i).unwrap(), sample);
    }
    let scalar = Sample { d_data: Some(Dipole::Scalar(1.5)), ..water() };
    write(&yml, scalar.keys(), [Ok(scalar)]).unwrap();
    assert_eq!(Tfrecord::open(&yml).unwrap().read(0).unwrap().d_data, Some(Dipole::Scalar(1.5)));
}

#[test]
fn the_yml_file_reads_as_pinn_writes_it() {
    let keys = Keys { e_data: true, ..Keys::default() };
    let want = "format:\n  coord:\n    dtype: float32\n    shape:\n    - null\n    - 3\n  e_data:\n    dtype: float32\n    \
                shape: []\n  elems:\n    dtype: int32\n    shape:\n    - null\ninfo:\n  n_sample: 7\n";
    assert_eq!(yml_text(keys, 7), want);
}

#[test]
fn padding_vanishes() {
    let mut sample = water();
    sample.elems[1] = 0;
    let sample = without_padding(sample);
    assert_eq!(sample.elems, [8, 1]);
    assert_eq!(sample.coord[1], water().coord[2]);
    assert_eq!(sample.q_data.unwrap(), [-0.75, 0.25]);
}

/// The error of the sample after a change of its files.
fn error_of(yml: fn(String) -> String, tfr: fn(&mut Vec<u8>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.yml");
    std::fs::write(&path, yml(std::fs::read_to_string(shared("sample.yml")).unwrap())).unwrap();
    let mut bytes = std::fs::read(shared("sample.tfr")).unwrap();
    tfr(&mut bytes);
    std::fs::write(path.with_extension("tfr"), bytes).unwrap();
    let read = |set: Tfrecord| (0..set.len()).try_for_each(|i| set.read(i).map(|_| ()));
    Tfrecord::open(&path).and_then(read).unwrap_err().to_string()
}

#[test]
fn errors_name_record_and_byte() {
    let e = error_of(|yml| yml, |tfr| tfr[277 + 40] ^= 1);
    assert!(e.contains("x.tfr: record 1 at byte 277: the checksum of the data is"), "{e}");
    let e = error_of(|yml| yml, |tfr| tfr[277] ^= 1);
    assert!(e.contains("record 1 at byte 277: the checksum of the length is"), "{e}");
    let e = error_of(|yml| yml, |tfr| tfr.truncate(700));
    assert!(
        e.contains("record 2 at byte 554: the record has 261 bytes of data, but the file has only 146"),
        "{e}"
    );
    let e = error_of(|yml| yml.replace("n_sample: 3", "n_sample: 4"), |_| ());
    assert!(e.contains("3 records, but "), "{e}");
    let e = error_of(|yml| yml.replace("int32", "int64"), |_| ());
    assert!(e.contains("record 0 at byte 0: elems: found int32 of shape [3], but"), "{e}");
    let e = error_of(|yml| yml.replace("format:", "formats:"), |_| ());
    assert!(e.contains("found no `format`"), "{e}");
    let e = error_of(|yml| yml.replace("  e_data:", "  d_data:"), |_| ());
    assert!(e.contains("d_data is missing, but the .yml file announces it"), "{e}");
}
