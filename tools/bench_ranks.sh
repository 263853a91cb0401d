#!/usr/bin/env bash
# Samples per second of `dp train` on the example's water, one rank against several, one thread each.
#
#   tools/bench_ranks.sh [-n RANKS] [-s STEPS] [-t TURNS]
#
#   -n RANKS   compare 1 with this many ranks (default 2; never more than there are cores)
#   -s STEPS   steps of each run (default 600)
#   -t TURNS   every configuration runs so often, in turns; the best time counts (default 5)
#
# Our own binary is $PHALANX_DP (default target/release/dp); $PHALANX_TEST_LAUNCHERS may list folders with launchers
# (separated by `:`). Launchers that are missing are reported as skipped. Prints a table in the form that users of
# DeePMD-kit know; "seconds every 100 batches" are those of the second half of the best turn. The load of the machine
# is printed too: on a busy one the figures mean little.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2 steps=600 turns=5
while getopts n:s:t: option; do
    case $option in
        n) ranks=$OPTARG ;;
        s) steps=$OPTARG ;;
        t) turns=$OPTARG ;;
        *) exit 2 ;;
    esac
done
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
PATH="${PHALANX_TEST_LAUNCHERS:+$PHALANX_TEST_LAUNCHERS:}$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The example's input, with absolute paths, no validation while the clock runs, and as many steps as asked for.
sed -e "s|\"examples/|\"$PWD/examples/|g" \
    -e "s|\"numb_steps\": [0-9]*|\"numb_steps\": $steps|" \
    -e "s|\"disp_freq\": [0-9]*|\"disp_freq\": $((steps / 2))|" \
    -e "s|\"numb_btch\": [0-9]*|\"numb_btch\": 1|" \
    -e "s|\"save_freq\": [0-9]*|\"save_freq\": 100000000|" examples/water/input.json > "$work/input.json"

export OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# run NAME: one turn; prints seconds per step.
run() {
    local port=$((20000 + RANDOM % 10000)) line
    case $1 in
        "one rank") line="" ;;
        "built-in, torchrun") line="torchrun --nproc_per_node=$ranks --master_port=$port --no-python" ;;
        "built-in, by hand") line="by_hand" ;;
        "Open MPI") line="mpirun.openmpi -np $ranks" ;;
        "MPICH") line="mpirun.mpich -n $ranks" ;;
    esac
    (
        cd "$work"
        if [ "$line" = by_hand ]; then
            for ((rank = 1; rank < ranks; rank++)); do
                RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 \
                    MASTER_PORT=$port "$dp" --pt train input.json > /dev/null 2>&1 &
            done
            RANK=0 LOCAL_RANK=0 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
                "$dp" --pt train input.json > log.txt 2>&1
            wait
        else
            # shellcheck disable=SC2086 # words
            $line "$dp" --pt train input.json > log.txt 2>&1
        fi
    ) || { tail "$work/log.txt" >&2; exit 1; }
    local wall
    wall=$(sed -n 's|.*total wall time = \([0-9.]*\) s.*|\1|p' "$work/log.txt" | tail -n 1)
    echo "scale=8; $wall / $((steps / 2))" | bc
}

names=("one rank" "built-in, by hand")
for candidate in "torchrun:built-in, torchrun" "mpirun.openmpi:Open MPI" "mpirun.mpich:MPICH"; do
    if command -v "${candidate%%:*}" > /dev/null; then names+=("${candidate#*:}"); else
        echo "skipped: ${candidate%%:*} is not installed"
    fi
done
declare -A best
for ((turn = 0; turn < turns; turn++)); do
    for name in "${names[@]}"; do
        seconds=$(run "$name")
        if [ -z "${best[$name]:-}" ] || [ "$(echo "$seconds < ${best[$name]}" | bc)" = 1 ]; then best[$name]=$seconds; fi
    done
done

echo "$(nproc --all) cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1); load $(cut -d' ' -f1-3 /proc/loadavg); best of $turns turns of $steps steps"
echo "| engine | ranks | samples per batch | seconds every 100 batches | samples per second | speed up |"
echo "|---|---|---|---|---|---|"
for name in "${names[@]}"; do
    n=$ranks
    [ "$name" = "one rank" ] && n=1
    awk -v name="$name" -v n="$n" -v s="${best[$name]}" -v one="${best[one rank]}" 'BEGIN {
        printf "| %s | %d | %d | %.3f | %.1f | %.2f |\n", name, n, n, 100 * s, n / s, n * one / s }'
done
