#!/usr/bin/env bash
# What `--profile` and TensorBoard events at every step cost: seconds a step of `dp train` on the example's water.
#
#   tools/bench_overhead.sh [-s STEPS] [-t TURNS]
#
# Plain, profiled and recorded runs take turns; the median of each is printed with its ratio to the plain one. Our own binary is
# $PHALANX_DP (default target/release/dp).
set -euo pipefail
cd "$(dirname "$0")/.."
steps=300 turns=5
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

# run NAME: seconds a step over the second half.
run() {
    local input=plain option=""
    [ "$1" = recorded ] && input=recorded
    [ "$1" = profiled ] && option=--profile
    # shellcheck disable=SC2086 # words
    (cd "$work" && "$dp" train $option $input.json > log.txt 2>&1) || { tail "$work/log.txt" >&2; exit 1; }
    echo "scale=8; $(sed -n 's|.*total wall time = \([0-9.]*\) s.*|\1|p' "$work/log.txt" | tail -n 1) / $((steps / 2))" | bc
}
for ((turn = 0; turn < turns; turn++)); do
    for name in plain profiled recorded; do run $name >> "$work/$name.times"; done
done
for name in plain profiled recorded; do
    sort -g "$work/$name.times" | awk -v name=$name -v plain="$(sort -g "$work/plain.times" | awk '{x[NR]=$1} END {print x[int((NR+1)/2)]}')" \
        '{x[NR]=$1} END {m=x[int((NR+1)/2)]; printf "%-9s %.3f ms a step, ratio %.4f (best %.3f ms)\n", name, 1e3*m, m/plain, 1e3*x[1]}'
done
