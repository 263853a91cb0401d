#!/usr/bin/env bash
# Times dp train beside DeePMD-kit and deepmd-jax on one GPU: the same network, the same frames, in turns, in one call.
#
#   tools/bench_gpu_peers.sh [-b BIN] [-d DATA] [-p PEERS] [-o OUT]
#
# BIN    folder with dp. Without it, it is built with cargo.
# DATA   folder with water/data_0 .. data_3, four systems of 80 frames (default: ../shared/data).
# PEERS  folder with the Python packages deepmd and deepmd_jax (tools/make_gpu_peers.sh); python3 has PyTorch and JAX.
#        Without it, packages that python3 has anyway are used.
# OUT    folder for logs and the table (default: a new temporary folder).
#
# Other programs need up to two minutes to come to their first step. So they start side by side, each is stopped (SIGSTOP)
# at its first step, and goes on when it is its turn and nothing else runs; samples/s are those of the second half of a run.
# With ALONE=1 they start one after another, which is longer but gives the time that a start takes.
# BATCHES (default: 1 16 64; 256 is known too) and ROWS (default: all, see `PLAN`) choose what is run; DESCRIPTOR is se_e2_a (default)
# or another one of `DESCRIPTORS`, in the form of DeePMD-kit's example where it has one. FEWER
# divides the numbers of steps, for what takes longer. Nothing that has not
# come to its first step after START seconds (default: 400) is waited for. What is missing or fails is skipped by name, with
# the reason.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
bin= data=$here/../shared/data peers= out=
while getopts b:d:p:o: flag; do
    case $flag in b) bin=$OPTARG ;; d) data=$OPTARG ;; p) peers=$OPTARG ;; o) out=$OPTARG ;; *) exit 2 ;; esac
done
out=${out:-$(mktemp -d)}
mkdir -p "$out"
if [ -z "$bin" ]; then
    (cd "$here" && cargo build --release) >"$out/build.log" 2>&1 || { tail "$out/build.log"; exit 1; }
    bin=${CARGO_TARGET_DIR:-$here/target}/release
fi
bin=$(cd "$bin" && pwd) data=$(cd "$data" && pwd) out=$(cd "$out" && pwd)
[ -n "$peers" ] && peers=$(cd "$peers" && pwd)
export PYTHONPATH=$peers${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

# The frames of tools/gpu_check.sh: the real ones, four times over, so that batches of 256 are whole.
frames=$out/water_1280
if [ ! -d "$frames" ]; then
    mkdir -p "$frames"
    cp "$data"/water/data_0/type*.raw "$frames/"
    for k in $(seq 0 15); do cp -r "$data/water/data_$((k % 4))/set.000" "$frames/set.$(printf %03d "$k")"; done
fi

# deepmd-jax has no input file: the same widths, cutoff, loss and batches as arguments.
cat >"$out/train_jax.py" <<'PYTHON'
import sys
from deepmd_jax.train import train
frames, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
train(model_type="energy", rcut=6.0, train_data_path=[frames], save_path="model.pkl", step=steps, print_every=steps // 2,
      batch_size=batch, embed_widths=[25, 50, 100], fit_widths=[240, 240, 240], axis_neurons=16, lr=0.001, beta2=0.999,
      s_pref_e=0.02, l_pref_e=1, s_pref_f=1000, l_pref_f=1, loss="l2", compress=False, seed=1)
PYTHON

exec python3 - "$bin/dp" "$out" "$frames" <<'PYTHON'
import importlib.util, json, os, re, signal, subprocess, sys, threading, time

DP, OUT, FRAMES = sys.argv[1:]
ALONE, START = os.environ.get("ALONE") == "1", float(os.environ.get("START", "400"))
BATCHES = [int(b) for b in os.environ.get("BATCHES", "1 16 64").split()]
# Name, words, steps for each batch.
PLAN = [
    ("phalanx-f64", "dp train, float64", {1: 12000, 16: 3000, 64: 800, 256: 240}),
    ("phalanx-f32", "dp train, float32", {1: 12000, 16: 3000, 64: 800, 256: 240}),
    ("deepmd-kit-f64", "DeePMD-kit, PyTorch, float64", {1: 120, 16: 100, 64: 60, 256: 20}),
    ("deepmd-kit-f32", "DeePMD-kit, PyTorch, float32", {1: 120, 16: 100, 64: 60, 256: 20}),
    ("compiled-f64", "DeePMD-kit, pt-expt, enable_compile, float64", {1: 200, 16: 100, 64: 60, 256: 20}),
    ("deepmd-jax-f32", "deepmd-jax, float32", {1: 1000, 16: 400, 64: 160, 256: 60}),
]
FEWER = int(os.environ.get("FEWER", "1"))
ROWS = os.environ.get("ROWS", " ".join(name for name, _, _ in PLAN)).split()
REASONS = [("out of memory", r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED|cannot get .* MB"), ("no GPU", r"no GPU|no CUDA|CUDA driver")]
ON_CPU = r"CpuDevice|Computing Device: +CPU"  # what other programs say when they find no GPU


PAIRS = {"type": "se_e2_a", "sel": [46, 92], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100], "axis_neuron": 16, "type_one_side": True,
         "seed": 1}
TYPES = {"type": "se_atten", "sel": 120, "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100], "axis_neuron": 16, "attn": 128,
         "attn_layer": 2, "type_one_side": True, "seed": 1}
ANGLES = {"type": "se_e3", "sel": [40, 80], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [2, 4, 8], "seed": 1}
DISTANCES = {"type": "se_e2_r", "sel": [46, 92], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [5, 10, 20], "type_one_side": True, "seed": 1}
STRIP = {"tebd_input_mode": "strip", "smooth_type_embedding": True, "attn_layer": 0}
DESCRIPTORS = {
    "se_e2_a": PAIRS, "se_e2_r": DISTANCES, "se_e3": ANGLES, "se_atten": TYPES, "strip": {**TYPES, **STRIP},
    "se_atten_v2": {key: value for key, value in {**TYPES, "type": "se_atten_v2"}.items() if key != "type_one_side"},
    "hybrid": {"type": "hybrid", "list": [{**PAIRS, "rcut": 4.0, "sel": [30, 60]}, DISTANCES]},
}
DESCRIPTOR = DESCRIPTORS[os.environ.get("DESCRIPTOR", "se_e2_a")]


def of_precision(descriptor, precision):
    if "list" in descriptor:
        return {**descriptor, "list": [of_precision(part, precision) for part in descriptor["list"]]}
    return {**descriptor, "precision": precision}


def write_input(path, batch, steps, precision, compiled):
    """The network of tools/gpu_check.sh, or one with another descriptor."""
    training = {"training_data": {"systems": [FRAMES], "batch_size": batch}, "numb_steps": steps, "seed": 10,
                "disp_freq": max(steps // 2, 1), "save_freq": 1000000}
    if compiled:
        training["enable_compile"] = True
    json.dump({
        "model": {"type_map": ["O", "H"],
                  "descriptor": of_precision(DESCRIPTOR, precision),
                  "fitting_net": {"neuron": [240, 240, 240], "resnet_dt": True, "precision": precision, "seed": 1}},
        "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 3.51e-8},
        "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
        "training": training}, open(path, "w"))


class Run:
    """One program with one batch; its log has the seconds since its start in every line."""

    def __init__(self, name, batch, steps):
        self.name, self.batch, self.steps = name, batch, steps
        self.ours, self.first, self.took, self.why, self.process = name.startswith("phalanx"), None, None, None, None
        self.folder, self.at_first, self.lines = f"{OUT}/{name}_{batch}", threading.Event(), []

    def command(self):
        if self.name.startswith("deepmd-jax"):
            return ["python3", OUT + "/train_jax.py", FRAMES, str(self.batch), str(self.steps)]
        precision = "float" + self.name[-2:]
        write_input(self.folder + "/input.json", self.batch, self.steps, precision, self.name.startswith("compiled"))
        if self.ours:
            return [DP, "train", "input.json", "--skip-neighbor-stat", "--device", "cuda"]
        backend = "--pt-expt" if self.name.startswith("compiled") else "--pt"
        return ["python3", "-m", "deepmd", backend, "train", "input.json", "--skip-neighbor-stat"]

    def start(self, stop_at_first):
        os.makedirs(self.folder, exist_ok=True)
        environment = dict(os.environ)
        if stop_at_first:  # several programs have memory of the GPU at once
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        self.began = time.time()
        self.process = subprocess.Popen(self.command(), cwd=self.folder, env=environment, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, args=(stop_at_first,), daemon=True)
        self.reader.start()

    def read(self, stop_at_first):
        with open(self.folder + "/log", "w") as log:
            for line in self.process.stdout:
                at, line = time.time() - self.began, line.decode(errors="replace").rstrip()
                self.lines.append(line)
                print(f"{at:.2f} {line}", file=log, flush=True)
                found = re.search(r"(?:atch +(\d+): .*wall time = |Iter +(\d+) .*Time )([0-9.]+)", line)
                if not found:
                    continue
                if self.first is None:
                    self.first = at
                    if stop_at_first:
                        self.signal(signal.SIGSTOP)
                    self.at_first.set()
                if int(found[1] or found[2]) == self.steps:
                    self.took = float(found[3])
        self.at_first.set()

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def finish(self, limit):
        """Waits for the end; after `limit` seconds there is none."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.why = "too long"
        self.signal(signal.SIGKILL)
        self.reader.join(5)
        text = "\n".join(self.lines)
        if self.took is not None and re.search(ON_CPU, text):
            self.took, self.why = None, "ran on the CPU"
        if self.took is None and self.why is None:
            self.why = next((why for why, pattern in REASONS if re.search(pattern, text)), "failed")
        if self.why:
            print(f"{self.name}, {self.batch} frames: {self.why}: {' | '.join(self.lines[-3:])[-300:]}", flush=True)
        else:
            print(f"{self.name}, {self.batch} frames: {self.speed():.1f} samples/s, {time.time() - began:.0f} s", flush=True)

    def speed(self):
        return None if self.took is None else self.steps // 2 * self.batch / max(self.took, 1e-9)


def missing(name):
    """Why a program cannot run."""
    if name.startswith("phalanx"):
        return None if os.access(DP, os.X_OK) else "there is no " + DP
    wanted = ["jax", "deepmd_jax"] if name.startswith("deepmd-jax") else ["torch", "deepmd"]
    absent = [package for package in wanted if not importlib.util.find_spec(package)]
    return f"no package {' and '.join(absent)}" if absent else None


began, report = time.time(), open(OUT + "/table.txt", "w")


def say(line=""):
    print(line, flush=True)
    print(line, file=report, flush=True)


def gpu():
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return "no nvidia-smi"


say(gpu())
rows, runs = [], {}
for name, words, steps in PLAN:
    why = missing(name) if name in ROWS else "not asked for"
    if why:
        say(f"skipped: {words}: {why}")
        continue
    rows.append((name, words))
    for batch in BATCHES:
        runs[name, batch] = Run(name, batch, max(steps[batch] // FEWER, 8))
try:
    # Kernels of ours are compiled once for a machine, before anything is timed.
    kernels = [Run(name, 0, 1) for name, _ in rows if name.startswith("phalanx")]
    for run in kernels:
        run.batch = 1
        run.start(False)
    others = [] if ALONE else [run for run in runs.values() if not run.ours]
    for run in others:
        run.start(True)
    for run in kernels:
        run.process.wait()
        run.reader.join()
    for run in others:
        if not run.at_first.wait(max(0, began + START - time.time())):
            run.why = "no first step"
            run.signal(signal.SIGKILL)
    say(f"{time.time() - began:.0f} s until all had started")
    for batch in BATCHES:
        for name, _ in rows:
            run = runs[name, batch]
            if run in others:
                run.signal(signal.SIGCONT)
            else:
                run.start(False)
            run.finish(60 if run in others or run.ours else START)
finally:
    for run in [*runs.values(), *kernels]:
        if run.process and run.process.poll() is None:
            run.signal(signal.SIGKILL)


def lines(title, cell):
    say()
    say(f"{title:46}" + "".join(f"{batch:>14}" for batch in BATCHES))
    for name, words in rows:
        cells = [cell(runs[name, batch]) for batch in BATCHES]
        if any(cells):
            say(f"{words:46}" + "".join(f"{c or '-':>14}" for c in cells))


def shown(speed):
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


def ratio(run):
    same = runs.get(("phalanx" + run.name[-4:], run.batch))
    return None if run.ours or not same or not same.took or not run.took else f"{same.speed() / run.speed():.1f}"


lines("samples/s, frames a step:", lambda run: shown(run.speed()) if run.took else run.why)
how = "alone" if ALONE else "others side by side"
lines(f"s to the first step ({how}):", lambda run: f"{run.first:.1f}" if run.first else None)
lines("dp train is faster by, same precision:", ratio)
say()
say(f"{time.time() - began:.0f} s; logs in {OUT}")
PYTHON
