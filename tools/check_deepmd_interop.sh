#!/usr/bin/env bash
# Shows with a real DeePMD-kit install that model files go both ways.
#
#   tools/check_deepmd_interop.sh [--bin DIR] [--model FILE --system DIR]...
#
#   --bin DIR      the folder with DeePMD-kit's `dp` and `python` (default: those on PATH)
#   --model FILE   a .dp of ours or of DeePMD-kit (se_e2_a + ener), followed by
#   --system DIR   a system in deepmd/npy layout to predict
#   Without models: those of DeePMD-kit under tests/golden, on a small system that the script makes.
#
# Our own binary is $PHALANX_DP (default target/release/dp); $PHALANX_PROFILE (default release) is cargo's profile of the test that
# writes the models again. For each model:
#   1. we read it and write it again as .dp and .yaml;
#   2. DeePMD-kit loads both, converts them to .pth and predicts exactly what the original predicts;
#   3. our `dp test -d` of the original and DeePMD-kit's `dp --pt test -d` agree to 1e-10; models whose statistics treat x, y
#      and z differently, which we refuse, go without.
# And of the first model, what README says of a .dp in DeePMD-kit:
#   4. its own DeepPot and ASE calculator give the energy of a .dp and nan for forces, the right forces after `dp convert-backend`;
#   5. our `dp convert-backend model.dp model.pth` and `dp freeze -o model.pth --convert` make files that it loads;
#   6. `dp freeze -o model.pb` without --convert makes one that it does not load, and we do.
# Steps that cannot run are reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=""
models=()
systems=()
while (($#)); do
    case "$1" in
        --bin) bin="$2"; shift 2 ;;
        --model) models+=("$(realpath "$2")"); shift 2 ;;
        --system) systems+=("$(realpath "$2")"); shift 2 ;;
        *) sed -n '2,23s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
[[ -n "$bin" ]] && PATH="$(realpath "$bin"):$PATH"
if ! python -c 'import deepmd' 2>/dev/null; then
    echo "error: no DeePMD-kit here; give the folder of its dp and python with --bin" >&2
    exit 2
fi
if ((${#models[@]} != ${#systems[@]})); then
    echo "error: each --model needs a --system" >&2
    exit 2
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" DP_INTRA_OP_PARALLELISM_THREADS=1 DP_INTER_OP_PARALLELISM_THREADS=1

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/in" "$work/out"

if ((${#models[@]} == 0)); then
    for name in dp_test/one_side dp_test/two_side one_side_f64 two_side_f32; do
        models+=("$PWD/tests/golden/$name.dp")
        systems+=("$work/system")
    done
    python tools/check_deepmd_interop.py make-system "$work/system"
fi

# Each model under a name of its own: two folders may both have a model.dp.
arguments=()
inputs=""
for i in "${!models[@]}"; do
    cp "${models[$i]}" "$work/in/model_$i.dp"
    inputs+="${inputs:+:}$work/in/model_$i.dp"
    arguments+=("$work/in/model_$i.dp" "${systems[$i]}")
done

echo "writing ${#models[@]} models again"
PHALANX_INTEROP_IN="$inputs" PHALANX_INTEROP_OUT="$work/out" \
    cargo test --profile "${PHALANX_PROFILE:-release}" --quiet --test model_files -- models_are_written_again >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }

python tools/check_deepmd_interop.py compare "$work" "${PHALANX_DP:-target/release/dp}" "${arguments[@]}"
