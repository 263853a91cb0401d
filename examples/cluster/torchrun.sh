#!/usr/bin/env bash
# Trains input.json on several hosts by torchrun. On each of them, with its own number:
#
#   NODES=2 NODE=0 FIRST_HOST=node0 torchrun.sh        # and NODE=1 on the other
set -eu
exec torchrun --nnodes="${NODES:-1}" --node_rank="${NODE:-0}" --nproc_per_node="${RANKS:-4}" \
    --rdzv_endpoint="${FIRST_HOST:-localhost}:${PORT:-12321}" --no_python \
    dp --pt train --resume auto input.json
