#!/usr/bin/env bash
# What `--profile` and TensorBoard events at every step cost: seconds a step of `dp train` on the example's water.
#
#   tools/bench_overhead.sh [-s STEPS] [-t TURNS]
#
#   -s STEPS   steps of each run, of which the second half is timed (default 60)
#   -t TURNS   every turn runs plain, profiled, recorded, plain again, in an order that changes (default 24)
#
# Short runs close to each other see the same machine: each turn gives one ratio to the mean of its two plain runs. Printed are
# the median of the ratios over turns and its uncertainty (1.25 standard deviations, from the quartiles, over the root of the
# number of turns). The two plain runs of a turn against each other show what no difference looks like. Our own binary is
# $PHALANX_DP (default target/release/dp). `cargo test --release --lib -- --ignored --nocapture what_a_` prints what a span and
# a row of events cost by themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
steps=60 turns=24
while getopts s:t: option; do
    case $option in
        s) steps=$OPTARG ;;
        t) turns=$OPTARG ;;
        *) exit 2 ;;
    esac
done
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -e "s|\"examples/|\"$PWD/examples/|g" \
    -e "s|\"numb_steps\": [0-9]*|\"numb_steps\": $steps|" \
    -e "s|\"disp_freq\": [0-9]*|\"disp_freq\": $((steps / 2))|" \
    -e "s|\"numb_btch\": [0-9]*|\"numb_btch\": 1|" \
    -e "s|\"save_freq\": [0-9]*|\"save_freq\": 100000000|" examples/water/input.json > "$work/plain.json"
sed -e 's|"training": {|"training": {"tensorboard": true, "tensorboard_freq": 1,|' "$work/plain.json" > "$work/recorded.json"

# run NAME: milliseconds a step over the second half.
run() {
    local input=plain option=""
    [ "$1" = recorded ] && input=recorded
    [ "$1" = profiled ] && option=--profile
    # shellcheck disable=SC2086 # words
    (cd "$work" && "$dp" train --skip-neighbor-stat $option $input.json > log.txt 2>&1) || { tail "$work/log.txt" >&2; exit 1; }
    # The times at the beginning of the lines are finer than those in them: "[2026-01-31 12:01:02,345] ...".
    awk -v half=$((steps / 2)) '/Batch .*total wall time/ { split($2, t, /[:,\]]/); before = now; now = 3600e3 * t[1] + 60e3 * t[2] + 1e3 * t[3] + t[4] }
        END { printf "%.4f\n", (now - before) / half }' "$work/log.txt"
}
for ((turn = 0; turn < turns; turn++)); do
    if [ $((turn % 2)) = 0 ]; then order="plain profiled recorded again"; else order="again recorded profiled plain"; fi
    for name in $order; do declare "$name=$(run $name)"; done
    # shellcheck disable=SC2154 # set by declare
    echo "$plain $again $profiled $recorded" >> "$work/turns"
done
awk '{print ($1 + $2) / 2}' "$work/turns" | sort -g | awk '{x[NR]=$1} END {printf "plain     %.3f ms a step\n", x[int((NR+1)/2)]}'
# ratio NAME EXPRESSION
ratio() {
    awk "{print $2}" "$work/turns" | sort -g | awk -v name="$1" '
        function at(p,   k) { k = 1 + p * (NR - 1); return x[int(k)] + (k - int(k)) * (x[int(k) + (int(k) < NR)] - x[int(k)]) }
        {x[NR]=$1} END {printf "%-9s ratio %.4f +- %.4f (%d turns, quartiles %.4f %.4f)\n", name, at(0.5),
            1.25 * (at(0.75) - at(0.25)) / 1.349 / sqrt(NR), NR, at(0.25), at(0.75)}'
}
ratio "plain" '$1 / $2'
ratio "profiled" '2 * $3 / ($1 + $2)'
ratio "recorded" '2 * $4 / ($1 + $2)'
