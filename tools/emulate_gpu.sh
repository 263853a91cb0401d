#!/usr/bin/env bash
# Runs a command with a GPU that is emulated on the CPU: the kernels of both CUDA engines, thread by thread (tests/fake).
#
#   tools/emulate_gpu.sh cargo test --release --lib -- engine::cuda::tests engine::cuda::evaluate engine::cuda::plan::tests engine::pinet::cuda::tests train::cuda::kalman
#   PHALANX_DEVICE=cuda tools/emulate_gpu.sh cargo test --release --test oracle -- water
#
# Slow: for results, not for times. Needs a C and a C++ compiler.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Every kernel is compiled by itself, so what they share is read once; what was compiled is kept for the next time, and for the tests.
kernels=${CARGO_TARGET_DIR:-$here/target}/tmp/emulate
mkdir -p "$kernels"
cp "$here/tests/fake/emulate.h" "$kernels/"
c++ -std=c++17 -O1 -w -fPIC -x c++-header "$kernels/emulate.h" -o "$kernels/emulate.h.gch"
cc -shared -fPIC -w -O1 -DEMULATE_H="\"$kernels/emulate.h\"" -o "$folder/libcuda.so.1" "$here/tests/fake/cuda.c" -ldl -lpthread
cp "$folder/libcuda.so.1" "$folder/libnvrtc.so.13"
# One test at a time, all on one thread: what runs the threads of a block stays with the thread that it began on.
RUST_TEST_THREADS=1 FAKE_CUDA_RUNS=1 LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$folder/cache "$@"
