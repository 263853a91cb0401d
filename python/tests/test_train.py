"""``phalanx.train``: rows, stopping, exceptions, Ctrl-C, bad input."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import ROOT, small_input

import phalanx

QUIET = {"log_level": "ERROR", "device": "cpu"}


def test_a_run_shows_every_row_and_leaves_what_dp_train_leaves(tmp_path):
    rows = []
    ended = phalanx.train(small_input(tmp_path), rows.append, output=tmp_path / "out.json", **QUIET)
    assert [row["step"] for row in rows] == [1, 10, 20, 30, 40]
    assert (ended.step, ended.stopped) == (40, False)
    curve = np.genfromtxt(tmp_path / "lcurve.out", names=True)
    names = [name for name in rows[0] if name != "step"]
    assert list(curve.dtype.names) == ["step", *names]
    for name in names:
        np.testing.assert_allclose(curve[name], [row[name] for row in rows], rtol=6e-3, err_msg=name)
    assert rows[-1]["lr"] < rows[0]["lr"]
    assert json.loads((tmp_path / "out.json").read_text())["training"]["numb_steps"] == 40

    pot = phalanx.DeepPot(ended.checkpoint)
    coords = np.load(ROOT / "examples/water/data_3/set.000/coord.npy")[:1]
    cells = np.load(ROOT / "examples/water/data_3/set.000/box.npy")[:1]
    types = np.loadtxt(ROOT / "examples/water/data_3/type.raw", dtype=int)
    assert np.isfinite(pot.eval(coords, cells, types)[1]).all()


def test_the_same_input_gives_the_same_as_the_command(tmp_path):
    folders = [tmp_path / "here", tmp_path / "command"]
    for folder in folders:
        folder.mkdir()
        text = json.dumps(small_input(folder, numb_steps=10), default=str)
        (folder / "input.json").write_text(text)
    phalanx.train(folders[0] / "input.json", output=folders[0] / "out.json", **QUIET)
    dp = "from phalanx.commands import dp; dp()"
    line = [sys.executable, "-c", dp, "train", "input.json", "--device", "cpu"]
    subprocess.run(line, cwd=folders[1], check=True, capture_output=True)
    curves = [(folder / "lcurve.out").read_text() for folder in folders]
    assert curves[0] == curves[1]


def test_false_stops_with_a_checkpoint_that_continues(tmp_path):
    input = small_input(tmp_path)
    stop_at = lambda row: row["step"] < 20
    ended = phalanx.train(input, stop_at, output=tmp_path / "out.json", **QUIET)
    assert (ended.step, ended.stopped) == (20, True) and ended.checkpoint.endswith("model.ckpt-20.phx")
    rows = []
    ended = phalanx.train(input, rows.append, restart=tmp_path / "model.ckpt", output=tmp_path / "out.json", **QUIET)
    assert [row["step"] for row in rows] == [30, 40] and ended.step == 40


def test_what_the_callback_raises_is_raised_after_saving(tmp_path):
    class Enough(Exception):
        pass

    def callback(row):
        if row["step"] == 10:
            raise Enough("at ten")

    with pytest.raises(Enough, match="at ten"):
        phalanx.train(small_input(tmp_path), callback, output=tmp_path / "out.json", **QUIET)
    assert (tmp_path / "model.ckpt-10.phx").is_file()


def test_ctrl_c_saves_and_raises_and_python_runs_meanwhile(tmp_path):
    # Whoever runs the tests in the background of a shell has them ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    input = small_input(tmp_path, numb_steps=10_000_000, disp_freq=1)
    ticks = [0]
    started = threading.Event()

    def interrupt():
        started.wait(60)
        for _ in range(20):
            ticks[0] += 1
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        phalanx.train(input, lambda row: started.set(), output=tmp_path / "out.json", **QUIET)
    thread.join()
    assert ticks[0] == 20
    assert phalanx.DeepPot(tmp_path / "model.ckpt").get_type_map() == ["O", "H"]
    # The process is as it was: signals are Python's, and another run can start.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ended = phalanx.train(small_input(tmp_path, numb_steps=1), output=tmp_path / "out.json", **QUIET)
    assert ended.step == 1


def test_callbacks_are_called_on_the_thread_that_asked(tmp_path):
    threads = []
    callback = lambda row: threads.append(threading.current_thread())
    phalanx.train(small_input(tmp_path, numb_steps=1), callback, output=tmp_path / "out.json", **QUIET)
    assert threads == [threading.current_thread()]


def test_two_runs_at_once_are_refused(tmp_path):
    def callback(row):
        phalanx.train(small_input(tmp_path), output=tmp_path / "out.json", **QUIET)

    with pytest.raises(RuntimeError, match="another training run is under way"):
        phalanx.train(small_input(tmp_path), callback, output=tmp_path / "out.json", **QUIET)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda i: i["model"]["descriptor"].update(rcut=-1), ValueError, "the input: model.descriptor.rcut"),
        (lambda i: i["model"]["descriptor"].update(rct=6), ValueError, "rcut"),
        (lambda i: i.pop("model"), ValueError, "the input: model"),
        (lambda i: i["training"].update(numb_steps=float("nan")), ValueError, "input: "),
        (lambda i: i["training"].update(seed=object()), TypeError, "input: a object has no place"),
        (lambda i: i["training"]["training_data"].update(systems=["nowhere"]), Exception, "nowhere"),
        (lambda i: i["training"].update(save_ckpt="/proc/nowhere/model.ckpt"), Exception, "/proc/nowhere"),
    ],
)
def test_a_bad_input_is_said(tmp_path, change, error, text):
    input = small_input(tmp_path)
    change(input)
    with pytest.raises(error, match=text):
        phalanx.train(input, output=tmp_path / "out.json", **QUIET)


def test_bad_arguments_are_said(tmp_path):
    input = small_input(tmp_path)
    for error, text, arguments in [
        (ValueError, "init_model and restart contradict", {"init_model": "a", "restart": "b"}),
        (ValueError, "tpu", {"device": "tpu"}),
        (ValueError, "LOUD", {"log_level": "LOUD"}),
        (TypeError, "callback", {"callback": 3}),
        (FileNotFoundError, "no such checkpoint", {"restart": tmp_path / "model.ckpt"}),
    ]:
        with pytest.raises(error, match=text):
            phalanx.train(input, output=tmp_path / "out.json", **{**QUIET, **arguments})
    with pytest.raises(FileNotFoundError, match="absent.json"):
        phalanx.train(tmp_path / "absent.json", **QUIET)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json: line 1"):
        phalanx.train(tmp_path / "broken.json", **QUIET)
    with pytest.raises(TypeError):
        phalanx.train(3, **QUIET)
