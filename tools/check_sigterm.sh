#!/usr/bin/env bash
# SIGTERM to the launcher in mid-run: what the ranks and the launcher return, and whether the checkpoint is complete.
#
#   tools/check_sigterm.sh ["NAME: LAUNCH COMMAND"]...
#
# Each argument is a name and the command before `dp`, e.g. "Open MPI 5: /opt/openmpi-5/bin/mpirun -np 2"; without
# arguments, every launcher that is installed. A name that begins with "scancel" is a job of srun's that gets its signal
# through `scancel --signal=TERM`, as Slurm does it before it ends a job; where a name ends with "group", the launcher's whole
# process group gets it, as from a terminal and from most batch systems. Our own binary is $PHALANX_DP (default target/release/dp);
# $PHALANX_TEST_LAUNCHERS may list folders with launchers (separated by `:`). strace, which must be installed, stands
# beside the ranks, not between them and their launcher, and writes down with what they end. Prints the table of docs/parallel-training.md; the exit status
# counts the launchers under which a rank did not end with 0, or ranks did not save one step together.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
PATH="${PHALANX_TEST_LAUNCHERS:+$PHALANX_TEST_LAUNCHERS:}$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v strace > /dev/null || { echo "skipped: strace is not installed"; exit 0; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

cat > "$work/input.json" << END
{
  "model": {
    "type_map": ["O", "H"],
    "descriptor": {"type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "rcut_smth": 0.5, "neuron": [8, 16], "axis_neuron": 4,
                   "seed": 1},
    "fitting_net": {"neuron": [24, 24], "seed": 1}
  },
  "learning_rate": {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-5, "decay_steps": 1000},
  "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
  "training": {
    "training_data": {"systems": ["$root/examples/water/data_0"], "batch_size": 1},
    "numb_steps": 100000000, "seed": 1, "disp_freq": 10, "save_freq": 100000000
  }
}
END
# Becomes a rank; a process of another session watches it.
cat > "$work/rank" << 'END'
#!/bin/sh
exec strace -DDD -f --seccomp-bpf -q -e trace=exit_group -e signal=none -o "ended.$$" "$@"
END
chmod +x "$work/rank"

installed() { command -v "$1" > /dev/null; }
if [ $# = 0 ]; then
    port=$((20000 + RANDOM % 10000))
    installed mpirun.openmpi && set -- "$@" "Open MPI: mpirun.openmpi -np 2"
    installed mpirun.mpich && set -- "$@" "MPICH: mpirun.mpich -np 2"
    installed torchrun && set -- "$@" "torchrun: torchrun --nproc_per_node=2 --master_port=$port --no-python"
    installed horovodrun && set -- "$@" "horovodrun --gloo: horovodrun -np 2 --gloo" "horovodrun --mpi: horovodrun -np 2 --mpi"
    installed srun && timeout 10 srun -n 1 true 2> /dev/null && set -- "$@" "srun: srun -n 2 --overcommit --mpi=none" "scancel, srun: srun -n 2 --overcommit --mpi=none --job-name=rank"
fi

failures=0
echo "| launcher | ranks' statuses | launcher's status | ended after | one step, checkpoint complete |"
echo "|---|---|---|---|---|"
for entry in "$@"; do
    name=${entry%%: *}
    line=${entry#*: }
    folder=$(mktemp -d "$work/job.XXXX")
    cp "$work/input.json" "$folder/"
    cd "$folder" || exit 1
    # shellcheck disable=SC2086 # words
    setsid $line "$work/rank" "$dp" --pt train -m workers -l train.log --zero-on-stop input.json > log.txt 2>&1 &
    launcher=$!
    for _ in $(seq 300); do
        [ -e lcurve.out ] && grep -q "^ *20 " lcurve.out && break
        sleep 0.1
    done
    case $name in
        scancel*) scancel --signal=TERM --user="$(id -un)" --name=rank ;;
        *group) kill -TERM -- -$launcher 2> /dev/null ;;
        *) kill -TERM $launcher 2> /dev/null ;;
    esac
    began=$(date +%s.%N)
    wait $launcher
    status=$?
    seconds=$(echo "$(date +%s.%N) - $began" | bc)
    sleep 0.5 # a rank may outlive its launcher by a moment
    statuses=$(for file in ended.*; do
        pid=${file#ended.}
        ended=$(sed -n "s/^$pid *+++ exited with \([0-9]*\).*/\1/p" "$file")
        # A process that has ended may wait for someone to ask how.
        if grep -qs "^State:.[^ZX]" "/proc/$pid/status"; then echo "goes on"; else echo "${ended:-killed}"; fi
    done | paste -sd' ' -)
    steps=$(sed -n 's/.*finished step \([0-9]*\), saving.*/\1/p' train_*.log | sort -u | paste -sd' ' -)
    well=no
    if [[ "$steps" =~ ^[0-9]+$ ]] && "$dp" freeze -o model.yaml > freeze.txt 2>&1 && [ -e "model.ckpt-$steps.phx" ]; then
        well="yes, $steps"
    fi
    printf '| %s | %s | %s | %.1f s | %s |\n' "$name" "$statuses" "$status" "$seconds" "$well"
    if [ "$statuses" != "0 0" ] || [ "$well" = no ]; then
        failures=$((failures + 1))
        tail -n 8 log.txt >&2
    fi
    cd "$root" || exit 1
    # A launcher may end and leave its ranks.
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd")" = "$folder" ] && kill -9 "${process#/proc/}" 2> /dev/null && left=yes
    done
    [ -z "${left:-}" ] || echo "(the ranks outlived $name)"
    left=
done
echo "$failures failures"
exit "$failures"
