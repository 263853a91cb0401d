#!/usr/bin/env bash
# Times of one update over ranks of two hosts that share one machine: network namespaces joined by a cable of limited bandwidth.
#
#   sudo tools/bench_network.sh [-r RANKS] [-g GIGABITS]...
#
#   -r RANKS      ranks on each host (default 1)
#   -g GIGABITS   bandwidth of the cable in Gb/s; may be repeated (default 0.5 1 2 4, and no limit)
#
# The exchanges are those of a gradient of 1.0 M float64 numbers; beside each time stands what the model of
# docs/notebook/ranks.md expects of that bandwidth: every host sends half of the gradient and half of the parameters.
# $PHALANX_LAUNCHERS is the test program whose ranks do it (default: the newest of `cargo test --release --test launchers`).
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=1 rates=()
while getopts r:g: option; do
    case $option in
        r) ranks=$OPTARG ;;
        g) rates+=("$OPTARG") ;;
        *) exit 2 ;;
    esac
done
[ ${#rates[@]} = 0 ] && rates=(0.5 1 2 4 none)
newest() { find "${CARGO_TARGET_DIR:-target}/release/deps" -name 'launchers-*' -executable -type f -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2; }
program=$(realpath "${PHALANX_LAUNCHERS:-$(newest)}")
if [ "$(id -u)" != 0 ] || ! ip netns list > /dev/null 2>&1; then
    echo "skipped: network namespaces need root and the ip command"
    exit 0
fi

work=$(mktemp -d)
hosts=("phx-a-$$" "phx-b-$$")
clean_up() {
    for host in "${hosts[@]}"; do ip netns del "$host" 2> /dev/null || true; done
    rm -rf "$work"
}
trap clean_up EXIT
for host in "${hosts[@]}"; do ip netns add "$host"; done
ip -n "${hosts[0]}" link add cable type veth peer name cable netns "${hosts[1]}"
for k in 0 1; do
    ip -n "${hosts[$k]}" addr add 10.78.0.$((k + 1))/24 dev cable
    ip -n "${hosts[$k]}" link set lo up
    ip -n "${hosts[$k]}" link set cable up
done

# host NUMBER PORT: its ranks, which see no processes but each other, or all would share memory.
host() {
    # shellcheck disable=SC2016 # for the inner shell
    ip netns exec "${hosts[$1]}" unshare --uts --pid --fork --kill-child --mount-proc bash -c '
        for ((k = 0; k < $2; k++)); do
            PHALANX_TEST_TASK=time RANK=$(($1 * $2 + k)) WORLD_SIZE=$((2 * $2)) LOCAL_RANK=$k LOCAL_WORLD_SIZE=$2 \
                MASTER_ADDR=10.78.0.1 MASTER_PORT=$3 "$4" --exact child_entry --nocapture > "$5/$(($1 * $2 + k)).txt" 2>&1 &
        done
        wait' sh "$1" "$ranks" "$2" "$program" "$work"
}

echo "| Gb/s | engine | update, median | best | expected of the bandwidth |"
echo "|---|---|---|---|---|"
for rate in "${rates[@]}"; do
    for host in "${hosts[@]}"; do
        ip netns exec "$host" tc qdisc del dev cable root 2> /dev/null || true
        [ "$rate" = none ] ||
            ip netns exec "$host" tc qdisc add dev cable root tbf rate "${rate}gbit" burst 256kb latency 20ms
    done
    port=$((20000 + RANDOM % 10000))
    host 1 $port &
    host 0 $port
    wait
    sed -n 's/^TIME \(.*\): 1.0 M.*update median \([0-9.]*\) ms, best \([0-9.]*\) ms.*/\1|\2|\3/p' "$work/0.txt" |
        awk -F'|' -v rate="$rate" '{ want = rate == "none" ? "" : sprintf("%.1f ms", 8e6 * 8 / (rate * 1e9) * 1e3)
            printf "| %s | %s | %s ms | %s ms | %s |\n", rate, $1, $2, $3, want }' ||
        tail -n 5 "$work/0.txt"
done
