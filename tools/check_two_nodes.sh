#!/usr/bin/env bash
# `dp train` on two hosts that share one machine: network namespaces joined by a cable that can be cut.
#
#   sudo tools/check_two_nodes.sh ["by hand"] ["torchrun static"] ["torchrun c10d"] ["Open MPI"]
#
# Our own binary is $PHALANX_DP (default target/release/dp); $PHALANX_TEST_LAUNCHERS may list folders with launchers
# (separated by `:`); PHALANX_COMM=gloo joins the ranks of all but Open MPI by Gloo, where that was built in. Each namespace has an address, a host name and a working folder of its own. For torchrun (static
# and c10d rendezvous), Open MPI over TCP, and variables set by hand:
#   1. two ranks, one on each host, train as one job; only the host of rank 0 gets files; with `-m collect` the log
#      holds the lines of both;
#   2. the cable is cut in mid-run: both ranks end with an error within the limit (5 s here), the newest checkpoint
#      loads, and no process stays behind once the cable is back (launchers may wait for it, ranks do not).
# What cannot run is reported as skipped. The last line counts failures, which are also the exit status.
set -uo pipefail
cd "$(dirname "$0")/.."

root=$PWD
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
PATH="${PHALANX_TEST_LAUNCHERS:+$PHALANX_TEST_LAUNCHERS:}$PATH"
limit=5
failures=0
if [ "$(id -u)" != 0 ] || ! ip netns list > /dev/null 2>&1; then
    echo "skipped: network namespaces need root and the ip command"
    exit 0
fi

work=$(mktemp -d)
a=phx-a-$$
b=phx-b-$$
# kill_all: whatever still runs on either host.
kill_all() {
    local ns
    for ns in $a $b; do
        # shellcheck disable=SC2046 # a list of process ids
        kill -9 $(ip netns pids $ns 2> /dev/null) 2> /dev/null
    done
}
clean_up() {
    kill_all
    ip netns del $a 2> /dev/null
    ip netns del $b 2> /dev/null
    rm -rf /etc/netns/$a /etc/netns/$b
    rm -rf "$work"
}
trap clean_up EXIT

ip netns add $a && ip netns add $b || exit 1
ip -n $a link add cable type veth peer name cable netns $b
ip -n $a addr add 10.77.0.1/24 dev cable
ip -n $b addr add 10.77.0.2/24 dev cable
for ns in $a $b; do
    # Each host knows both names; `ip netns exec` puts this in the place of /etc/hosts.
    mkdir -p /etc/netns/$ns
    printf '127.0.0.1 localhost\n10.77.0.1 %s\n10.77.0.2 %s\n' $a $b > /etc/netns/$ns/hosts
    ip -n $ns link set lo up
    ip -n $ns link set cable up
done

# on NAMESPACE FOLDER COMMAND...: runs it as on a host of that name.
on() {
    local ns=$1 folder=$2
    shift 2
    # Processes of their own, too: ranks that see each other's processes would share memory.
    ip netns exec "$ns" unshare --uts --pid --fork --kill-child --mount-proc sh -c 'hostname "$1"; cd "$2"; shift 2; exec "$@"' sh "$ns" "$folder" "$@"
}
# How Open MPI's mpirun reaches the other host.
cat > "$work/agent" << AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare --uts --pid --fork --kill-child --mount-proc sh -c 'hostname $b; exec sh -c "\$*"' sh "\$@"
AGENT
chmod +x "$work/agent"

# fresh_folders STEPS: one for each host, with the same input.
fresh_folders() {
    rm -rf "$work/a" "$work/b"
    mkdir "$work/a" "$work/b"
    cat > "$work/a/input.json" << INPUT
{
  "model": {
    "type_map": ["O", "H"],
    "descriptor": {
      "type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "rcut_smth": 0.5, "neuron": [5, 10], "axis_neuron": 4, "seed": 1
    },
    "fitting_net": { "neuron": [20, 20], "seed": 1 }
  },
  "learning_rate": { "start_lr": 0.001, "stop_lr": 1e-5, "decay_steps": 20 },
  "loss": { "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1 },
  "training": {
    "training_data": { "systems": ["$root/examples/water/data_0"], "batch_size": 1 },
    "numb_steps": $1, "disp_freq": 20, "save_freq": 20, "seed": 1, "stall_timeout": $limit
  }
}
INPUT
    cp "$work/a/input.json" "$work/b/"
}

# start LAUNCHER: starts both ranks in the background; their processes go to $first and $second.
start() {
    local train="train -m collect -l train.log input.json" second_rank=true
    export OMP_NUM_THREADS=1
    local port=$((20000 + RANDOM % 10000))
    case $1 in
        "torchrun static" | "torchrun c10d")
            local how="--master_addr=10.77.0.1 --master_port=$port"
            [ "$1" = "torchrun c10d" ] && how="--rdzv_backend=c10d --rdzv_endpoint=10.77.0.1:$port --rdzv_id=7"
            # shellcheck disable=SC2086 # words
            node() { on "$1" "$2" torchrun $how --nnodes=2 --nproc_per_node=1 --node_rank="$3" --no-python \
                "$dp" --pt $train; } ;;
        "by hand")
            # shellcheck disable=SC2086
            node() { on "$1" "$2" env RANK="$3" WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=$port "$dp" --pt $train; } ;;
        "Open MPI")
            second_rank=false
            # shellcheck disable=SC2086
            node() { on "$1" "$2" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
                OMPI_MCA_plm_rsh_agent="$work/agent" OMPI_MCA_oob_tcp_if_include=cable OMPI_MCA_btl_tcp_if_include=cable \
                mpirun.openmpi --host 10.77.0.1:1,10.77.0.2:1 -np 2 "$dp" --pt $train; } ;;
    esac
    node $a "$work/a" 0 > "$work/a.txt" 2>&1 &
    first=$!
    second=
    if $second_rank; then
        node $b "$work/b" 1 > "$work/b.txt" 2>&1 &
        second=$!
    else
        : > "$work/b.txt"
    fi
}

# check NAME COMMAND...: one line of the report.
check() {
    local name=$1
    shift
    if "$@"; then echo "    ok: $name"; else
        echo "    FAILED: $name"
        failures=$((failures + 1))
        tail -n 4 "$work/a.txt" "$work/b.txt" | cut -c1-200 | sed 's/^/        /'
    fi
}

# ends_within SECONDS: both have ended by then; their statuses are in $status_1 and $status_2.
ends_within() {
    local deadline=$((SECONDS + $1))
    while [ $SECONDS -lt $deadline ] && { kill -0 "$first" 2> /dev/null || { [ -n "$second" ] && kill -0 "$second" 2> /dev/null; }; }; do
        sleep 0.1
    done
    kill -0 "$first" 2> /dev/null && return 1
    [ -n "$second" ] && kill -0 "$second" 2> /dev/null && return 1
    wait "$first"
    status_1=$?
    status_2=$status_1
    [ -z "$second" ] || { wait "$second"; status_2=$?; }
}

ranks_left() { ps -eo args | grep -F "$dp" | grep -v -e grep -e check_two_nodes | grep -c "train.log input.json"; }
no_rank_left() { for _ in $(seq 50); do [ "$(ranks_left)" = 0 ] && return 0; sleep 0.1; done; return 1; }
both_well() { [ "$status_1" = 0 ] && [ "$status_2" = 0 ]; }
both_badly() { [ "$status_1" != 0 ] && [ "$status_2" != 0 ]; }
one_job() { grep -q "world size: *2" "$work/a/train.log" && [ "$(grep -vc '^#' "$work/a/lcurve.out")" = 4 ]; }
both_hosts() { grep -q "node list: *$a, $b" "$work/a/train.log"; }
files_at_rank_0_only() { [ -e "$work/a/model.ckpt.phx" ] && [ -z "$(ls "$work/b" | grep -v -e input.json -e train.log)" ]; }
log_has_both() { grep -q "rank:0 .*Batch *60" "$work/a/train.log" && grep -q "rank:1 .*Batch *60" "$work/a/train.log"; }
checkpoint_loads() { (cd "$work/a" && "$dp" freeze -o loaded.dp > "$work/freeze.txt" 2>&1 && [ -s loaded.dp ]); }
named() { grep -h -e "rank [01] " "$work/a.txt" "$work/b.txt" | grep -q -e "no sign of life" -e "died" -e "closed" -e "lost" -e "left"; }

[ $# -gt 0 ] || set -- "by hand" "torchrun static" "torchrun c10d" "Open MPI"
for launcher in "$@"; do
    program=$(case $launcher in torchrun*) echo torchrun ;; Open*) echo mpirun.openmpi ;; *) echo sh ;; esac)
    if ! command -v "$program" > /dev/null; then
        echo "skipped: $launcher: $program is not installed"
        continue
    fi
    echo "$launcher: two hosts"
    fresh_folders 60
    start "$launcher"
    check "both end" ends_within 60
    check "both end well" both_well
    check "they are one job" one_job
    check "the Summary names both hosts" both_hosts
    check "only the host of rank 0 has files" files_at_rank_0_only
    check "the log holds the lines of both" log_has_both
    engine=$(grep -h -m1 "engine:" "$work/a/train.log" | sed 's/.*engine: *//')
    echo "    engine: $engine"

    echo "$launcher: the cable is cut"
    fresh_folders 100000000
    start "$launcher"
    for _ in $(seq 600); do [ -e "$work/a/model.ckpt.phx" ] && break; sleep 0.1; done
    check "it trains" [ -e "$work/a/model.ckpt.phx" ]
    ip -n $a link set cable down
    cut=$(date +%s.%N)
    check "no rank is left after the limit and 3 s" timeout $((limit + 3)) bash -c "
        while ps -eo args | grep -F '$dp' | grep -v -e grep -e bash -e torchrun -e mpirun | grep -q 'train.log input.json'; do sleep 0.1; done"
    echo "    the ranks ended $(echo "$(date +%s.%N) - $cut" | bc) s after the cut"
    # Launchers have waits of their own: torchrun's c10d agent for its store, mpirun for its daemon on the other host.
    if ends_within 3; then echo "    the launchers ended too"; else echo "    a launcher waits for the cable"; fi
    ip -n $a link set cable up
    check "launchers end too" ends_within 60
    check "with an error" both_badly
    check "the other rank is named" named
    check "the newest checkpoint loads" checkpoint_loads
    grep -h -e "error:" "$work/a.txt" "$work/b.txt" | cut -c1-160 | sed 's/^/    /'
    check "no process stays behind" no_rank_left
    ps -eo pid,args | grep -F "$dp" | grep "train.log input.json" | grep -v -e grep -e check_two_nodes | cut -c1-160 | sed 's/^/    left: /'
    kill_all
done
echo "$failures failures"
exit "$failures"
