#!/bin/sh
# Training steps a second of PiNN and of Phalanx: the default PiNet on the same 24-atom periodic frames, batch 10.
#
#   tools/bench_pinn.sh PYTHON PINN_SOURCE
#
# PYTHON has tensorflow-cpu 2.15.1, numpy 1.26.4, ase 3.22.1 and click 7.1.2; PINN_SOURCE is a copy of PiNN's
# repository. Both run one after the other on the cores of this process.
set -eu
[ $# -eq 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"
cargo bench --bench pinet -- --write-xyz "$work/frames.xyz"
cargo bench --bench pinet
PYTHONPATH=$2 "$1" "$here/tools/bench_pinn.py" "$work/frames.xyz" "$work"
