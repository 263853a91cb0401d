#!/usr/bin/env bash
# Tries every example input of DeePMD-kit: does it train here, or what is missing?
#
#   tools/try_deepmd_examples.sh CHECKOUT > table.md
#
#   CHECKOUT   a checkout of DeePMD-kit, or any folder with its `examples`; it is only read
#
# Our own binary is $PHALANX_DP (default target/release/dp). Each input runs for two steps on the CPU in a copy of the examples; the
# number of steps and how often they are shown and saved are all that is changed. The table goes to the standard output, a
# line for each input to the standard error.
set -euo pipefail

(($# == 1)) || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
examples="$(realpath "$1")/examples"
[[ -d "$examples" ]] || { echo "error: $examples is no folder" >&2; exit 2; }
dp="$(realpath "${PHALANX_DP:-$(dirname "$0")/../target/release/dp}")"
[[ -x "$dp" ]] || { echo "error: no program at $dp; set PHALANX_DP or run cargo build --release" >&2; exit 2; }

place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
cp -r "$examples" "$place/examples"
cd "$place/examples"

# Two steps of an input, however it says how long it runs.
shorten='
import json, sys
with open(sys.argv[1]) as f:
    config = json.load(f)
training = config["training"]
for key in ["num_epoch", "numb_epoch", "num_epochs", "num_epoch_dict", "stop_batch"]:
    training.pop(key, None)
training["numb_steps"] = 2
training["disp_freq"] = training["save_freq"] = 1
with open(sys.argv[2], "w") as f:
    json.dump(config, f)
'

# What an error names: the part of its first line behind the name of the file. There may be more behind it.
missing() {
    sed -n 's/^error: //p' "$1" | head -n 1 |
        sed 's/^short\.json: //; s/, Phalanx does not support it yet//; s/: DeePMD-kit knows /: not yet, /; s/|/\\|/g'
}

n=0
trained=0
echo "| example | |"
echo "|---|---|"
while IFS= read -r input; do
    name="${input#./}"
    n=$((n + 1))
    cd "$place/examples/$(dirname "$name")"
    if ! python3 -c "$shorten" "$(basename "$name")" short.json 2> "$place/log"; then
        found="the input cannot be read: $(tail -n 1 "$place/log")"
    elif timeout 600 "$dp" train short.json --device cpu --skip-neighbor-stat > "$place/log" 2>&1; then
        found="trains"
        trained=$((trained + 1))
    elif grep -q 'needs the neighbour statistics' "$place/log" &&
        timeout 600 "$dp" train short.json --device cpu > "$place/log" 2>&1; then
        found="trains"
        trained=$((trained + 1))
    else
        found="$(missing "$place/log")"
        found="${found:-$(tail -n 1 "$place/log")}"
    fi
    rm -rf model.ckpt* checkpoint lcurve.out out.json short.json
    echo "| \`$name\` | $found |"
    echo "$name: $found" >&2
done < <(grep -rlE --include='*.json' '"training"' . | xargs -r grep -lE '"model"' | sort)
echo
echo "$trained of $n train."
