#!/usr/bin/env bash
# `dp train` itself under every MPI launcher at hand, compared to the bit with one process.
#
#   tools/check_mpi.sh [LAUNCH COMMAND]...
#
# Each argument is the command before `dp`, e.g. "/opt/openmpi-5/bin/mpirun -np 3" or "srun -n 3 --mpi=pmix"; without
# arguments, the mpirun of Open MPI and of MPICH that are on the PATH. A job of N ranks takes 12 / N batches in every
# step (`gradient_accumulation`), so that all jobs use the same draws, and with `reproducible` they must end with the same
# parameters, bit for bit, as one process does. Our own binary is $PHALANX_DP (default target/release/dp). The last line
# counts failures, which are also the exit status.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# input DRAWS: the bundled water, a small network, 4 steps of 12 batches in all.
input() {
    cat << END
{
  "model": {
    "type_map": ["O", "H"],
    "descriptor": {"type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "rcut_smth": 0.5, "neuron": [8, 16], "axis_neuron": 4,
                   "seed": 1},
    "fitting_net": {"neuron": [24, 24], "seed": 1}
  },
  "learning_rate": {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-5, "decay_steps": 10, "scale_by_worker": "none"},
  "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
  "training": {
    "training_data": {"systems": ["$root/examples/water/data_0"], "batch_size": 1},
    "numb_steps": 4, "seed": 1, "disp_freq": 1, "save_freq": 4, "reproducible": true, "gradient_accumulation": $1
  }
}
END
}

# sum_of FOLDER: a hash of what was learnt, by the last digit.
sum_of() {
    (cd "$1" && "$dp" freeze -o model.yaml > freeze.txt 2>&1 && grep -v '^"time":' model.yaml | md5sum | cut -c1-12)
}

mkdir "$work/one"
input 12 > "$work/one/input.json"
(cd "$work/one" && "$dp" train input.json > log.txt 2>&1) || { cat "$work/one/log.txt"; exit 1; }
wanted=$(sum_of "$work/one")
echo "one process: $wanted"

if [ $# = 0 ]; then
    for program in mpirun.openmpi mpirun.mpich; do
        if command -v $program > /dev/null; then set -- "$@" "$program -np 3"; else echo "skipped: $program is not installed"; fi
    done
fi
failures=0
for line in "$@"; do
    ranks=$(echo "$line" | sed -n 's/.* -n\(p\)\{0,1\} *\([0-9]*\).*/\2/p')
    folder=$(mktemp -d "$work/job.XXXX")
    input $((12 / ranks)) > "$folder/input.json"
    # shellcheck disable=SC2086 # words
    (cd "$folder" && timeout 120 $line "$dp" train --mpi-log=workers input.json > log.txt 2>&1)
    status=$?
    found=$(sum_of "$folder")
    joined=$(sed -n 's/.*\(engine\|launcher\): *//p' "$folder/log.txt" | head -n 2 | paste -sd, -)
    if [ $status = 0 ] && [ "$found" = "$wanted" ]; then
        echo "ok: $line: the same bits ($joined)"
    else
        echo "FAILED: $line: status $status, hash ${found:-none}"
        tail -n 15 "$folder/log.txt"
        failures=$((failures + 1))
    fi
done
echo "$failures failures"
exit $failures
