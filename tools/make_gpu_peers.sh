#!/usr/bin/env bash
# Makes the folder of other programs that tools/bench_gpu_peers.sh times beside ours, by pip, with nothing to compile.
#
#   tools/make_gpu_peers.sh FOLDER [PYTHON]
#
# FOLDER  is made; it goes into PYTHONPATH as it is, and can be carried to a machine without a network (170 MB, 29 MB packed).
# PYTHON  version of the Python that will use it (default: that of python3).
# It holds DeePMD-kit and deepmd-jax with what they need beside PyTorch, JAX, numpy and scipy, which that Python must have
# for its GPU; deepmd-jax is not on PyPI and comes from its repository, or from the checkout that DEEPMD_JAX names.
set -eu
folder=${1:?the folder to make} version=${2:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
get() {
    python3 -m pip install --quiet --target "$folder" --upgrade --no-deps --no-compile --only-binary=:all: --ignore-requires-python \
        --python-version "$version" "$@"
}
get deepmd-kit==3.2.0 dargs typeguard wcmatch bracex einops packaging pyyaml h5py lmdb msgpack array-api-compat ml_dtypes \
    e3nn opt_einsum opt_einsum_fx optree colorama \
    mendeleev pandas python-dateutil six pytz sqlalchemy pint flexcache flexparser platformdirs
get flax==0.12.12 optax==0.2.8 absl-py treescope rich markdown-it-py mdurl pygments ase
# DeePMD-kit looks for the library of MPI in the list of files of its package, outside the folder.
work=$(mktemp -d)
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" mpich
python3 -m zipfile -e "$work"/mpich-*.whl "$work/mpich"
cp -r "$work"/mpich/mpich-*.dist-info "$folder/"
cp -r "$work"/mpich/mpich-*.data/data/lib/{libmpi.so.*,mpich} "$folder/"
(cd "$folder" && ls libmpi.so.* | sed 's/$/,,/' >>mpich-*.dist-info/RECORD)
from=${DEEPMD_JAX:-}
if [ -z "$from" ]; then
    from=$work/deepmd-jax
    git clone --quiet --depth 1 --branch v0.2.1 https://github.com/SparkyTruck/deepmd-jax "$from"
fi
cp -r "$from/deepmd_jax" "$folder/"
# What only tests use.
rm -rf "$work" "$folder"/bin "$folder"/pandas/tests
du -sh "$folder"
