#!/usr/bin/env bash
# Atoms/s of dp train on a GPU for data sets whose batches differ, beside one system with as many atoms a batch.
#
#   tools/bench_gpu_kinds.sh [-b BIN] [-o OUT]
#
# BIN  folder with dp (default: built with cargo). OUT  folder for data and logs (default: a new temporary folder).
# PRECISION (float64), EPOCHS (9) and FRAMES of each of the 500 systems (8) may be set. Needs python3 with numpy.
#
# In the first epoch frames are read and come to the GPU, and kinds of batches are new; `later` is the second half of the run.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bin= out=
while getopts b:o: flag; do
    case $flag in b) bin=$OPTARG ;; o) out=$OPTARG ;; *) exit 2 ;; esac
done
out=${out:-$(mktemp -d)}
mkdir -p "$out"
if [ -z "$bin" ]; then
    (cd "$here" && cargo build --release) >"$out/build.log" 2>&1 || { tail "$out/build.log"; exit 1; }
    bin=${CARGO_TARGET_DIR:-$here/target}/release
fi
bin=$(cd "$bin" && pwd) out=$(cd "$out" && pwd)
[ -d "$out/many" ] || python3 "$here/tools/make_kinds.py" "$out" "${FRAMES:-8}"
exec python3 - "$bin/dp" "$out" "${PRECISION:-float64}" "${EPOCHS:-9}" <<'PYTHON'
import json, re, subprocess, sys
from pathlib import Path
import numpy as np

dp, out, precision, epochs = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def systems(name):
    folder = out / name
    return sorted(str(p) for p in folder.iterdir()) if name == "many" else [str(folder)]

# Batches of an epoch, and atoms in all of them; systems are drawn as often as they have batches.
def epoch(name):
    batches = atoms = 0
    for path in systems(name):
        n, frames = len(Path(path, "type.raw").read_text().split()), len(np.load(f"{path}/set.000/energy.npy"))
        batches += -(-frames // -(-256 // n))
        atoms += n * frames
    return batches, atoms

def run(name, label, epochs=epochs):
    folder = out / f"run-{name}"
    folder.mkdir(exist_ok=True)
    batches, atoms = epoch(name)
    net = {"precision": precision, "seed": 1}
    (folder / "input.json").write_text(json.dumps({
        "model": {"type_map": ["A", "B", "C"],
            "descriptor": {"type": "se_e2_a", "sel": [100, 100, 100], "rcut_smth": 0.5, "rcut": 6.0,
                "neuron": [25, 50, 100], "axis_neuron": 16, "type_one_side": True, **net},
            "fitting_net": {"neuron": [240, 240, 240], "resnet_dt": True, **net}},
        "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 1e-5, "stop_lr": 1e-8},
        "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
        "training": {"training_data": {"systems": systems(name), "batch_size": "auto:256"}, "seed": 10,
            "numb_steps": batches * epochs, "disp_freq": batches, "save_freq": 10**9}}))
    ended = subprocess.run([dp, "train", "input.json", "--device", "cuda"], cwd=folder, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / "log").write_text(ended.stdout)
    if ended.returncode: sys.exit(f"{label} failed:\n{ended.stdout[-3000:]}")
    walls = [float(x) for x in re.findall(r"total wall time = ([0-9.]+) s", ended.stdout)]
    # A line for the first step, then one for each epoch.
    later = walls[-(epochs // 2):]
    rates = atoms / walls[1], atoms * len(later) / sum(later)
    print(f"{label:20} {atoms / batches:16.0f} {rates[0]:16.0f} {rates[1]:16.0f}", flush=True)
    return rates

print(f"{precision + ', atoms/s':20} {'atoms a batch':>16} {'first epoch':>16} {'later':>16}")
for name in ["one", "many", "mixed"]:
    run(name, "warm-up", epochs=2)  # compiles the kernels where they are not known
one = run("one", "one system")
for name, label in [("many", "500 systems"), ("mixed", "mixed type")]:
    got = run(name, label)
    print(f"{'  of one system':37} {got[0] / one[0]:16.0%} {got[1] / one[1]:16.0%}", flush=True)
PYTHON
