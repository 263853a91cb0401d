#!/usr/bin/env bash
# Strong scaling of one frame: milliseconds a step of `dp train` with batch_size 1 when S ranks share each frame
# (training.ranks_per_frame), beside S threads of one process and S independent copies with a frame each.
#
#   tools/bench_blocks.sh [-n LIST] [-a LIST] [-w SECONDS] [-p float32|float64]
#
#   -n LIST      numbers of ranks (default 1,2,4,8,16; those above the number of cores are left out)
#   -a LIST      atoms of a frame: 192 times a cube (default 192,12288,98304)
#   -w SECONDS   about so long each run may train with one core (default 6); the number of steps follows
#   -p PRECISION of the networks (default float64)
#
# Our own binary is $PHALANX_DP (default target/release/dp). Frames are those of examples/water, repeated in space by perl. Times are
# those of the second half of a run, when its frames are prepared. Copies are left out where they would not fit into memory.
set -euo pipefail
cd "$(dirname "$0")/.."

numbers=1,2,4,8,16 atoms=192,12288,98304 seconds=6 precision=float64
while getopts n:a:w:p: option; do
    case $option in
        n) numbers=$OPTARG ;;
        a) atoms=$OPTARG ;;
        w) seconds=$OPTARG ;;
        p) precision=$OPTARG ;;
        *) exit 2 ;;
    esac
done
dp=$(realpath "${PHALANX_DP:-target/release/dp}")
cores=$(nproc)
memory_gb=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# repeat_in_space TIMES FOLDER: two frames of the example, TIMES boxes along each direction.
repeat_in_space() {
    mkdir -p "$2/set.000"
    cp examples/water/data_0/type_map.raw "$2/"
    perl -e '
        use strict; use warnings;
        my ($from, $to, $times) = @ARGV;
        my $frames = 2;
        sub numbers {                                  # the first frames of an array of float64 or float32
            my ($name) = @_;
            open my $file, "<:raw", "$from/set.000/$name.npy" or die "$name: $!";
            local $/; my $all = <$file>;
            my $wide = ord(substr $all, 6, 1) > 1;
            my $length = unpack $wide ? "V" : "v", substr $all, 8;
            my $start = ($wide ? 12 : 10) + $length;
            my $header = substr $all, 0, $start;
            my ($rows) = $header =~ /shape.: \((\d+),/ or die "$name: $header";
            my @x = unpack $header =~ /f8/ ? "d<*" : "f<*", substr $all, $start;
            return [@x[0 .. @x / $rows * $frames - 1]];
        }
        sub write_array {
            my ($name, $x) = @_;
            my $columns = @$x / $frames;
            my $header = "{\x27descr\x27: \x27<f8\x27, \x27fortran_order\x27: False, \x27shape\x27: ($frames, $columns), }";
            $header .= " " x (63 - (length($header) + 10) % 64) . "\n";
            open my $file, ">:raw", "$to/set.000/$name.npy" or die "$name: $!";
            print $file "\x93NUMPY\x01\x00", pack("v", length $header), $header, pack("d<*", @$x);
        }
        my ($coord, $force, $cell, $energy) = map { numbers($_) } qw(coord force box energy);
        my $n = @$coord / $frames;
        my (@coord, @force);
        for my $f (0 .. $frames - 1) {
            my @h = @$cell[9 * $f .. 9 * $f + 8];
            for my $a (0 .. $times - 1) { for my $b (0 .. $times - 1) { for my $c (0 .. $times - 1) {
                my @shift = map { $a * $h[$_] + $b * $h[3 + $_] + $c * $h[6 + $_] } 0 .. 2;
                push @coord, map { $coord->[$f * $n + $_] + $shift[$_ % 3] } 0 .. $n - 1;
                push @force, @$force[$f * $n .. $f * $n + $n - 1];
            } } }
        }
        write_array("coord", \@coord);
        write_array("force", \@force);
        write_array("box", [map { $_ * $times } @$cell]);
        write_array("energy", [map { $_ * $times ** 3 } @$energy]);
        open my $types, "<", "$from/type.raw" or die;
        my $all = join " ", <$types>; $all =~ s/\s+/ /g;
        open my $out, ">", "$to/type.raw" or die;
        print $out "$all " x $times ** 3, "\n";
    ' examples/water/data_0 "$2" "$1"
}

# write_input FOLDER DATA STEPS RANKS_PER_FRAME
write_input() {
    mkdir -p "$1"
    cat > "$1/input.json" <<JSON
{ "model": { "type_map": ["O", "H"],
    "descriptor": { "type": "se_e2_a", "sel": [46, 92], "rcut_smth": 0.5, "rcut": 6.0, "neuron": [25, 50, 100], "axis_neuron": 16,
                    "type_one_side": true, "precision": "$precision", "seed": 1 },
    "fitting_net": { "neuron": [240, 240, 240], "resnet_dt": true, "precision": "$precision", "seed": 1 } },
  "learning_rate": { "type": "exp", "decay_steps": 5000, "start_lr": 0.001, "stop_lr": 1e-8, "scale_by_worker": "none" },
  "loss": { "type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1 },
  "training": { "training_data": { "systems": ["$2"], "batch_size": 1 }, "geometry_cache": 4000,
    "numb_steps": $3, "disp_freq": $(($3 / 2)), "save_freq": 100000000, "seed": 1, "ranks_per_frame": $4 } }
JSON
}

# train THREADS RANK SIZE PORT: one rank, in its folder.
train() {
    RANK=$2 LOCAL_RANK=$2 WORLD_SIZE=$3 LOCAL_WORLD_SIZE=$3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$4 OMP_NUM_THREADS=$1 \
        "$dp" train input.json --device cpu --skip-neighbor-stat > "log.$2.txt" 2>&1
}

# time_of KIND N DATA STEPS: milliseconds a step; of copies those of the slowest.
time_of() {
    local port=$((20000 + RANDOM % 10000)) k folder="$work/run"
    rm -rf "$folder"*
    case $1 in
        ranks)
            write_input "$folder" "$3" "$4" '"all"'
            for ((k = 0; k < $2; k++)); do (cd "$folder" && train 1 $k "$2" $port) & done ;;
        threads)
            write_input "$folder" "$3" "$4" 1
            (cd "$folder" && train "$2" 0 1 $port) & ;;
        copies)
            for ((k = 0; k < $2; k++)); do
                write_input "$folder$k" "$3" "$4" 1
                (cd "$folder$k" && train 1 0 1 $((port + k))) &
            done ;;
    esac
    wait
    sed -n "s|.* $4: total wall time = \\([0-9.]*\\) s.*|\\1|p" "$folder"*/log.0.txt |
        awk -v steps=$(($4 / 2)) '{ if ($1 > most) most = $1 } END { if (!NR) exit 1; printf "%.2f\n", 1000 * most / steps }' ||
        { tail -n 20 "$folder"*/log.0.txt >&2; exit 1; }
}

speed() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

echo "$cores cores, $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $memory_gb GB free; load $(cut -d' ' -f1-3 /proc/loadavg); $precision"
for n_atoms in ${atoms//,/ }; do
    times=$(awk -v n="$n_atoms" 'BEGIN { t = int((n / 192) ^ (1 / 3) + 0.5); if (192 * t ^ 3 != n) exit 1; print t }') ||
        { echo "$n_atoms is not 192 times a cube" >&2; exit 2; }
    data="$work/water_$n_atoms"
    repeat_in_space "$times" "$data"
    # A step of 192 atoms takes some 40 ms on one core.
    steps=$(awk -v n="$n_atoms" -v s="$seconds" 'BEGIN { t = 2 * int(s / (0.0002 * n) / 2); least = n < 50000 ? 4 : 2; print t < least ? least : t }')
    # About 60 kB an atom are kept between the passes.
    most_copies=$(awk -v n="$n_atoms" -v gb="$memory_gb" 'BEGIN { print int(gb * 1e9 / (60e3 * n + 3e8)) }')
    echo
    echo "$n_atoms atoms, $steps steps; ms a step (times faster than one)"
    echo "| S | S ranks share a frame | S threads | S copies | throughput of the ranks over that of copies |"
    echo "|---|---|---|---|---|"
    one=
    for n in ${numbers//,/ }; do
        [ "$n" -gt "$cores" ] && continue
        ranks=$(time_of ranks "$n" "$data" "$steps")
        one=${one:-$ranks}
        threads=$ranks copies=$ranks share=100%
        if [ "$n" -gt 1 ]; then
            threads=$(time_of threads "$n" "$data" "$steps")
            copies=- share=-
            if [ "$n" -le "$most_copies" ] && [ "$n_atoms" -lt 50000 ]; then
                copies=$(time_of copies "$n" "$data" "$steps")
                share=$(awk -v r="$ranks" -v c="$copies" -v n="$n" 'BEGIN { printf "%.0f%%", 100 * c / n / r }')
            fi
        fi
        echo "| $n | $ranks ($(speed "$one" "$ranks")) | $threads ($(speed "$one" "$threads")) | $copies | $share |"
    done
done
