#!/usr/bin/env bash
# Opens the events of a run in the real TensorBoard: a server is started on the folder, and asked for what its page would show.
#
#   tools/check_tensorboard.sh
#
# $PYTHON (default python3) must have the package tensorboard; our own binary is $PHALANX_DP (default target/release/dp). A short run
# of the example is interrupted and continued, so that two event files make one curve. Every number that TensorBoard shows is
# compared with lcurve.out. What events cost is measured by tools/bench_overhead.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD dp=$(realpath "${PHALANX_DP:-target/release/dp}") python=${PYTHON:-python3}
"$python" -c 'import tensorboard' 2>/dev/null || { echo "skipped: $python has no tensorboard (pip install tensorboard)"; exit 0; }
work=$(mktemp -d)
server=
clean_up() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

# prepare STEPS: an input with a small net and a row of events at every row of the curve.
prepare() {
    "$python" - "$root" "$1" <<'END' >"$work/input.json"
import json, sys
root, steps = sys.argv[1], int(sys.argv[2])
run = json.load(open(f"{root}/examples/water/input.json"))
run["model"]["descriptor"].update(neuron=[4, 8], axis_neuron=2)
run["model"]["fitting_net"]["neuron"] = [8, 8]
for data in ("training_data", "validation_data"):
    systems = run["training"][data]["systems"]
    run["training"][data]["systems"] = [f"{root}/examples/water/{name.rsplit('/', 1)[-1]}" for name in systems]
run["training"].update(numb_steps=steps, disp_freq=10, save_freq=20, tensorboard=True, tensorboard_freq=10, tensorboard_log_dir="log")
json.dump(run, sys.stdout)
END
}
cd "$work"
prepare 40
"$dp" train input.json >first.txt 2>&1 || { tail first.txt; exit 1; }
prepare 80
"$dp" train input.json --restart model.ckpt >second.txt 2>&1 || { tail second.txt; exit 1; }
[ "$(find log -name 'events.out.tfevents.*' | wc -l)" = 2 ] || { echo "two event files were expected"; ls -R log; exit 1; }

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$python" -m tensorboard.main --logdir log --host 127.0.0.1 --port "$port" --load_fast=false >server.txt 2>&1 &
server=$!
"$python" - "$port" <<'END' || { tail server.txt; exit 1; }
import json, sys, time, urllib.parse, urllib.request

def ask(path):
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/data/{path}", timeout=5))

deadline, tags = time.time() + 60, {}
while not tags:
    try:
        tags = ask("plugin/scalars/tags")
    except OSError:
        pass
    assert time.time() < deadline, "TensorBoard does not show the run"
    time.sleep(0.3)
[(run, names)] = tags.items()
print("TensorBoard shows:", ", ".join(sorted(names)))
query = lambda tag: ask("plugin/scalars/scalars?" + urllib.parse.urlencode({"run": run, "tag": tag}))
curves = {tag: [(int(step), float(value)) for _, step, value in query(tag)] for tag in names}

rows = [line.split() for line in open("lcurve.out") if not line.startswith("#")]
head = open("lcurve.out").readline().split()[1:]
steps = [int(row[0]) for row in rows]
for tag, curve in curves.items():
    assert [step for step, _ in curve] == steps, (tag, curve, steps)
rate = next(tag for tag in curves if tag.rsplit("/", 1)[-1] == "lr")
want = {int(row[0]): float(row[head.index("lr")]) for row in rows}
for step, value in curves[rate]:
    assert abs(value - want[step]) <= 0.06 * want[step], (step, value, want[step])
assert {"lr", "loss"} <= {tag.rsplit("/", 1)[-1] for tag in curves}, sorted(curves)
print(f"{len(curves)} curves of {len(steps)} points each, over a restart; the learning rate is that of lcurve.out")
END
