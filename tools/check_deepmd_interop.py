"""The comparisons of check_deepmd_interop.sh. Needs the Python of a DeePMD-kit install."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

TOLERANCE = 1e-10  # abs + rel * |want|, float64 models
TOLERANCE_FLOAT32 = 1e-5
FRAMES = 3


def make_system(folder):
    """Six water molecules at random: types O and H, with the parameters that a model may ask for."""
    rng = np.random.default_rng(1)
    folder = Path(folder)
    data = folder / "set.000"
    data.mkdir(parents=True)
    types = np.array([0, 1, 1] * 6)
    n = len(types)
    (folder / "type.raw").write_text("\n".join(map(str, types)) + "\n")
    (folder / "type_map.raw").write_text("O\nH\n")
    coord = rng.uniform(0, 6, (FRAMES, n, 3))
    arrays = {
        "coord": coord.reshape(FRAMES, -1),
        "box": np.tile(np.diag([6.0, 6.5, 7.0]).ravel(), (FRAMES, 1)),
        "energy": np.zeros(FRAMES),
        "force": np.zeros((FRAMES, 3 * n)),
        "virial": np.zeros((FRAMES, 9)),
        "fparam": rng.normal(size=(FRAMES, 2)),
        "aparam": rng.normal(size=(FRAMES, n)),
    }
    for name, array in arrays.items():
        np.save(data / f"{name}.npy", array)


def load_system(folder, type_map):
    """Coordinates, cells, types in the model's numbering, parameters; the first frames."""
    folder = Path(folder)
    sets = sorted(folder.glob("set.*"))

    def load(name):
        files = [s / f"{name}.npy" for s in sets]
        if not all(f.exists() for f in files):
            return None
        return np.concatenate([np.load(f).astype(np.float64) for f in files])[:FRAMES]

    types = np.loadtxt(folder / "type.raw", dtype=int, ndmin=1)
    if (folder / "type_map.raw").exists():
        names = (folder / "type_map.raw").read_text().split()
        types = np.array([type_map.index(names[t]) for t in types])
    box = None if (folder / "nopbc").exists() else load("box")
    return load("coord"), box, types, load("fparam"), load("aparam")


def predict(model_file, system):
    from deepmd.infer import DeepPot

    model = DeepPot(str(model_file))
    coord, box, types, fparam, aparam = load_system(system, model.get_type_map())
    extra = {}
    if model.get_dim_fparam():
        extra["fparam"] = fparam
    if model.get_dim_aparam():
        extra["aparam"] = aparam.reshape(len(coord), len(types), -1)
    return dict(zip(["energy", "force", "virial"], model.eval(coord, box, types, **extra)))


def worst(got, want, tolerance):
    """The largest deviation as a multiple of what is allowed."""
    return max(
        float(np.max(np.abs(got[k] - want[k]) / (tolerance * (1 + np.abs(want[k]))))) for k in want
    )


def convert(source, target):
    # Not `dp`: ours is called that as well.
    command = [sys.executable, "-m", "deepmd", "convert-backend", str(source), str(target)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"FAILED  dp convert-backend {source} {target}\n{run.stderr}")
    return target


def precision_of(model_file):
    from deepmd.dpmodel.utils.serialization import load_dp_model

    model = load_dp_model(str(model_file))["model"]
    return {model[part]["precision"] for part in ("descriptor", "fitting")}


def is_isotropic(model_file):
    """Whether x, y and z have the same mean, 0, and the same deviation."""
    from deepmd.dpmodel.utils.serialization import load_dp_model

    numbers = load_dp_model(str(model_file))["model"]["descriptor"]["@variables"]
    return np.all(numbers["davg"][..., 1:] == 0) and np.all(np.ptp(numbers["dstd"][..., 1:], axis=-1) == 0)


def said(ok, what):
    print(f"{'ok      ' if ok else 'FAILED  '}{what}")
    return int(not ok)


def readme(work, binary, original, system):
    """What README says of a .dp in DeePMD-kit."""
    from deepmd.infer import DeepPot

    ours = work / "readme.dp"
    for command in (["freeze", "-c", str(original), "-o", str(ours)],
                    ["convert-backend", str(ours), str(work / "readme.pth")],
                    ["freeze", "-c", str(original), "-o", str(work / "frozen.pth"), "--convert"],
                    ["freeze", "-c", str(original), "-o", str(work / "portable.pb")]):
        run = subprocess.run([binary, *command], capture_output=True, text=True,
                             env={**os.environ, "PHALANX_DEEPMD": sys.executable})
        if run.returncode:
            return said(False, f"{binary} {' '.join(command)}\n{run.stderr}")
    portable, converted = predict(ours, system), predict(work / "readme.pth", system)
    failures = said(
        np.all(np.isnan(portable["force"])) and worst(portable, {"energy": converted["energy"]}, TOLERANCE) <= 1,
        "README: a .dp in DeePMD-kit: the energy is right, forces are nan")
    failures += said(np.all(np.isfinite(converted["force"])),
                     "README: our dp convert-backend through DeePMD-kit: forces are there")
    frozen = predict(work / "frozen.pth", system)
    failures += said(all(np.array_equal(frozen[k], converted[k]) for k in frozen), "README: dp freeze --convert")
    failures += with_ase(work, ours)
    try:
        DeepPot(str(work / "portable.pb"))
        refused = False
    except Exception:
        refused = True
    failures += said(refused, "README: dp freeze -o model.pb: DeePMD-kit does not read it")
    run = subprocess.run([binary, "show", str(work / "portable.pb"), "type-map"], capture_output=True, text=True)
    return failures + said(run.returncode == 0, "README: dp freeze -o model.pb: we read it")


def with_ase(work, ours):
    try:
        from ase import Atoms
        from deepmd.calculator import DP
    except ImportError:
        print("skipped README: ASE is not installed")
        return 0
    water = Atoms("OHH", positions=[[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    forces = {}
    for model in (ours, work / "readme.pth"):
        water.calc = DP(model=str(model))
        water.get_potential_energy()
        forces[model.suffix] = water.get_forces()
    ok = np.all(np.isnan(forces[".dp"])) and np.all(np.isfinite(forces[".pth"]))
    return said(ok, "README: DeePMD-kit's ASE calculator: nan forces of a .dp, forces of the .pth")


def rewritten(work, original, system):
    """What we wrote again predicts exactly what the original predicts."""
    name = original.stem
    want = predict(convert(original, work / f"{name}.original.pth"), system)
    failures = 0
    for extension in ("dp", "yaml"):
        ours = work / "out" / f"{name}.{extension}"
        got = predict(convert(ours, work / f"{name}.{extension}.pth"), system)
        same = all(np.array_equal(got[k], want[k]) for k in want)
        print(f"{'ok      ' if same else 'FAILED  '}{name}: our .{extension} in DeePMD-kit (PyTorch): "
              f"{'every digit' if same else worst(got, want, 1.0)}")
        failures += not same
    # Loaded without conversion the model runs on DeePMD-kit's NumPy side: no forces, its own rounding.
    back = convert(work / f"{name}.dp.pth", work / f"{name}.back.dp")
    same = np.array_equal(predict(convert(back, work / f"{name}.back.pth"), system)["force"], want["force"])
    print(f"{'ok      ' if same else 'FAILED  '}{name}: .dp -> .pth -> .dp -> .pth")
    return failures + (not same)


def detail(prefix):
    """The prediction columns of the detail files of `dp test -d`: the right half of each table."""
    tables = {}
    for letter, name in (("e", "energy"), ("f", "force"), ("v", "virial")):
        path = Path(f"{prefix}.{letter}.out")
        if path.exists():
            table = np.loadtxt(path, ndmin=2)
            tables[name] = table[:, table.shape[1] // 2 :]
    return tables


def tested(work, binary, original, system):
    """`dp test -d` of ours and of DeePMD-kit write the same numbers."""
    name = original.stem
    # No dot in the names: what follows the last one is replaced.
    ours, theirs = work / f"{name}_ours", work / f"{name}_theirs"
    if not is_isotropic(original):
        print(f"skipped {name}: dp test: its statistics treat x, y and z differently, which we refuse")
        return 0
    commands = [
        [binary, "test", "-m", str(original), "-s", system, "-n", str(FRAMES), "-d", str(ours)],
        [sys.executable, "-m", "deepmd", "--pt", "test", "-m", str(work / f"{name}.original.pth"), "-s", system, "-n", str(FRAMES), "-d",
         str(theirs)],
    ]
    for command in commands:
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            print(f"FAILED  {' '.join(command)}\n{run.stderr}")
            return 1
    got, want = detail(ours), detail(theirs)
    if not want or got.keys() != want.keys():
        print(f"FAILED  {name}: detail files {sorted(got)}, wanted {sorted(want)}")
        return 1
    tolerance = TOLERANCE if precision_of(original) == {"float64"} else TOLERANCE_FLOAT32
    ratio = worst(got, want, tolerance)
    print(f"{'ok      ' if ratio <= 1 else 'FAILED  '}{name}: dp test of ours and of DeePMD-kit: "
          f"{ratio * tolerance:.1e} of {tolerance:.0e} ({', '.join(want)})")
    return int(ratio > 1)


def many_types(work):
    """A JSON of megabytes, thousands of datasets: DeePMD-kit's own loader reads them."""
    from deepmd.dpmodel.utils.serialization import load_dp_model

    import h5py

    path = work / "out" / "many_types.dp"
    with h5py.File(path) as f:
        size, datasets = len(f.attrs["json"]), len(f)
    nets = load_dp_model(str(path))["model"]["descriptor"]["embeddings"]["networks"]
    firsts = [net["layers"][0]["@variables"]["b"][0] for net in nets]
    same = firsts == list(range(3600))
    print(f"{'ok      ' if same else 'FAILED  '}many_types: {size} bytes of JSON, {datasets} datasets")
    return int(not same)


def compare(work, binary, pairs):
    work = Path(work)
    failures = many_types(work)
    for original, system in zip(pairs[::2], pairs[1::2]):
        failures += rewritten(work, Path(original), system)
        if os.access(binary, os.X_OK):
            failures += tested(work, binary, Path(original), system)
        else:
            print(f"skipped {Path(original).stem}: dp test: {binary} is absent (cargo build --release)")
    if os.access(binary, os.X_OK):
        failures += readme(work, binary, Path(pairs[0]), pairs[1])
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    if sys.argv[1] == "make-system":
        make_system(sys.argv[2])
    else:
        compare(sys.argv[2], sys.argv[3], sys.argv[4:])
