#!/bin/sh
# Training steps a second of PiNN and of Phalanx: the default PiNet on the same 24-atom periodic frames, batch 10, float32.
#
#   tools/bench_pinn.sh PYTHON PINN_SOURCE [TURNS]
#
# PYTHON has tensorflow-cpu 2.15.1, numpy 1.26.4, ase 3.22.1 and click 7.1.2; PINN_SOURCE is a copy of PiNN's repository.
# Both run in turns (3 unless told) on the cores of this process. The last lines are medians and their ratio. Where the
# machine has other work the ratio says little: look at the load, which is printed with each turn.
set -eu
[ $# -ge 2 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
python=$1 source=$2 turns=${3:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"
cargo bench --bench pinet -- --write-xyz "$work/frames.xyz"
for turn in $(seq "$turns"); do
    echo "turn $turn, load $(cut -d' ' -f1 /proc/loadavg 2>/dev/null || echo unknown)"
    cargo bench --bench pinet -- --float32 2>/dev/null | tee -a "$work/ours"
    PYTHONPATH=$source "$python" "$here/tools/bench_pinn.py" "$work/frames.xyz" "$work/$turn" | tee -a "$work/theirs"
done
for what in 'energies' 'energies and forces'; do
    ours=$(sed -n "s/^$what  *float32  *//p" "$work/ours" | sort -n)
    theirs=$(sed -n "s/^PiNN, $what: \([0-9.]*\) .*/\1/p" "$work/theirs" | sort -n)
    middle() { echo "$1" | sed -n "$(((turns + 1) / 2))p"; }
    a=$(middle "$ours") b=$(middle "$theirs")
    echo "$what: $a against $b steps/s, $(echo "$a $b" | awk '{printf "%.1f", $1 / $2}') times"
done
