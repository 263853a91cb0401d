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
# BATCHES (default: 1 16 64 256) and ROWS (default: all of them, see `plan`) choose what is run; nothing is started after
# LIMIT seconds (default: 240). What is missing or fails is skipped by name, with the reason.
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
batches=${BATCHES:-1 16 64 256}
limit=${LIMIT:-240}
table=$out/table.txt
: >"$table"
say() { echo "$*" | tee -a "$table"; }

# The frames of tools/gpu_check.sh: the real ones, four times over, so that batches of 256 are whole.
frames=$out/water_1280
if [ ! -d "$frames" ]; then
    mkdir -p "$frames"
    cp "$data"/water/data_0/type*.raw "$frames/"
    for k in $(seq 0 15); do cp -r "$data/water/data_$((k % 4))/set.000" "$frames/set.$(printf %03d "$k")"; done
fi

# What is run: its name, and the steps with 1, 16, 64 and 256 frames (0: not run). A run of a peer takes some 15 s to start,
# so a precision of DeePMD-kit is left out where another one says the same.
plan() {
    cat <<'PLAN'
phalanx-f64       12000 3000 800 240
phalanx-f32       12000 3000 800 240
deepmd-kit-f64      160  120  80   0
deepmd-kit-f32      160    0  80  30
deepmd-jax-f32     1000  400 160  60
compiled-f64        300    0   0   0
PLAN
}
says() {
    case $1 in
    phalanx-*) echo "dp train, float${1##*-f}" ;;
    deepmd-kit-*) echo "DeePMD-kit, PyTorch, float${1##*-f}" ;;
    compiled-*) echo "DeePMD-kit, pt-expt, enable_compile, float${1##*-f}" ;;
    deepmd-jax-*) echo "deepmd-jax, float${1##*-f}" ;;
    esac
}

# input FILE BATCH STEPS PRECISION [extra training keys]: the network of tools/gpu_check.sh
input() {
    cat >"$1" <<JSON
{"model": {"type_map": ["O", "H"],
  "descriptor": {"type": "se_e2_a", "sel": [46, 92], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100],
    "axis_neuron": 16, "type_one_side": true, "precision": "$4", "seed": 1},
  "fitting_net": {"neuron": [240, 240, 240], "resnet_dt": true, "precision": "$4", "seed": 1}},
 "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 3.51e-8},
 "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
 "training": {"training_data": {"systems": ["$frames"], "batch_size": $2},
  "numb_steps": $3, "seed": 10, "disp_freq": $(($3 / 2)), "save_freq": 1000000 ${5:-}}}
JSON
}

# deepmd-jax has no input file: the same widths, cutoff, loss and batches as arguments.
cat >"$out/train_jax.py" <<'PYTHON'
import sys
from deepmd_jax.train import train
frames, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
train(model_type="energy", rcut=6.0, train_data_path=[frames], save_path="model.pkl", step=steps, print_every=steps // 2,
      batch_size=batch, embed_widths=[25, 50, 100], fit_widths=[240, 240, 240], axis_neurons=16, lr=0.001, beta2=0.999,
      s_pref_e=0.02, l_pref_e=1, s_pref_f=1000, l_pref_f=1, loss="l2", compress=False, seed=1)
PYTHON

# timed FOLDER COMMAND...: runs it there; every line of the log begins with the seconds since the start
timed() {
    local folder=$1 began=${EPOCHREALTIME/./}
    shift
    (cd "$folder" && timeout 150 "$@" 2>&1; echo "ended with exit code $?") | while IFS= read -r line; do
        local us=$((${EPOCHREALTIME/./} - began))
        printf '%d.%02d %s\n' $((us / 1000000)) $((us / 10000 % 100)) "$line"
    done >"$folder/log"
}

# run NAME BATCH STEPS: leaves samples/s of the second half and seconds to the end of the first step, or why there are none
run() {
    local folder=$out/$1_$2 precision=float${1##*-f}
    rm -rf "$folder" && mkdir -p "$folder"
    case $1 in
    phalanx-*)
        input "$folder/input.json" "$2" "$3" $precision
        timed "$folder" "$bin/dp" train input.json --skip-neighbor-stat --device cuda
        ;;
    deepmd-kit-*)
        input "$folder/input.json" "$2" "$3" $precision
        timed "$folder" python3 -m deepmd --pt train input.json --skip-neighbor-stat
        ;;
    compiled-*)
        input "$folder/input.json" "$2" "$3" $precision ', "enable_compile": true'
        timed "$folder" python3 -m deepmd --pt-expt train input.json --skip-neighbor-stat
        ;;
    deepmd-jax-*) timed "$folder" python3 "$out/train_jax.py" "$frames" "$2" "$3" ;;
    esac
    python3 - "$folder" "$2" "$3" <<'PYTHON'
import re, sys
folder, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = open(folder + "/log", errors="replace").read()
times = re.findall(r"^([0-9.]+) .*(?:atch +(\d+): .*wall time = |Iter +(\d+) .*Time )([0-9.]+)", log, re.M)
done = {int(a or b): (float(at), float(took)) for at, a, b, took in times}
reasons = [("out of memory", r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED|OUT_OF_MEMORY"), ("not installed", r"No module named"),
           ("no GPU", r"no GPU|no CUDA"), ("took too long", r"exit code 124")]
reason = next((name for name, pattern in reasons if re.search(pattern, log)), "failed")
if steps in done:
    open(folder + "/speed", "w").write("%.4g" % (steps // 2 * batch / max(done[steps][1], 1e-9)))
    open(folder + "/first", "w").write("%.1f" % done[min(done)][0])
else:
    open(folder + "/why", "w").write(reason)
    print(f"{folder}: {reason}: " + " | ".join(log.strip().splitlines()[-3:])[-400:])
PYTHON
}

has() { # name: why it cannot run; nothing where it can
    case $1 in
    phalanx-*) [ -x "$bin/dp" ] || echo "no dp in $bin" ;;
    deepmd-kit-* | compiled-*) python3 -c 'import importlib.util as u, sys; sys.exit(" and ".join(m for m in ["torch", "deepmd"] if not u.find_spec(m)) or 0)' 2>&1 | sed 's/$/ not installed/' ;;
    deepmd-jax-*) python3 -c 'import importlib.util as u, sys; sys.exit(" and ".join(m for m in ["jax", "deepmd_jax"] if not u.find_spec(m)) or 0)' 2>&1 | sed 's/$/ not installed/' ;;
    esac
}

rows=${ROWS:-$(plan | awk '{print $1}')}
steps_of() { plan | awk -v name="$1" -v batch="$2" '$1 == name {print $(batch == 1 ? 2 : batch == 16 ? 3 : batch == 64 ? 4 : 5)}'; }
say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')"
ready=
for row in $rows; do
    why=$(has "$row")
    if [ -n "$why" ]; then say "skipped: $(says "$row"): $why"; else ready="$ready $row"; fi
done
# Kernels are compiled once for a machine; a run of one step does it before anything is timed.
for row in $ready; do
    [[ $row = phalanx-* ]] || continue
    mkdir -p "$out/first_$row" && input "$out/first_$row/input.json" 1 2 "float${row##*-f}"
    timed "$out/first_$row" "$bin/dp" train input.json --skip-neighbor-stat --device cuda &
done
wait
began=$SECONDS
for batch in $batches; do
    for row in $ready; do
        steps=$(steps_of "$row" "$batch")
        [ "${steps:-0}" -gt 0 ] || continue
        if [ $((SECONDS - began)) -ge "$limit" ]; then
            mkdir -p "$out/${row}_$batch" && echo "no time" >"$out/${row}_$batch/why"
        else
            run "$row" "$batch" "$steps"
        fi
    done
done

# figure KIND ROW BATCH
figure() { cat "$out/$2_$3/$1" "$out/$2_$3/why" 2>/dev/null | head -1 | grep . || echo -; }
lines() { # kind
    say "$(printf '%-46s' "$2") $(printf '%14s ' $batches)"
    for row in $ready; do
        line=$(printf '%-46s' "$(says "$row")")
        for batch in $batches; do line="$line $(printf '%14s' "$(figure "$1" "$row" "$batch")")"; done
        say "$line"
    done
    say ""
}
say ""
lines speed "samples/s, frames a step:"
lines first "s from start to the end of the first step:"
say "dp train over the other, samples/s (the same precision):"
for row in $ready; do
    [[ $row = phalanx-* ]] && continue
    line=$(printf '%-46s' "$(says "$row")")
    for batch in $batches; do
        ratio=$(echo "$(figure speed "phalanx-${row##*-}" "$batch") $(figure speed "$row" "$batch")" |
            awk '{if ($1 + 0 > 0 && $2 + 0 > 0) printf "%.1f", $1 / $2; else printf "-"}')
        line="$line $(printf '%14s' "$ratio")"
    done
    say "$line"
done
say ""
say "$((SECONDS - began)) s; logs in $out"
