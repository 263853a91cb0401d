"""The commands of the wheel behave as the programs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ONE_SIDE, small_input

import phalanx


def line(program, *args):
    return [sys.executable, "-c", f"from phalanx.commands import {program}; {program}()", *map(str, args)]


def run(program, *args, **more):
    return subprocess.run(line(program, *args), capture_output=True, text=True, **more)


def test_exit_codes_and_outputs_are_those_of_the_programs(tmp_path):
    done = run("dp", "--version")
    assert (done.returncode, done.stdout) == (0, f"Phalanx v{phalanx.__version__}\n")
    assert run("pinn", "version").returncode == 0
    done = run("dp", "show", ONE_SIDE, "type-map")
    assert done.returncode == 0 and "'O', 'H'" in done.stderr + done.stdout
    done = run("dp", "train", tmp_path / "absent.json")
    assert done.returncode == 1 and "absent.json" in done.stderr and "Traceback" not in done.stderr
    assert run("dp", "trian").returncode == 2


def started(tmp_path, *prefix):
    input = small_input(tmp_path, numb_steps=10_000_000, disp_freq=1)
    (tmp_path / "input.json").write_text(json.dumps(input, default=str))
    process = subprocess.Popen(
        [*prefix, *line("dp", "train", "input.json", "--device", "cpu")],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    curve = tmp_path / "lcurve.out"
    deadline = time.time() + 60
    while not (curve.exists() and len(curve.read_text().splitlines()) > 4):
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_dp_train_well_with_a_checkpoint(tmp_path, number):
    process = started(tmp_path)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, said
    assert f"Stopped by {signal.Signals(number).name}" in said and "Traceback" not in said
    assert (tmp_path / "model.ckpt.phx").exists()


def test_ranks_of_mpirun_train_together(tmp_path):
    mpirun = shutil.which("mpirun.mpich") or shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun here")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    (tmp_path / "input.json").write_text(json.dumps(small_input(tmp_path, numb_steps=10), default=str))
    done = subprocess.run(
        [mpirun, "-n", "2", *line("dp", "train", "input.json", "--device", "cpu")],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "world size" in done.stderr.lower() or "2" in done.stderr
    script = f"""
import json, phalanx
rows = []
ended = phalanx.train("input.json", rows.append, device="cpu", log_level="ERROR")
assert ended.step == 10
print("rows", len(rows), flush=True)
"""
    done = subprocess.run(
        [mpirun, "-n", "2", sys.executable, "-c", script],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == ["rows 0", "rows 2"], "rank 0 alone is shown rows"
