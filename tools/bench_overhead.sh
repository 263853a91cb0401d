#!/usr/bin/env bash
# What `--profile` and TensorBoard events at every step cost: seconds a step of `dp train` on the example's water.
#
#   tools/bench_overhead.sh [-s STEPS] [-t TURNS]
#
#   -s STEPS   steps of each run, of which the second half is timed (default 60)
#   -t TURNS   turns of the whole runs; every turn runs plain, profiled, recorded, plain again, in an order that changes
#              (default 24; 0 leaves them out)
#
# First the cost of recording a step where it arises, from the timelines of profiled runs with and without events, in turns:
# the optimiser's span (the norm of the gradient is made there) and the gap between it and the next step (the row is written
# there): lower quartiles over steps, since whatever else the machine does only adds to them. Then whole runs: short ones close to each other see the same machine, so that each turn gives one
# ratio to the mean of its two plain runs; printed are the median of the ratios and its uncertainty (1.25 standard deviations,
# from the quartiles, over the root of the number of turns). The two plain runs of a turn against each other show what no
# difference looks like. Our own binary is $PHALANX_DP (default target/release/dp). What a span costs by itself is printed by
# `cargo test --release --lib -- --ignored --nocapture what_a_`.
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
# quartile FILE: the lower one.
quartile() { sort -g "$1" | awk '{x[NR]=$1} END {print x[int((NR+3)/4)]}'; }

# spans INPUT NAME: of every step, the optimiser's span, the gap after it, and the whole step, in microseconds, appended to files.
spans() {
    (cd "$work" && "$dp" train --skip-neighbor-stat --profile "$1" > log.txt 2>&1) || { tail "$work/log.txt" >&2; exit 1; }
    # One event a line: {"ph":"X","name":"optimizer","pid":0,"tid":0,"ts":1.234,"dur":5.678,"args":{"step":9}}
    awk -F'[:,]' -v out="$work/$2" '
        /"ph":"X"/ && /"tid":0/ {
            name = $4; start = $10; length_us = $12
            if (name == "\"data wait\"") {
                if (end) print start - end > (out ".gap")
                if (before) print start - before > (out ".step")
                before = start; end = 0
            }
            if (name == "\"optimizer\"") { print length_us > (out ".optimizer"); end = start + length_us }
            else if (name != "\"data wait\"") end = 0
        }' "$work/timeline.json"
    for part in gap step optimizer; do cat "$work/$2.$part" >> "$work/$2.$part.all"; done
}
sed -i "s|\"numb_steps\": [0-9]*|\"numb_steps\": $((4 * steps))|; s|\"disp_freq\": [0-9]*|\"disp_freq\": $((2 * steps))|" "$work"/*.json
for _ in 1 2 3; do
    spans plain.json p
    spans recorded.json r
done
sed -i "s|\"numb_steps\": [0-9]*|\"numb_steps\": $steps|; s|\"disp_freq\": [0-9]*|\"disp_freq\": $((steps / 2))|" "$work"/*.json
for part in optimizer gap step; do
    echo "$part $(quartile "$work/p.$part.all") $(quartile "$work/r.$part.all")"
done | awk '{printf "%-10s %10.1f us, with events %10.1f us\n", $1, $2, $3; cost[$1] = $3 - $2; step = $2}
    END {c = cost["optimizer"] + cost["gap"]; printf "events cost %.1f us a step of %.1f ms: %.3f%%\n", c, step / 1e3, 100 * c / step}'
[ "$turns" -gt 0 ] || exit 0
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
