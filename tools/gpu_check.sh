#!/usr/bin/env bash
# Checks and times the CUDA engine on one GPU, in one call; writes one table.
#
#   tools/gpu_check.sh [-b BIN] [-d DATA] [-t TRAINED] [-o OUT] [section ...]
#
# BIN   folder with prebuilt programs: dp, pinn, oracle (tests/oracle), unit (the unit tests), evaluate (benches/evaluate.rs). Without it they are
#       built with cargo.
# DATA  folder with water/data_0 .. data_3, four systems of 80 frames (default: ../shared/data).
# TRAINED a model of the stock network after many steps: `times` and `profile` show it beside a fresh one (default: none).
# OUT   folder for logs and the table (default: a new temporary folder).
# Sections: unit oracle determinism graph direct direct_times direct_sanitizer layouts sanitizer nccl shared blocks restart validation streaming memory
# lost test times utilisation start profile optimizers operations outputs evaluate pinn. Without any: all of them. `whole` is for itself: the stock input to its last step, for
# each of PRECISIONS (default: float64), minutes each; `times` shows all four, or these. BATCHES chooses the batches of `times` (default: 1 4 16 64 256).
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
bin= data=$here/../shared/data trained= out=
while getopts b:d:t:o: flag; do
    case $flag in b) bin=$OPTARG ;; d) data=$OPTARG ;; t) trained=$(realpath "$OPTARG") ;; o) out=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
sections=${*:-unit oracle determinism graph direct direct_times direct_sanitizer layouts sanitizer nccl shared blocks restart validation streaming memory lost test times utilisation start profile optimizers operations outputs evaluate pinn}
out=${out:-$(mktemp -d)}
mkdir -p "$out"
if [ -z "$bin" ]; then
    bin=$out/bin
    mkdir -p "$bin"
    (cd "$here" && cargo build --release && cargo test --release --lib --test oracle --no-run && cargo bench --bench evaluate --no-run) >"$out/build.log" 2>&1 || { tail "$out/build.log"; exit 1; }
    target=${CARGO_TARGET_DIR:-$here/target}/release
    cp "$target/dp" "$target/pinn" "$bin/"
    # Cargo says which program is which: "Executable unittests src/lib.rs (FILE)".
    program() { (cd "$here" && realpath "$(grep "Executable .*$1" "$out/build.log" | sed 's/.*(\(.*\))$/\1/')"); }
    cp "$(program src/lib.rs)" "$bin/unit"
    cp "$(program oracle/main.rs)" "$bin/oracle"
    cp "$(program benches/evaluate.rs)" "$bin/evaluate"
fi
bin=$(cd "$bin" && pwd) data=$(cd "$data" && pwd) out=$(cd "$out" && pwd)
table=$out/table.txt
: >"$table"
failures=0
say() { echo "$*" | tee -a "$table"; }
result() { # name, status, words
    if [ "$2" = 0 ]; then say "$(printf '%-22s ok      %s' "$1" "$3")"; else say "$(printf '%-22s FAILED  %s' "$1" "$3")"; failures=$((failures + 1)); fi
}

# One system of 1280 frames: the real ones, four times over, so that batches of 256 are whole.
frames=$out/water_1280
if [ ! -d "$frames" ]; then
    mkdir -p "$frames"
    cp "$data"/water/data_0/type*.raw "$frames/"
    for k in $(seq 0 15); do cp -r "$data/water/data_$((k % 4))/set.000" "$frames/set.$(printf %03d "$k")"; done
fi

# input FILE BATCH STEPS DISPLAY PRECISION [extra training keys]
input() {
    cat >"$1" <<END
{"model": {"type_map": ["O", "H"],
  "descriptor": {"type": "se_e2_a", "sel": [46, 92], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100],
    "axis_neuron": 16, "type_one_side": true, "precision": "$5", "seed": 1},
  "fitting_net": {"neuron": [240, 240, 240], "resnet_dt": true, "precision": "$5", "seed": 1}},
 "learning_rate": {"type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 3.51e-8},
 "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
 "training": {"training_data": {"systems": ["$frames"], "batch_size": $2},
  "numb_steps": $3, "seed": 10, "disp_freq": $4, "save_freq": 1000000 ${6:-}}}
END
}

# without_series FOLDER [KEY]: the embedding nets themselves, or another key of the descriptor
without_series() { sed -i "s/\"axis_neuron\"/${2:-\"embedding\": \"direct\"}, &/" "$1/input.json"; }

# operations_input FILE DESCRIPTOR BATCH STEPS DISPLAY [extra training keys]: the same with a descriptor that is computed operation by
# operation
operations_input() {
    input "$1" "$3" "$4" "$5" float64 "${6:-}"
    python3 - "$1" "$2" <<'END'
import json, sys
path, name = sys.argv[1:]
common = {"rcut_smth": 0.5, "rcut": 6.0, "seed": 1}
atten = {**common, "type": "se_atten", "sel": 120, "neuron": [25, 50, 100], "axis_neuron": 16, "attn": 128, "attn_layer": 2, "attn_dotr": True}
three = {**common, "type": "se_e3", "sel": [46, 92], "neuron": [2, 4, 8]}
pairs = {**common, "type": "se_e2_a", "sel": [46, 92], "neuron": [25, 50, 100], "axis_neuron": 16, "type_one_side": True}
which = {"se_atten": atten, "strip": {**atten, "tebd_input_mode": "strip", "attn_layer": 0}, "se_e3": three,
         "hybrid": {"type": "hybrid", "list": [pairs, {**three, "rcut": 4.0, "sel": [15, 30]}]}}
text = json.load(open(path))
text["model"]["descriptor"] = which[name]
json.dump(text, open(path, "w"))
END
}

# labelled: a system with labels of every output, made where it is not there
labelled() {
    local folder=$out/labelled
    [ -d "$folder" ] && echo "$folder" && return
    cp -r "$data/water/data_0" "$folder" && chmod -R u+w "$folder"
    python3 - "$folder" <<'END'
import array, math, os, sys
folder, frames = sys.argv[1], 80
atoms = len(open(os.path.join(folder, "type.raw")).read().split())
for name, width in [("dos", 50), ("gap", 2), ("dipole", 3), ("polarizability", 9)]:
    for file, columns in [(name, width), ("atom_" + name, atoms * width)]:
        header = "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }" % (frames, columns)
        header += " " * (-(len(header) + 11) % 64) + "\n"
        numbers = array.array("d", (math.sin(0.37 * k) for k in range(frames * columns)))
        open(os.path.join(folder, "set.000", file + ".npy"), "wb").write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + numbers.tobytes())
END
    echo "$folder"
}

# outputs_input FILE KIND BATCH STEPS DISPLAY [extra training keys]: a model of another output, with a table of pair energies, or of two branches
outputs_input() {
    local system
    system=$(labelled)
    input "$1" "$3" "$4" "$5" float64 "${6:-}"
    python3 - "$1" "$2" "$system" <<'END'
import json, math, os, sys
path, kind, system = sys.argv[1:]
text = json.load(open(path))
net, model = text["model"]["fitting_net"], text["model"]
strip = {"type": "se_atten_v2", "sel": 120, "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100], "axis_neuron": 16, "attn_layer": 0, "seed": 1}
squares = {"type": "dos", **{f"{end}_pref_{term}": 1 for end in ["start", "limit"] for term in ["dos", "cdf", "ados", "acdf"]}}
tensor = {"type": "tensor", "pref": 1, "pref_atomic": 1}
gap = {"type": "property", "property_name": "gap", "task_dim": 2}
which = {"dos": ({"type": "dos", "numb_dos": 50}, squares), "property": ({**gap, "intensive": True}, {"type": "property", "metric": ["mae", "rmse"]}),
         "gap": (gap, {"type": "property", "loss_func": "rmse"}), "dipole": ({"type": "dipole"}, tensor), "polar": ({"type": "polar"}, tensor),
         "polar_whole": ({"type": "polar", "fit_diag": False}, tensor)}
if kind.startswith("atten_") or kind == "srtab":
    model["descriptor"] = strip
if kind == "srtab":
    row = lambda r: " ".join(f"{x:e}" for x in [r, 30 * math.exp(-r) / r, 10 * math.exp(-r) / r, 4 * math.exp(-r) / r])
    table = os.path.join(os.path.dirname(path), "table.txt")
    open(table, "w").write("\n".join(row(0.05 * k) for k in range(1, 121)) + "\n")
    model.update(use_srtab=table, smin_alpha=0.2, sw_rmin=0.9, sw_rmax=1.6)
elif kind == "branches":
    training, loss = text["training"], text.pop("loss")
    own, of_dos = which["dos"]
    model["shared_dict"] = {"types": model.pop("type_map"), "local": model.pop("descriptor")}
    branch = lambda fitting, **more: {"type_map": "types", "descriptor": "local", "fitting_net": fitting, **more}
    model["model_dict"] = {"dos": branch({**net, **own}, model_branch_alias=["Default"]), "energy": branch(net)}
    del model["fitting_net"]
    data, validation = training.pop("training_data"), training.pop("validation_data", None)
    training["model_prob"] = {"dos": 0.5, "energy": 1.0}
    training["data_dict"] = {"dos": {"training_data": {**data, "systems": [system]}, **({"validation_data": validation} if validation else {})},
                             "energy": {"training_data": data}}
    text["loss_dict"] = {"dos": of_dos, "energy": loss}
else:
    own, text["loss"] = which[kind.removeprefix("atten_")]
    net.update(own)
    text["training"]["training_data"]["systems"] = [system]
json.dump(text, open(path, "w"))
END
}

# train FOLDER ARGUMENTS...: runs dp train input.json in a folder, on DEVICE (default: cuda)
train() {
    local folder=$1
    shift
    (cd "$folder" && "$bin/dp" train input.json --skip-neighbor-stat --device "${DEVICE:-cuda}" "$@" >log 2>&1)
}
fresh() { rm -rf "$out/$1" && mkdir -p "$out/$1" && echo "$out/$1"; }
# speed FOLDER BATCH STEPS: samples/s of the second half of a run, from the wall times of its log
speed() {
    grep 'total wall time' "$1/log" | tail -1 | sed 's/.*wall time = \([0-9.]*\) s.*/\1/' | awk -v n=$(($3 / 2 * $2)) '{printf "%.0f", n / $1}'
}
# bits FOLDER: a number for the learning curve of a run, and all parameters, moments and the series of its last checkpoint
bits() {
    (cd "$1" && cat lcurve.out && ls -v model.ckpt-*.phx | tail -1 | xargs python3 -c '
import json, sys
data = open(sys.argv[1], "rb").read()
end = 32 + int.from_bytes(data[24:32], "little")
table, start = json.loads(data[32:end]), (end + 63) // 64 * 64
for array in table["arrays"]: sys.stdout.buffer.write(data[start + array["offset"] :][: array["bytes"]])
print({key: table["header"].get(key) for key in ["step", "draws", "engine"]})
') 2>/dev/null | md5sum | cut -c1-12
}

# deviation_of_tests FOLDER [SYSTEM]: freezes the model of a run and says how far dp test on the GPU is from that on the CPU; fails beyond 1e-10
deviation_of_tests() {
    (cd "$1" && "$bin/dp" freeze -o model.dp >freeze.log 2>&1
        for device in cpu cuda; do "$bin/dp" test -m model.dp -s "${2:-$data/water/data_0}" -n 20 -d $device --device $device >test_$device.log 2>&1; done
        python3 - <<'END'
import glob, sys
worst = {}
for path in sorted(glob.glob("cpu*.out*")):
    read = lambda name: [[float(x) for x in line.split()] for line in open(name) if not line.startswith("#")]
    a, b = read(path), read("cuda" + path[3:])
    assert len(a) == len(b) > 0, path
    scale = max(abs(x) for row in a for x in row) or 1.0
    worst[path[4:].replace(".out", "")] = max(abs(x - y) for r, s in zip(a, b) for x, y in zip(r, s)) / scale
print(" ".join(f"{k} {v:.0e}" for k, v in worst.items()))
sys.exit(not worst or max(worst.values()) > 1e-10)
END
    )
}

# deviation FOLDER FOLDER: the largest difference of parameters and moments in the last checkpoints of two runs, beside the norm of each array;
# fails beyond 1e-8
deviation() {
    python3 - "$(ls -v "$1"/model.ckpt-*.phx | tail -1)" "$(ls -v "$2"/model.ckpt-*.phx | tail -1)" <<'END'
import array, json, sys
def arrays(path):
    data = open(path, "rb").read()
    end = 32 + int.from_bytes(data[24:32], "little")
    table, start = json.loads(data[32:end]), (end + 63) // 64 * 64
    return {a["name"]: array.array("d", data[start + a["offset"] :][: a["bytes"]]) for a in table["arrays"]}
found, want = map(arrays, sys.argv[1:])
assert found.keys() == want.keys() and found
norm = lambda x: sum(y * y for y in x) ** 0.5
worst = max(norm([x - y for x, y in zip(found[k], want[k])]) / (norm(want[k]) or 1.0) for k in want)
print(f"{worst:.0e}")
sys.exit(not worst < 1e-8)
END
}

# as_the_cpu SECTION KIND SYSTEM: runs of SECTION_input twice, kernel by kernel, from a checkpoint on and on the CPU, with validation and dp test
# on a system
as_the_cpu() {
    local section=$1 kind=$2 system=$3 run folder a b c words
    local more=', "validation_data": {"systems": ["'$system'"], "batch_size": 1}'
    for run in cuda again plain cpu; do
        folder=$(fresh "${section}_${kind}_$run") && "${section}_input" "$folder/input.json" "$kind" 2 40 10 "$more"
        sed -i 's/"save_freq": 1000000/"save_freq": 20/' "$folder/input.json"
        PHALANX_GRAPHS=$([ $run = plain ] && echo 0 || echo 1) DEVICE=$([ $run = cpu ] && echo cpu || echo cuda) train "$folder"
    done
    a=$(bits "$out/${section}_${kind}_cuda") b=$(bits "$out/${section}_${kind}_again") c=$(bits "$out/${section}_${kind}_plain")
    [ "$a" = "$b" ] && [ "$a" = "$c" ] && [ -s "$out/${section}_${kind}_cuda/lcurve.out" ]
    result "$kind bits" $? "two runs $a $b, kernel by kernel $c"
    folder=$(fresh "${section}_${kind}_parts") && cp "$out/${section}_${kind}_cuda"/{input.json,lcurve.out,model.ckpt-20.phx} "$folder/"
    train "$folder" --restart model.ckpt-20.phx
    b=$(bits "$folder")
    [ "$a" = "$b" ]
    result "$kind restart" $? "40 steps $a, 20 of them again from a checkpoint $b"
    python3 - "$out/${section}_${kind}_cuda/lcurve.out" "$out/${section}_${kind}_cpu/lcurve.out" <<'END'
import sys
rows = [[[float(x) for x in line.split()] for line in open(path) if not line.startswith("#")] for path in sys.argv[1:]]
assert rows[0] and len(rows[0]) == len(rows[1])
sys.exit(any(abs(a - b) > 1e-2 * abs(b) for r, s in zip(*rows) for a, b in zip(r, s) if a == a or b == b))
END
    result "$kind cpu = cuda" $? "$(tail -1 "$out/${section}_${kind}_cuda/lcurve.out"); $(tail -1 "$out/${section}_${kind}_cpu/lcurve.out")"
    words=$(deviation_of_tests "$out/${section}_${kind}_cuda" "$system")
    result "$kind dp test" $? "cuda from cpu: $words"
}

# times_of SECTION KIND...: samples/s of SECTION_input with batches of 1, 16 and 64
times_of() {
    local section=$1 kind batch steps folder line
    shift
    say "$(printf '%-12s %10s %10s %10s' "" 1 16 64)"
    for kind in "$@"; do
        line=$(printf '%-12s' "$kind")
        for batch in 1 16 64; do
            steps=$((batch == 1 ? 400 : batch == 16 ? 80 : 24))
            folder=$(fresh "${section}_time_${kind}_$batch") && "${section}_input" "$folder/input.json" "$kind" $batch $steps $((steps / 2))
            train "$folder"
            line="$line $(printf '%10s' "$(speed "$folder" $batch $steps || echo failed)")"
        done
        say "$line"
    done
}

# launch RANKS COMMAND...: so many ranks that share the GPU, by mpirun where there is one, else by hand as torchrun starts them
launch() {
    local ranks=$1 rank status=0 jobs=()
    shift
    export PHALANX_SHARE_GPU=1
    if command -v mpirun >/dev/null; then
        mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$@"
        return
    fi
    local port=$((20000 + RANDOM % 20000))
    for rank in $(seq 0 $((ranks - 1))); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
        jobs+=($!)
    done
    for rank in "${jobs[@]}"; do wait "$rank" || status=$?; done
    return $status
}

# in_ranks FOLDER RANKS ARGUMENTS...: as train, with so many ranks that share the GPU
in_ranks() {
    local folder=$1 ranks=$2
    shift 2
    (cd "$folder" && launch "$ranks" "$bin/dp" train input.json --skip-neighbor-stat --device cuda "$@" >log 2>&1)
}

# pinn_run FOLDER PRECISION BATCH STEPS DEVICE [arguments]: trains the default PiNet on 24-atom frames, energies and forces;
# $pinn_model holds further options of the loss
pinn_run() {
    cat >"$1/params.yml" <<END
model_dir: model
precision: $2
network: {name: PiNet, params: {atom_types: [1, 8]}}
model: {name: potential_model, params: {use_force: true${pinn_model:-}}}
optimizer: {class_name: Adam, config: {learning_rate: {class_name: ExponentialDecay, config: {initial_learning_rate: 0.0003, decay_steps: 10000, decay_rate: 0.994}}, clipnorm: 0.01}}
END
    (cd "$1" && shift && "$bin/pinn" train params.yml -t ../pinn.xyz -e ../pinn_eval.xyz -b "$2" --train-steps "$3" --log-every $(($3 / 2)) \
        --ckpt-every "$3" --device "$4" "${@:5}" >log 2>&1)
}
pinn_bits() { (cd "$1/model" && cat eval.log && ls model.ckpt-*.phx | tail -1 | xargs cat) | md5sum | cut -c1-12; }

say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')"
for section in $sections; do
    case $section in
    unit)
        "$bin/unit" engine::cuda::tests engine::cuda::evaluate --test-threads=1 >"$out/unit.log" 2>&1
        result "$section" $? "$(grep 'test result' "$out/unit.log")"
        ;;
    oracle)
        golden=$here/tests/golden
        [ -d "$golden" ] || golden=$bin/../golden
        PHALANX_DEVICE=cuda PHALANX_GOLDEN=$golden PHALANX_ORACLE=${PHALANX_ORACLE:-$data/../oracle} PHALANX_DATA=$data \
            "$bin/oracle" >"$out/oracle.log" 2>&1
        result "$section" $? "$(tail -1 "$out/oracle.log")"
        ;;
    determinism)
        words=
        for precision in float64 float32; do
            for run in 1 2; do
                folder=$(fresh "det_${precision}_$run")
                input "$folder/input.json" 4 300 50 $precision
                train "$folder"
            done
            words="$words $(bits "$out/det_${precision}_1")=$(bits "$out/det_${precision}_2")"
            cmp -s <(bits "$out/det_${precision}_1") <(bits "$out/det_${precision}_2") || words="$words DIFFER"
        done
        [[ $words != *DIFFER* && -s $out/det_float64_1/lcurve.out ]]
        result "$section" $? "two runs of 300 steps, f64 and f32:$words"
        ;;
    graph)
        folder=$(fresh graph_on) && input "$folder/input.json" 4 200 50 float64 && train "$folder"
        folder=$(fresh graph_off) && input "$folder/input.json" 4 200 50 float64 && PHALANX_GRAPHS=0 train "$folder"
        folder=$(fresh graph_apart) && input "$folder/input.json" 4 200 50 float64 && PHALANX_OVERLAP=0 train "$folder"
        a=$(bits "$out/graph_on") b=$(bits "$out/graph_off") c=$(bits "$out/graph_apart")
        [ "$a" = "$b" ] && [ "$a" = "$c" ] && [ -s "$out/graph_on/lcurve.out" ]
        result "$section" $? "recorded steps $a, kernel by kernel $b, none before the last has ended $c"
        for teams in 0 1; do
            folder=$(fresh graph_teams_$teams) && input "$folder/input.json" 1 200 50 float64 && PHALANX_TEAMS=$teams train "$folder"
        done
        a=$(tail -1 "$out/graph_teams_0/lcurve.out") b=$(tail -1 "$out/graph_teams_1/lcurve.out")
        [ "$a" = "$b" ] && [ "$(bits "$out/graph_teams_0")" != "$(bits "$out/graph_teams_1")" ]
        result "teams" $? "one frame a step, without and with teams of blocks, after 200 steps:$a;$b"
        ;;
    direct)
        # The embedding nets themselves: twice, kernel by kernel, from a checkpoint on, beside the series and beside the CPU.
        words=
        for precision in float64 float32; do
            for run in 1 2 plain parts; do
                folder=$(fresh "direct_${precision}_$run")
                input "$folder/input.json" 4 100 20 $precision && without_series "$folder"
                sed -i 's/1000000/20/' "$folder/input.json"
                [ $run = parts ] && cp "$out/direct_${precision}_1"/{lcurve.out,model.ckpt-60.phx} "$folder/"
                PHALANX_GRAPHS=$([ $run = plain ] && echo 0 || echo 1) train "$folder" $([ $run = parts ] && echo --restart model.ckpt-60.phx)
                words="$words $(bits "$folder")"
                cmp -s <(bits "$out/direct_${precision}_1") <(bits "$folder") || words="$words DIFFERS"
            done
        done
        [[ $words != *DIFFERS* && -s $out/direct_float64_1/lcurve.out ]]
        result "$section" $? "f64 and f32, twice, kernel by kernel, from a checkpoint on:$words"
        folder=$(fresh direct_series) && input "$folder/input.json" 4 100 20 float64 && train "$folder"
        a=$(tail -1 "$out/direct_float64_1/lcurve.out") b=$(tail -1 "$folder/lcurve.out")
        [ "$a" = "$b" ]
        result "direct = series" $? "after 100 steps:$a;$b"
        for device in cpu cuda; do
            folder=$(fresh direct_relu_$device) && input "$folder/input.json" 2 12 4 float64 ", \"validation_data\": {\"systems\": [\"$data/water/data_3\"], \"batch_size\": 2}" && without_series "$folder" '"activation_function": "relu"'
            (cd "$folder" && "$bin/dp" train input.json --skip-neighbor-stat --device $device >log 2>&1)
        done
        a=$(tail -1 "$out/direct_relu_cpu/lcurve.out") b=$(tail -1 "$folder/lcurve.out")
        [ "$a" = "$b" ] && grep -q 'evaluating the net itself' "$folder/log"
        result "direct relu" $? "CPU and GPU after 12 steps, with validation:$a;$b"
        words=$(deviation_of_tests "$folder")
        result "direct test" $? "largest deviation of dp test on the GPU from the CPU: $words"
        folder=$(fresh direct_nccl) && input "$folder/input.json" 4 100 20 float64 && without_series "$folder" && PHALANX_NCCL=1 train "$folder"
        a=$(bits "$folder") b=$(bits "$out/direct_float64_1")
        [ "$a" = "$b" ] && grep -q NCCL "$folder/log"
        result "direct nccl" $? "world of one through NCCL $a, without $b"
        keys=', "reproducible": true'
        folder=$(fresh direct_two) && input "$folder/input.json" 4 20 10 float64 "$keys" && without_series "$folder"
        (cd "$folder" && launch 2 "$bin/dp" train input.json --skip-neighbor-stat --device cuda >log 2>&1)
        folder=$(fresh direct_one) && input "$folder/input.json" 4 20 10 float64 "$keys, \"gradient_accumulation\": 2" && without_series "$folder" && train "$folder"
        a=$(bits "$out/direct_two") b=$(bits "$folder")
        [ "$a" = "$b" ] && [ -s "$folder/lcurve.out" ]
        result "direct two ranks" $? "two ranks on one GPU $a, one rank with twice the draws $b"
        ;;
    direct_times)
        say "samples/s of the nets themselves (stock network, then with relu); 1 4 16 64 frames a step"
        for precision in float64 float32; do
            for key in '"embedding": "direct"' '"activation_function": "relu"'; do
                line=$(printf '%-10s' $precision)
                for batch in 1 4 16 64; do
                    steps=$((6000 / batch + 40)) folder=$(fresh "direct_time_${precision}_$batch")
                    input "$folder/input.json" $batch $steps $((steps / 2)) $precision && without_series "$folder" "$key"
                    train "$folder"
                    line="$line $(printf '%10s' "$(speed "$folder" $batch $steps)")"
                done
                say "$line"
            done
        done
        ;;
    direct_sanitizer)
        for tool in memcheck racecheck; do
            folder=$(fresh "direct_$tool") && input "$folder/input.json" 1 2 1 float64 && without_series "$folder"
            (cd "$folder" && PHALANX_GRAPHS=0 timeout 500 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/dp" train input.json --skip-neighbor-stat --device cuda >log 2>&1)
            result "direct $tool" $? "$(grep 'SUMMARY' "$folder/log" || tail -1 "$folder/log")"
        done
        ;;
    layouts)
        # A net that becomes rough in the middle of a run, from checkpoints before and after that: its panels change.
        for from in 0 20 380; do
            folder=$(fresh layouts_$from) && input "$folder/input.json" 1 400 20 float64
            sed -i 's/25, 50, 100/6, 12/; s/"axis_neuron": 16/"axis_neuron": 4/; s/0.001/0.05/; s/3.51e-8/0.05/; s/240, 240, 240/16, 16/; s/1000000/20, "max_ckpt_keep": 30/' "$folder/input.json"
            [ $from = 0 ] || cp "$out/layouts_0"/{lcurve.out,model.ckpt-$from.phx} "$folder/"
            train "$folder" -v DEBUG $([ $from = 0 ] || echo --restart model.ckpt-$from.phx)
        done
        words=$(for from in 0 20 380; do bits "$out/layouts_$from"; done | tr '\n' ' ')
        changes=$(grep -c 'embedding series: ' "$out/layouts_0/log")
        [ "$(echo $words | tr ' ' '\n' | sort -u | wc -l)" = 1 ] && [ "$changes" -gt 3 ] && [ -s "$out/layouts_0/lcurve.out" ]
        result "$section" $? "400 steps, from step 20 on, from step 380 on: $words; $changes layouts, the last one $(grep -o 'embedding series: .*' "$out/layouts_0/log" | tail -1)"
        ;;
    whole)
        say "the stock input to its last step: wall time from command to saved model, errors on data_3"
        for precision in ${PRECISIONS:-float64}; do
            folder=$(fresh "whole_$precision") keys= network=$precision
            [[ $precision = [tb]f* ]] && keys=", \"gpu_products\": \"$precision\"" && network=float32
            input "$folder/input.json" 1 ${STEPS:-1000000} $((${STEPS:-1000000} / 10)) $network "$keys"
            systems="\"$data/water/data_0\", \"$data/water/data_1\", \"$data/water/data_2\""
            sed -i "s#\"$frames\"#$systems#; s/\"save_freq\": 1000000/\"save_freq\": $((${STEPS:-1000000} / 10))/" "$folder/input.json"
            began=$(date +%s.%N)
            (cd "$folder" && "$bin/dp" train input.json --device cuda -v DEBUG >log 2>&1)
            seconds=$(python3 -c "import time; print(f'{time.time() - $began:.1f}')")
            (cd "$folder" && "$bin/dp" test -m model.ckpt -s "$data/water/data_3" -n 1000 >test.log 2>&1)
            errors=$(grep -o 'Energy RMSE/Natoms *: *[^ ]*\|Force  RMSE *: *[^ ]*' "$folder/test.log" | sed 's/ *: */ /' | tr '\n' ' ')
            say "$(printf '%-10s %8s s  %s %s layouts, last: %s' $precision "$seconds" "$errors" "$(grep -c 'embedding series: ' "$folder/log")" "$(grep -o 'embedding series: .*' "$folder/log" | tail -1)")"
            say "    s for each tenth: $(grep -o 'total wall time = [0-9.]*' "$folder/log" | grep -o '[0-9.]*$' | tr '\n' ' ')"
        done
        ;;
    sanitizer)
        folder=$(fresh sanitizer) && input "$folder/input.json" 1 3 1 float64
        (cd "$folder" && timeout 280 compute-sanitizer --error-exitcode 9 "$bin/dp" train input.json --skip-neighbor-stat --device cuda >log 2>&1)
        result "$section" $? "$(grep 'ERROR SUMMARY' "$folder/log" || tail -1 "$folder/log")"
        ;;
    nccl)
        folder=$(fresh nccl_on) && input "$folder/input.json" 4 200 50 float64 && PHALANX_NCCL=1 train "$folder"
        folder=$(fresh nccl_off) && input "$folder/input.json" 4 200 50 float64 && train "$folder"
        a=$(bits "$out/nccl_on") b=$(bits "$out/nccl_off")
        [ "$a" = "$b" ] && grep -q NCCL "$out/nccl_on/log"
        result "$section" $? "world of one through NCCL $a, without $b; $(grep -o 'NCCL [0-9.]*' "$out/nccl_on/log" | head -1)"
        ;;
    shared)
        keys=', "reproducible": true'
        folder=$(fresh shared_two) && input "$folder/input.json" 4 60 20 float64 "$keys"
        (cd "$folder" && launch 2 "$bin/dp" train input.json --skip-neighbor-stat --device cuda >log 2>&1)
        folder=$(fresh shared_one) && input "$folder/input.json" 4 60 20 float64 "$keys, \"gradient_accumulation\": 2" && train "$folder"
        a=$(bits "$out/shared_two") b=$(bits "$out/shared_one")
        [ "$a" = "$b" ] && [ -s "$out/shared_one/lcurve.out" ]
        result "$section" $? "two ranks on one GPU $a, one rank with twice the draws $b"
        ;;
    blocks)
        # Two and four ranks that share every frame, and the GPU, beside one rank; then two that go on from the checkpoint of four.
        keys=', "ranks_per_frame": "all", "validation_data": {"systems": ["'$data'/water/data_3"], "batch_size": 1}' words= status=0
        for ranks in 1 2 4; do
            folder=$(fresh "blocks_$ranks") && input "$folder/input.json" 2 40 10 float64 "$keys"
            sed -i 's/"save_freq": 1000000/"save_freq": 20/; s/"limit_pref_f": 1}/"limit_pref_f": 1, "start_pref_v": 0.02, "limit_pref_v": 1}/' "$folder/input.json"
            in_ranks "$folder" "$ranks"
            [ "$ranks" = 1 ] && continue
            words="$words $ranks ranks $(deviation "$folder" "$out/blocks_1");" || status=1
            grep -q "the first batch in $ranks blocks" "$folder/log" || status=1
        done
        for ranks in 4 2; do
            folder=$(fresh "blocks_4_$ranks") && cp "$out/blocks_4"/{input.json,lcurve.out,model.ckpt-20.phx} "$folder/"
            in_ranks "$folder" "$ranks" --restart model.ckpt-20.phx
        done
        words="$words four, then two $(deviation "$folder" "$out/blocks_1")" || status=1
        a=$(bits "$out/blocks_4") b=$(bits "$out/blocks_4_4")
        [ "$a" = "$b" ] && [ "$status" = 0 ]
        result "$section" $? "beside one rank:$words; four ranks $a, 20 steps of them again $b; $(grep -o 'the largest has .*' "$out/blocks_4/log")"
        ;;
    validation)
        more=', "enable_ema": true, "ema_decay": 0.9, "validation_data": {"systems": ["'$data'/water/data_3"], "batch_size": 1}'
        for device in cuda cpu; do
            folder=$(fresh "validation_$device") && input "$folder/input.json" 1 40 10 float64 "$more"
            sed -i 's/"save_freq": 1000000/"save_freq": 20/; s/}}}$/}}, "validating": {"full_validation": true, "ema_full_validation": true, "validation_freq": 20, "full_val_start": 0}}/' "$folder/input.json"
            DEVICE=$device train "$folder"
        done
        a=$(cat "$out/validation_cuda"/val*.log | md5sum | cut -c1-12) b=$(cat "$out/validation_cpu"/val*.log | md5sum | cut -c1-12)
        [ "$a" = "$b" ] && ls "$out"/validation_cuda/best_ema.ckpt-*.phx >/dev/null 2>&1
        result "$section" $? "errors over the whole set, of parameters and their mean: cuda $a, cpu $b; $(tail -1 "$out/validation_cuda/val_ema.log")"
        folder=$(fresh validation_parts) && cp "$out/validation_cuda"/{input.json,lcurve.out,model.ckpt-20.phx,val.log,val_ema.log} "$folder/"
        train "$folder" --restart model.ckpt-20.phx
        a=$(bits "$out/validation_cuda") b=$(bits "$folder")
        [ "$a" = "$b" ]
        result "validation restart" $? "40 steps $a, 20 of them again from a checkpoint $b"
        ;;
    restart)
        folder=$(fresh restart_whole) && input "$folder/input.json" 4 200 50 float64
        sed -i 's/"save_freq": 1000000/"save_freq": 100/' "$folder/input.json" && train "$folder"
        folder=$(fresh restart_parts) && cp "$out/restart_whole"/{input.json,lcurve.out,model.ckpt-100.phx} "$folder/"
        train "$folder" --restart model.ckpt-100.phx
        a=$(bits "$out/restart_whole") b=$(bits "$out/restart_parts")
        [ "$a" = "$b" ] && grep -q 'continuing after step 100' "$folder/log"
        result "$section" $? "200 steps $a, 100 of them again from a checkpoint $b"
        ;;
    streaming)
        # All of 1280 frames stay; 44 stay; none stays; none stays but all are kept prepared on the host.
        words=
        for batch in 4 64; do
            steps=$((batch == 4 ? 2000 : 160)) k=0
            for keys in '0.6' '0.0005' '0.0000001' '0.0000001, "geometry_cache": 4000'; do
                folder=$(fresh "stream_${batch}_$k") k=$((k + 1))
                input "$folder/input.json" $batch $steps $((steps / 2)) float64 ", \"gpu_memory\": $keys"
                train "$folder"
                words="$words $(bits "$folder") $(speed "$folder" $batch $steps)/s"
                cmp -s <(bits "$out/stream_${batch}_0") <(bits "$folder") || words="$words DIFFER"
            done
        done
        [[ $words != *DIFFER* ]] && grep -q 'those beyond it are copied' "$out/stream_4_1/log" && ! grep -q 'those beyond' "$out/stream_4_0/log"
        result "$section" $? "frames stay, 44 stay, none stays, none but kept on the host; 4, then 64 frames a step:$words"
        ;;
    memory)
        # Another process leaves 1 GB: enough for 4 frames a step, not for 256.
        folder=$(fresh memory) && input "$folder/input.json" 4 20 10 float64 && train "$folder"
        kept=$(md5sum <"$folder/model.ckpt-20.phx")
        python3 -c '
import time, torch
free = torch.cuda.mem_get_info()[0]
held = torch.empty(free - 1000000000, dtype=torch.uint8, device="cuda")
print("holds", flush=True)
time.sleep(100)' >"$folder/holder" 2>&1 &
        holder=$!
        for k in $(seq 300); do grep -q holds "$folder/holder" && break; sleep 0.1; done
        input "$folder/input.json" 256 40 10 float64 ', "gpu_memory": 0.1'
        (cd "$folder" && timeout 60 "$bin/dp" train input.json --skip-neighbor-stat --device cuda --restart model.ckpt >log 2>&1)
        code=$?
        [ $code = 1 ] && grep -q 'cannot get .* MB for ' "$folder/log" && grep -q 'help: lower training.batch_size' "$folder/log" &&
            ! grep -q panicked "$folder/log" && [ "$kept" = "$(md5sum <"$folder/model.ckpt-20.phx")" ]
        result "$section" $? "exit $code: $(grep -o 'cannot get .*' "$folder/log" | head -1)"
        kill $holder 2>/dev/null
        wait $holder 2>/dev/null
        CUDA_VISIBLE_DEVICES= train "$folder" --restart model.ckpt
        code=$?
        [ $code = 1 ] && grep -q CUDA_VISIBLE_DEVICES "$folder/log"
        result "no gpu" $? "exit $code: $(grep -h 'no GPU\|no CUDA\|CUDA_ERROR' "$folder/log" | head -1)"
        ;;
    lost)
        timeout 30 "$bin/unit" --ignored --exact --nocapture engine::cuda::tests::a_gpu_that_is_lost_says_so_in_every_call_and_how_to_go_on >"$out/lost.log" 2>&1
        result "$section" $? "$(grep -m1 'CUDA_ERROR' "$out/lost.log")"
        ;;
    test)
        folder=$(fresh dp_test) && input "$folder/input.json" 4 50 10 float64 && train "$folder"
        words=$(deviation_of_tests "$folder")
        result "$section" $? "largest deviation of dp test on the GPU from the CPU: $words"
        ;;
    profile)
        # Kernels one by one, as ncu times them: not how long they hold up a step, which runs some of them side by side.
        for batch in 1 256; do
            folder=$(fresh "profile_$batch") && input "$folder/input.json" $batch 20 100 float64
            from=${trained:+--init-frz-model $trained}
            (cd "$folder" && PHALANX_GRAPHS=0 PHALANX_OVERLAP=0 timeout 200 ncu --clock-control none --cache-control none --csv --metrics gpu__time_duration.sum \
                --launch-skip $((batch == 1 ? 200 : 3200)) --launch-count 80 "$bin/dp" train input.json --skip-neighbor-stat --device cuda $from >ncu.csv 2>log)
            say "us of each kernel, $batch frames a step (ncu):"
            say "$(python3 - "$folder/ncu.csv" <<'END'
import csv, sys, collections
lines = [l for l in open(sys.argv[1]) if l.startswith('"')]
rows = list(csv.DictReader(lines))
kernels = [(r["Kernel Name"], float(r["Metric Value"].replace(",", "")) / (1e3 if r["Metric Unit"] in ("ns", "nsecond") else 1)) for r in rows]
begins = [i for i, (name, _) in enumerate(kernels) if name.startswith("begin")]
step = kernels[begins[0]:begins[1]] if len(begins) > 1 else kernels
print("; ".join(f"{name.split('(')[0]} {us:.1f}" for name, us in step))
print(f"sum {sum(us for _, us in step):.0f} us in {len(step)} kernels")
END
)"
        done
        ;;
    times)
        say ""
        say "samples/s (192 atoms of water, stock network; the second half of a run, from the wall times of its log)"
        batches=${BATCHES:-1 4 16 64 256}
        say "$(printf '%-19s' precision) $(printf '%10s ' $batches)"
        for nets in fresh ${trained:+trained}; do for precision in ${PRECISIONS:-float64 float32 tf32 bf16}; do
            line=$(printf '%-10s %-8s' $precision $nets)
            for batch in $batches; do
                folder=$(fresh "time_${nets}_${precision}_$batch")
                steps=$(python3 -c "print({1: 12000, 4: 6000, 16: 3000, 64: 1200, 256: 400}[$batch])")
                keys= network=$precision
                [[ $precision = [tb]f* ]] && keys=", \"gpu_products\": \"$precision\"" && network=float32
                input "$folder/input.json" $batch "$steps" $((steps / 2)) $network "$keys"
                train "$folder" $([ $nets = fresh ] || echo --init-frz-model "$trained")
                speed=$(speed "$folder" $batch "$steps")
                line="$line $(printf '%10s' "${speed:-failed}")"
            done
            say "$line"
        done; done
        ;;
    utilisation)
        folder=$(fresh utilisation) && input "$folder/input.json" 1 40000 10000 float64
        (cd "$folder" && "$bin/dp" train input.json --skip-neighbor-stat --device cuda >log 2>&1) &
        pid=$!
        sleep 4
        load=$(nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 200 & watch=$!; sleep 2; kill $watch)
        wait $pid
        load=$(echo "$load" | awk '{s += $1; n++} END {printf "%.0f", s / n}')
        [ "${load:-0}" -ge 90 ]
        result "$section" $? "$load% of the time a kernel runs, one frame a step"
        ;;
    start)
        folder=$(fresh start) && input "$folder/input.json" 1 1 1 float64
        began=$(date +%s.%N)
        train "$folder"
        say "$(printf '%-22s %.2f s for a run of one step, kernels cached' start "$(python3 -c "import time; print(time.time() - $began)")")"
        for precision in float64 float32; do
            folder=$(fresh start_empty_$precision) && input "$folder/input.json" 1 1 1 $precision
            began=$(date +%s.%N)
            XDG_CACHE_HOME=$folder/cache train "$folder"
            say "$(printf '%-22s %.2f s for a run of one step, no kernels cached, %s' start "$(python3 -c "import time; print(time.time() - $began)")" $precision)"
        done
        ;;
    optimizers)
        # Each optimiser: twice, kernel by kernel, from a checkpoint on, beside the CPU; and its milliseconds a step.
        "$bin/unit" train::cuda::kalman --test-threads=1 >"$out/kalman.log" 2>&1
        result "kalman filter" $? "$(grep 'test result' "$out/kalman.log")"
        for optimizer in HybridMuon AdaMuon 'LKF", "kf_blocksize": "128'; do for precision in float64 float32; do
            name=${optimizer%%\"*}_$precision section='"optimizer": {"type": "'$optimizer'"}, '
            section=${section/: \"128\"/: 128}
            prepare() { input "$1/input.json" 1 20 5 $precision && sed -i "s/1000000/10/; s/^ \"training\": /$section&/" "$1/input.json"; }
            for run in 1 2 plain parts cpu; do
                folder=$(fresh "${name}_$run") && prepare "$folder"
                [ $run = parts ] && cp "$out/${name}_1"/{lcurve.out,model.ckpt-10.phx} "$folder/"
                DEVICE=$([ $run = cpu ] && echo cpu || echo cuda) PHALANX_GRAPHS=$([ $run = plain ] && echo 0 || echo 1) \
                    train "$folder" $([ $run = parts ] && echo --restart model.ckpt-10.phx)
            done
            same=$(for run in 1 2 plain parts; do bits "$out/${name}_$run"; done | uniq | wc -l)
            a=$(tail -1 "$out/${name}_1/lcurve.out") b=$(tail -1 "$out/${name}_cpu/lcurve.out")
            [ "$same" = 1 ] && [ -s "$out/${name}_1/lcurve.out" ] && python3 -c "
import sys
a, b = ([float(x) for x in text.split()] for text in sys.argv[1:])
sys.exit(not a or len(a) != len(b) or any(abs(x - y) > $([ $precision = float64 ] && echo 0.011 || echo 0.05) * abs(y) for x, y in zip(a, b)))" "$a" "$b"
            result "$name" $? "twice, kernel by kernel, restarted: $same kind(s) of bits; after 20 steps on GPU and CPU:$a;$b"
            folder=$(fresh "${name}_time") && input "$folder/input.json" 1 600 300 $precision && sed -i "s/^ \"training\": /$section&/" "$folder/input.json"
            train "$folder"
            say "$(printf '%-22s %s steps/s, one frame a step' "" "$(speed "$folder" 1 600)")"
        done; done
        ;;
    operations)
        "$bin/unit" engine::cuda::plan --test-threads=1 >"$out/operations_unit.log" 2>&1
        result "operations unit" $? "$(grep 'test result' "$out/operations_unit.log")"
        PHALANX_DEVICE=cuda PHALANX_GOLDEN=$here/tests/golden PHALANX_ORACLE=${PHALANX_ORACLE:-$data/../oracle} PHALANX_DATA=$data \
            "$bin/oracle" atten se_e3 hybrid angle exclude >"$out/operations_oracle.log" 2>&1
        result "operations oracle" $? "$(tail -1 "$out/operations_oracle.log")"
        for kind in se_atten strip se_e3 hybrid; do as_the_cpu operations $kind "$data/water/data_3"; done
        say "samples/s operation by operation, float64 (192 atoms of water; the second half of a run)"
        times_of operations se_atten strip se_e3 hybrid
        ;;
    outputs)
        PHALANX_DEVICE=cuda PHALANX_GOLDEN=$here/tests/golden PHALANX_ORACLE=${PHALANX_ORACLE:-$data/../oracle} PHALANX_DATA=$data \
            "$bin/oracle" dos dipole polar property srtab >"$out/outputs_oracle.log" 2>&1
        result "outputs oracle" $? "$(tail -1 "$out/outputs_oracle.log")"
        kinds="dos atten_dos property atten_gap dipole polar polar_whole srtab branches"
        for kind in $kinds; do as_the_cpu outputs $kind "$(labelled)"; done
        folder=$(fresh outputs_nccl) && outputs_input "$folder/input.json" property 2 40 10 && PHALANX_NCCL=1 train "$folder"
        a=$(bits "$folder")
        folder=$(fresh outputs_alone) && outputs_input "$folder/input.json" property 2 40 10 && train "$folder"
        b=$(bits "$folder")
        [ "$a" = "$b" ] && grep -q NCCL "$out/outputs_nccl/log"
        result "outputs nccl" $? "world of one through NCCL $a, without $b"
        folder=$(fresh outputs_two) && outputs_input "$folder/input.json" polar 2 20 10 ', "reproducible": true' && in_ranks "$folder" 2
        folder=$(fresh outputs_one) && outputs_input "$folder/input.json" polar 2 20 10 ', "reproducible": true, "gradient_accumulation": 2' && train "$folder"
        a=$(bits "$out/outputs_two") b=$(bits "$folder")
        [ "$a" = "$b" ] && [ -s "$folder/lcurve.out" ]
        result "outputs two ranks" $? "two ranks of one GPU $a, one with two draws $b"
        say "samples/s of other outputs, float64 (192 atoms of water; the second half of a run)"
        times_of outputs $kinds
        ;;
    evaluate)
        # Single configurations with ghosts, as MD programs have them: beside the CPU, with the atoms of a millisecond.
        "$bin/unit" engine::cuda::evaluate engine::cuda::plan::tests::single engine::cuda::plan::tests::what --test-threads=1 >"$out/evaluate_unit.log" 2>&1
        result "evaluate unit" $? "$(grep 'test result' "$out/evaluate_unit.log")"
        for kind in stock se_atten strip se_e3 hybrid; do
            folder=$(fresh "evaluate_$kind")
            if [ $kind = stock ]; then input "$folder/input.json" 1 4 2 float64; else operations_input "$folder/input.json" $kind 1 4 2; fi
            train "$folder" && (cd "$folder" && "$bin/dp" freeze -o model.dp >freeze.log 2>&1)
            for numbers in float64 tf32; do
                "$bin/evaluate" --model "$folder/model.dp" --data "$data/water/data_0" --sizes 3 --numbers $numbers >"$folder/$numbers.log" 2>&1
                python3 - "$folder/$numbers.log" $([ $numbers = float64 ] && echo 1e-10 || echo 0.1) <<'END'
import re, sys
found = re.findall(r"against the CPU: energy (\S+) eV an atom, forces (\S+), virial (\S+)", open(sys.argv[1]).read())
sys.exit(len(found) != 3 or any(not float(x) < float(sys.argv[2]) for row in found for x in row))
END
                result "evaluate $kind" $? "$numbers; atoms, with ghosts, best and median ms, atoms/ms of both; deviation from the CPU:"
                while read -r line; do say "    $line"; done < <(grep -E '^(float64|tf32)|against|rror' "$folder/$numbers.log")
            done
        done
        ;;
    pinn)
        python3 "$here/tools/pinn_frames.py" "$out/pinn.xyz" 800 && python3 "$here/tools/pinn_frames.py" "$out/pinn_eval.xyz" 20
        "$bin/unit" engine::pinet::cuda pinn::train::cuda --test-threads=1 >"$out/pinn_unit.log" 2>&1
        result "pinn unit" $? "$(grep 'test result' "$out/pinn_unit.log")"
        PHALANX_DEVICE=cuda PHALANX_GOLDEN=$here/tests/golden PHALANX_ORACLE=${PHALANX_ORACLE:-$data/../oracle} PHALANX_DATA=$data \
            "$bin/oracle" centers dipole dress gauss hard hip open_ pinet2 fork_ master_ >"$out/pinn_oracle.log" 2>&1
        result "pinn oracle" $? "$(tail -1 "$out/pinn_oracle.log")"
        for run in 1 2; do folder=$(fresh pinn_det_$run) && pinn_run "$folder" float32 10 100 cuda; done
        folder=$(fresh pinn_plain) && PHALANX_GRAPHS=0 pinn_run "$folder" float32 10 100 cuda
        a=$(pinn_bits "$out/pinn_det_1") b=$(pinn_bits "$out/pinn_det_2") c=$(pinn_bits "$out/pinn_plain")
        [ "$a" = "$b" ] && [ "$a" = "$c" ] && [ -s "$out/pinn_det_1/model/eval.log" ]
        result "pinn determinism" $? "two runs $a $b, kernel by kernel $c"
        for device in cpu cuda; do folder=$(fresh pinn_$device) && pinn_run "$folder" float64 10 60 $device; done
        a=$(tail -1 "$out/pinn_cpu/model/eval.log") b=$(tail -1 "$out/pinn_cuda/model/eval.log")
        [ -n "$a" ] && python3 -c "import sys; a, b = sys.argv[1].split(), sys.argv[2].split(); sys.exit(any(abs(float(x) - float(y)) > 1e-9 * abs(float(x)) for x, y in zip(a, b)))" "$a" "$b"
        result "pinn cpu = cuda" $? "errors after 60 steps: $a; $b"
        for options in ', separate_errors: true, use_l2: true' ', no_force_comp: 50'; do
            for device in cpu cuda; do folder=$(fresh pinn_$device) && pinn_model=$options pinn_run "$folder" float64 10 60 $device; done
            a=$(tail -1 "$out/pinn_cpu/model/eval.log") b=$(tail -1 "$out/pinn_cuda/model/eval.log")
            [ -n "$a" ] && ! grep -q 'GPU is not used' "$out/pinn_cuda/log" &&
                python3 -c "import sys; a, b = sys.argv[1].split(), sys.argv[2].split(); sys.exit(any(abs(float(x) - float(y)) > 1e-9 * abs(float(x)) for x, y in zip(a, b)))" "$a" "$b"
            result "pinn${options%%:*}" $? "cpu and cuda, errors after 60 steps: $a; $b"
        done
        folder=$(fresh pinn_nccl) && PHALANX_NCCL=1 pinn_run "$folder" float32 10 100 cuda
        a=$(pinn_bits "$out/pinn_det_1") b=$(pinn_bits "$folder")
        [ "$a" = "$b" ] && grep -q NCCL "$folder/log"
        result "pinn nccl" $? "world of one through NCCL $b, without $a; $(grep -o 'NCCL [0-9.]*' "$folder/log" | head -1)"
        folder=$(fresh pinn_two)
        pinn_run "$folder" float64 10 2 cuda && rm -r "$folder/model"
        (cd "$folder" && launch 2 "$bin/pinn" train params.yml -t ../pinn.xyz -e ../pinn_eval.xyz -b 10 --train-steps 20 --log-every 10 --ckpt-every 20 --device cuda >log2 2>&1)
        result "pinn two ranks" $? "$(tail -1 "$folder/model/eval.log" 2>/dev/null)"
        say "samples/s of pinn train (24 atoms, default PiNet, energies and forces; the second half of a run)"
        say "$(printf '%-10s %10s %10s' precision 10 100)"
        for precision in float32 float64; do
            line=$(printf '%-10s' $precision)
            for batch in 10 100; do
                steps=$((batch == 10 ? 6000 : 2000))
                folder=$(fresh "pinn_time_${precision}_$batch")
                pinn_run "$folder" $precision $batch $steps cuda
                speed=$(grep -o 'total wall time = [0-9.]*' "$folder/log" | tail -1 | grep -o '[0-9.]*$' | awk -v n=$((steps / 2 * batch)) '{printf "%.0f", n / $1}')
                line="$line $(printf '%10s' "${speed:-failed}")"
            done
            say "$line"
        done
        ;;
    *) say "no section $section" ;;
    esac
done
say ""
say "$failures failed; logs in $out"
exit $((failures > 0))
