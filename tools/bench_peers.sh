#!/usr/bin/env bash
# DeePMD-kit (TensorFlow and PyTorch) and Phalanx in turns, on the same input, in one run: prints the ratios.
#
#   tools/bench_peers.sh DEEPMD_BIN_DIR [DATA_DIR]
#
# Needs GNU time (/usr/bin/time). DEEPMD_BIN_DIR holds DeePMD-kit's own `dp`. DATA_DIR holds data_0, data_1, data_2 (default: the bundled water data).
# Environment: PHALANX_DP (default target/release/dp), THREADS (default 2), ROUNDS (default 3), STEPS of the peers
# (default 60; Phalanx does ten times as many), BATCH (default 1), PRECISION (float64 or float32, default float64), RCUT
# (default 6.0) and SEL (default 46,92; a denser system: RCUT=8 SEL=110,220), EMBEDDING and FITTING (layers of the nets, default
# 25,50,100 and 240,240,240), PEERS (default "tensorflow pytorch"), TRAINED (a model of this network after many steps: Phalanx also
# goes on from that; the time of the peers does not depend on the weights).
set -euo pipefail
cd "$(dirname "$0")/.."
deepmd=${1:?usage: tools/bench_peers.sh DEEPMD_BIN_DIR [DATA_DIR]}
data=$(cd "${2:-examples/water}" && pwd)
ours=$(realpath "${PHALANX_DP:-target/release/dp}")
threads=${THREADS:-2} rounds=${ROUNDS:-3} steps=${STEPS:-60} batch=${BATCH:-1} precision=${PRECISION:-float64}
rcut=${RCUT:-6.0} sel=${SEL:-46,92} embedding=${EMBEDDING:-25,50,100} fitting=${FITTING:-240,240,240}
peers=${PEERS:-tensorflow pytorch}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The stock water network, or what the variables make of it; $1 steps, $2 file.
write_input() {
  cat > "$2" <<JSON
{"model": {"type_map": ["O", "H"],
  "descriptor": {"type": "se_e2_a", "sel": [$sel], "rcut": $rcut, "rcut_smth": 0.5, "neuron": [$embedding],
    "axis_neuron": 16, "resnet_dt": false, "type_one_side": true, "precision": "$precision", "seed": 1},
  "fitting_net": {"neuron": [$fitting], "resnet_dt": true, "precision": "$precision", "seed": 1}},
 "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 3.51e-8},
 "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1,
   "start_pref_v": 0, "limit_pref_v": 0},
 "training": {"training_data": {"systems": ["$data/data_0", "$data/data_1", "$data/data_2"], "batch_size": $batch},
   "numb_steps": $1, "seed": 10, "disp_file": "lcurve.out", "disp_freq": 20, "save_freq": 100000}}
JSON
}

# Runs one program: $1 name, $2 steps, rest: command. Prints seconds a step, seconds to the first step, peak MB.
run_one() {
  local name=$1 n=$2; shift 2
  local folder="$work/$name"; rm -rf "$folder"; mkdir -p "$folder"
  write_input "$n" "$folder/input.json"
  local began; began=$(date +%s.%N)
  ( cd "$folder" && OMP_NUM_THREADS=$threads DP_INTRA_OP_PARALLELISM_THREADS=$threads DP_INTER_OP_PARALLELISM_THREADS=1 \
    /usr/bin/time -f %M -o peak "$@" > log 2>&1 ) &
  local job=$! first=""
  # The moment of the first row of the learning curve; then hands off, as two cores are all that there is.
  while [ -z "$first" ] && kill -0 $job 2>/dev/null; do
    if [ "$(grep -vc '^#' "$folder/lcurve.out" 2>/dev/null || true)" -ge 1 ] 2>/dev/null; then
      first=$(echo "$(date +%s.%N) - $began" | bc)
    fi
    sleep 0.05
  done
  wait $job || { echo "$name failed:" >&2; tail -5 "$folder/log" >&2; return 1; }
  local step; step=$(grep -oE 'average training time: [0-9.]+' "$folder/log" | tail -1 | grep -oE '[0-9.]+$')
  echo "$name ${step:-nan} ${first:-nan} $(($(tail -1 "$folder/peak") / 1024))"
}

echo "water, rcut $rcut A, sel $sel, embedding $embedding, fitting $fitting, $precision, batch $batch, $threads threads, $(nproc) cores"
for round in $(seq "$rounds"); do
  run_one phalanx $((steps * 10)) "$ours" train input.json
  [ -z "${TRAINED:-}" ] || run_one trained $((steps * 10)) "$ours" train input.json --init-frz-model "$(realpath "$TRAINED")"
  for peer in $peers; do
    case $peer in
      tensorflow) run_one tensorflow "$steps" "$deepmd/dp" --tf train input.json ;;
      pytorch) run_one pytorch "$steps" "$deepmd/dp" --pt train input.json ;;
      *) echo "PEERS: $peer is neither tensorflow nor pytorch" >&2; exit 1 ;;
    esac
  done
done | tee "$work/all"

# The best of all rounds: what each can do when the machine leaves it alone.
awk '{ if (!($1 in best) || $2 < best[$1]) best[$1] = $2; if (!($1 in first) || $3 < first[$1]) first[$1] = $3
       if ($4 > peak[$1]) peak[$1] = $4 }
     END { printf "%-12s %12s %12s %10s %10s\n", "", "s/step", "first step s", "peak MB", "ratio"
           n = split("phalanx '"${TRAINED:+trained }$peers"'", order, " ")
           for (k = 1; k <= n; k++) { name = order[k]
             printf "%-12s %12.4f %12.2f %10d %10.1f\n", name, best[name], first[name], peak[name], best[name] / best["phalanx"] } }' "$work/all"
