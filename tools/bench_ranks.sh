#!/usr/bin/env bash
# Samples per second of `dp train` on the example's water, one rank against several, one thread each.
#
#   tools/bench_ranks.sh [-c] [-n RANKS] [-s STEPS] [-t TURNS] [-m FOLDER]
#
#   -n RANKS   compare 1 with this many ranks (default 2; never more than there are cores)
#   -s STEPS   steps of each run (default 600)
#   -t TURNS   every configuration runs so often, in turns; the best time counts (default 5)
#   -c         compare with as many copies that know nothing of each other and run at the same time: what the machine
#              allows. RANKS may then be a list, such as 4,8,16
#   -m FOLDER  take Open MPI and MPICH from FOLDER/openmpi/bin/mpirun and FOLDER/mpich/bin/mpirun
#
# Our own binary is $PHALANX_DP (default target/release/dp); $PHALANX_TEST_LAUNCHERS may list folders with launchers
# (separated by `:`). Launchers that are missing are reported as skipped. Prints a table in the form that users of
# DeePMD-kit know; "seconds every 100 batches" are those of the second half of the best turn. The load of the machine
# is printed too: on a busy one the figures mean little.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2 steps=600 turns=5 copies=no openmpi=mpirun.openmpi mpich=mpirun.mpich
while getopts cm:n:s:t: option; do
    case $option in
        c) copies=yes ;;
        m) openmpi=$(realpath "$OPTARG")/openmpi/bin/mpirun mpich=$(realpath "$OPTARG")/mpich/bin/mpirun ;;
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

# by_hand RANKS: ranks of the built-in engine.
by_hand() {
    local port=$((20000 + RANDOM % 10000)) rank
    for ((rank = $1 - 1; rank >= 0; rank--)); do
        local log=/dev/null
        [ "$rank" = 0 ] && log=log.txt
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$dp" --pt train input.json --device cpu > $log 2>&1 &
    done
    wait
}

# apart COPIES: as many runs that know nothing of each other, each in a folder of its own.
apart() {
    local k
    for ((k = 0; k < $1; k++)); do
        mkdir -p "copy$k"
        (cd "copy$k" && "$dp" --pt train ../input.json --device cpu > log.txt 2>&1) &
    done
    wait
    cat copy*/log.txt > log.txt
    rm -r copy*
}

# run NAME RANKS: one turn; prints seconds per step, of copies the mean.
run() {
    local port=$((20000 + RANDOM % 10000)) n=$2
    (
        cd "$work"
        case $1 in
            "one rank") "$dp" --pt train input.json --device cpu > log.txt 2>&1 ;;
            "copies") apart "$n" ;;
            "built-in, by hand") by_hand "$n" ;;
            "built-in, torchrun")
                torchrun --nproc_per_node="$n" --master_port=$port --no-python "$dp" --pt train input.json --device cpu > log.txt 2>&1 ;;
            "Open MPI") "$openmpi" -np "$n" "$dp" --pt train input.json --device cpu > log.txt 2>&1 ;;
            "MPICH") "$mpich" -n "$n" "$dp" --pt train input.json --device cpu > log.txt 2>&1 ;;
        esac
    ) || { tail "$work/log.txt" >&2; exit 1; }
    sed -n "s|.* $steps: total wall time = \\([0-9.]*\\) s.*|\\1|p" "$work/log.txt" |
        awk -v steps=$((steps / 2)) -v slowest="$work/slowest" '{ sum += $1; n++; if ($1 > most) most = $1 }
            END { if (!n) exit 1; printf "%.8f\n", sum / n / steps; printf "%.8f\n", most / steps > slowest }' ||
        { tail "$work/log.txt" >&2; exit 1; }
}

# measure NAME RANKS: one turn; the best time of all turns is in `best`. Ranks wait for the slowest of them, copies do not:
# where the cores of a machine are not alike, the slowest copy says what ranks could reach.
measure() {
    local seconds key="$1 $2"
    seconds=$(run "$1" "$2")
    [ "$1" = copies ] && keep "slowest copy $2" "$(cat "$work/slowest")"
    keep "$key" "$seconds"
}

# keep KEY SECONDS
keep() {
    local key=$1 seconds=$2
    echo "  $key: $(awk -v s="$seconds" 'BEGIN { printf "%.2f", 1000 * s }') ms a step" >&2
    if [ -z "${best[$key]:-}" ] || [ "$(awk -v a="$seconds" -v b="${best[$key]}" 'BEGIN { print (a < b) }')" = 1 ]; then
        best[$key]=$seconds
    fi
}

engines=("built-in, by hand")
for candidate in "torchrun:built-in, torchrun" "$openmpi:Open MPI" "$mpich:MPICH"; do
    if [ "$copies" = yes ] && [ "${candidate%%:*}" = torchrun ]; then continue; fi
    if command -v "${candidate%%:*}" > /dev/null; then engines+=("${candidate#*:}"); else
        echo "skipped: ${candidate%%:*} is not installed"
    fi
done
yardstick="one rank"
[ "$copies" = yes ] && yardstick=copies
declare -A best
for ((turn = 0; turn < turns; turn++)); do
    [ "$yardstick" = "one rank" ] && measure "one rank" 1
    for n in ${ranks//,/ }; do
        [ "$yardstick" = copies ] && measure copies "$n"
        for name in "${engines[@]}"; do measure "$name" "$n"; done
    done
done

echo "$(nproc --all) cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1); load $(cut -d' ' -f1-3 /proc/loadavg); best of $turns turns of $steps steps"
# row NAME RANKS SECONDS FACTOR
row() {
    awk -v name="$1" -v n="$2" -v s="$3" -v factor="$4" 'BEGIN {
        printf "| %s | %d | %d | %.3f | %.1f | %.2f |\n", name, n, n, 100 * s, n / s, factor }'
}
over() { awk -v a="$1" -v b="$2" -v n="$3" 'BEGIN { print n * a / b }'; }
if [ "$copies" = yes ]; then
    echo "| engine | ranks | samples per batch | seconds every 100 batches | samples per second | of copies |"
else
    echo "| engine | ranks | samples per batch | seconds every 100 batches | samples per second | speed up |"
fi
echo "|---|---|---|---|---|---|"
[ "$copies" = no ] && row "one rank" 1 "${best[one rank 1]}" 1
for n in ${ranks//,/ }; do
    if [ "$copies" = yes ]; then
        row "copies" "$n" "${best[copies $n]}" 1
        row "slowest copy" "$n" "${best[slowest copy $n]}" "$(over "${best[copies $n]}" "${best[slowest copy $n]}" 1)"
    fi
    for name in "${engines[@]}"; do
        if [ "$copies" = yes ]; then factor=$(over "${best[copies $n]}" "${best[$name $n]}" 1); else
            factor=$(over "${best[one rank 1]}" "${best[$name $n]}" "$n")
        fi
        row "$name" "$n" "${best[$name $n]}" "$factor"
    done
done
