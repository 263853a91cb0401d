#!/usr/bin/env bash
# DeePMD-kit (PyTorch, and TensorFlow where asked) and Phalanx one after the other with descriptors other than se_e2_a: processor seconds of
# a step in training, which a busy machine changes less than the time on the clock.
#
#   tools/bench_descriptors.sh DEEPMD_BIN_DIR [DATA_DIR]
#
# Needs GNU time (/usr/bin/time). DEEPMD_BIN_DIR holds DeePMD-kit's own `dp`. DATA_DIR holds data_0, data_1, data_2 (default: the bundled
# water data). What a step takes is the difference of two runs, so that the start of a program is not in it.
# Environment: PHALANX_DP (default target/release/dp), THREADS (default 1), KINDS (default all: strip concat se_atten se_atten_v2 se_e3),
# PEERS (default pytorch; tensorflow knows se_e3 and some forms of se_atten), STEPS and MORE (steps of the two runs of Phalanx, default 200 and
# 300: nets are steeper then than at first), PEER_STEPS and PEER_MORE (default 4 and 12), PRECISION (default float64).
set -euo pipefail
cd "$(dirname "$0")/.."
deepmd=${1:?usage: tools/bench_descriptors.sh DEEPMD_BIN_DIR [DATA_DIR]}
data=$(cd "${2:-examples/water}" && pwd)
ours=$(realpath "${PHALANX_DP:-target/release/dp}")
threads=${THREADS:-1} kinds=${KINDS:-strip concat se_atten se_atten_v2 se_e3} peers=${PEERS:-pytorch}
steps=${STEPS:-200} more=${MORE:-300} peer_steps=${PEER_STEPS:-4} peer_more=${PEER_MORE:-12} precision=${PRECISION:-float64}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The keys of a descriptor.
descriptor() {
  local common='"sel": 120, "rcut": 6.0, "rcut_smth": 0.5, "neuron": [25, 50, 100], "axis_neuron": 16, "seed": 1'
  case $1 in
    strip) echo '"type": "se_atten", "tebd_input_mode": "strip", "smooth_type_embedding": true, "attn_layer": 0, '"$common" ;;
    concat) echo '"type": "se_atten", "attn_layer": 0, "type_one_side": true, '"$common" ;;
    # DeePMD-kit's example examples/water/se_atten/input_torch.json.
    se_atten) echo '"type": "se_atten", "attn_layer": 2, "attn": 128, "type_one_side": true, '"$common" ;;
    se_atten_v2) echo '"type": "se_atten_v2", "attn_layer": 2, "attn": 128, '"$common" ;;
    # DeePMD-kit's example examples/water/se_e3/input.json.
    se_e3) echo '"type": "se_e3", "sel": [40, 80], "rcut": 5.8, "rcut_smth": 0.5, "neuron": [2, 4, 8], "seed": 1' ;;
    *) echo "KINDS: $1 is none of strip, concat, se_atten, se_atten_v2, se_e3" >&2; exit 1 ;;
  esac
}

# $1 kind, $2 steps, $3 file
write_input() {
  cat > "$3" <<JSON
{"model": {"type_map": ["O", "H"], "descriptor": {$(descriptor "$1"), "precision": "$precision"},
  "fitting_net": {"neuron": [240, 240, 240], "resnet_dt": true, "precision": "$precision", "seed": 1}},
 "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 3.51e-8},
 "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1,
   "start_pref_v": 0, "limit_pref_v": 0},
 "training": {"training_data": {"systems": ["$data/data_0", "$data/data_1", "$data/data_2"], "batch_size": 1},
   "numb_steps": $2, "seed": 10, "disp_file": "lcurve.out", "disp_freq": 100, "save_freq": 100000}}
JSON
}

# Processor seconds and peak MB of one run: $1 kind, $2 steps, rest: command.
run_one() {
  local kind=$1 n=$2 folder="$work/run"; shift 2
  rm -rf "$folder"; mkdir -p "$folder"
  write_input "$kind" "$n" "$folder/input.json"
  ( cd "$folder" && OMP_NUM_THREADS=$threads DP_INTRA_OP_PARALLELISM_THREADS=$threads DP_INTER_OP_PARALLELISM_THREADS=1 \
    /usr/bin/time -f '%U %S %M' -o used "$@" > log 2>&1 ) || { echo "$* failed:" >&2; tail -5 "$folder/log" >&2; return 1; }
  tail -1 "$folder/used" | awk '{ print $1 + $2, $3 / 1024 }'
}

# Processor seconds of a step, peak MB: $1 kind, $2 and $3 steps, rest: command.
of_a_step() {
  local kind=$1 few=$2 many=$3; shift 3
  local first second
  first=$(run_one "$kind" "$few" "$@")
  second=$(run_one "$kind" "$many" "$@")
  echo "$first $second" | awk -v n=$((many - few)) '{ printf "%.4f %d\n", ($3 - $1) / n, $4 }'
}

echo "water, $precision, $threads threads; Phalanx steps $steps to $more, peers $peer_steps to $peer_more"
printf '%-12s %-12s %14s %10s %8s\n' "" "" "CPU s/step" "peak MB" "ratio"
for kind in $kinds; do
  read -r own peak < <(of_a_step "$kind" "$steps" "$more" "$ours" train input.json --device cpu --skip-neighbor-stat)
  printf '%-12s %-12s %14s %10s\n' "$kind" phalanx "$own" "$peak"
  for peer in $peers; do
    case $peer in
      tensorflow) flag=--tf ;;
      pytorch) flag=--pt ;;
      *) echo "PEERS: $peer is neither tensorflow nor pytorch" >&2; exit 1 ;;
    esac
    read -r own_peer peak < <(of_a_step "$kind" "$peer_steps" "$peer_more" "$deepmd/dp" $flag train --skip-neighbor-stat input.json) || continue
    printf '%-12s %-12s %14s %10s %8s\n' "$kind" "$peer" "$own_peer" "$peak" "$(echo "$own_peer $own" | awk '{ printf "%.1f", $1 / $2 }')"
  done
done
