"""``phalanx.DeepPot``: the numbers of DeePMD-kit, its shapes, bad input, threads."""

import json
import multiprocessing
import pickle
import threading
import time

import numpy as np
import pytest
from conftest import GOLDEN, ONE_SIDE, TWO_SIDE

from phalanx import DeepPot


def test_numbers_and_shapes_are_those_of_deepmd_kit(bulk):
    for model, tolerance in [(ONE_SIDE, 1e-10), (TWO_SIDE, 2e-5)]:
        # Made by DeePMD-kit 3.2.0: tests/golden/potential/make.py.
        want = json.loads((GOLDEN / f"potential/{model.stem}.json").read_text())
        pot = DeepPot(model)
        parameters = {} if model == ONE_SIDE else {"fparam": bulk.fparam[:1], "aparam": bulk.aparam[:1]}
        e, f, v, ae, av = pot.eval(bulk.coords[:1], bulk.cells[:1], bulk.types, atomic=True, **parameters)
        assert (e.shape, f.shape, v.shape) == ((1, 1), (1, 12, 3), (1, 9))
        assert (ae.shape, av.shape) == ((1, 12, 1), (1, 12, 9))
        for name, found in [("energy", e), ("force", f), ("virial", v), ("atom_energy", ae), ("atom_virial", av)]:
            np.testing.assert_allclose(found.ravel(), np.ravel(want[name]), rtol=tolerance, atol=tolerance, err_msg=name)


def test_a_model_says_what_it_is():
    pot = DeepPot(ONE_SIDE)
    assert pot.get_type_map() == ["O", "H"] and pot.get_ntypes() == 2
    assert pot.get_rcut() > 0 and pot.get_sel_type() == [0, 1]
    assert (pot.get_dim_fparam(), pot.get_dim_aparam()) == (0, 0)
    two = DeepPot(TWO_SIDE)
    assert (two.get_dim_fparam(), two.get_dim_aparam()) == (2, 1)


def test_several_frames_are_as_one_after_the_other(bulk):
    pot = DeepPot(ONE_SIDE, threads=2)
    many = pot.eval(bulk.coords, bulk.cells, bulk.types, atomic=True)
    assert len(many[0]) == len(bulk.coords) > 1
    for k in range(len(bulk.coords)):
        one = pot.eval(bulk.coords[k], bulk.cells[k], bulk.types, atomic=True)
        for a, b in zip(many, one):
            np.testing.assert_array_equal(a[k], b[0])


def test_types_may_differ_from_frame_to_frame(bulk):
    pot = DeepPot(ONE_SIDE)
    coords, cells = bulk.coords[[0, 0]], bulk.cells[[0, 0]]
    swapped = np.array(bulk.types)[::-1]
    mixed = pot.eval(coords, cells, np.array([bulk.types, swapped]), mixed_type=True)
    np.testing.assert_array_equal(mixed[0][1], pot.eval(coords[1], cells[1], swapped)[0][0])
    assert mixed[0][0] != mixed[0][1]


def test_open_boundaries_and_atoms_that_are_none(bulk):
    pot = DeepPot(ONE_SIDE)
    far = 1000 * np.eye(3).reshape(1, 9)
    alone = pot.eval(bulk.coords[:1], None, bulk.types)
    np.testing.assert_allclose(alone[0], pot.eval(bulk.coords[:1], far, bulk.types)[0], rtol=1e-12)
    e, f, _, ae, _ = pot.eval(bulk.coords[:1], None, [-1] + bulk.types[1:], atomic=True)
    fewer = pot.eval(bulk.coords[:1, 3:], None, bulk.types[1:])
    np.testing.assert_allclose(e, fewer[0], rtol=1e-12)
    assert not f[0, 0].any() and ae[0, 0, 0] == 0


def test_forces_are_minus_the_slope_of_the_energy(bulk):
    pot = DeepPot(ONE_SIDE)
    force = pot.eval(bulk.coords[:1], bulk.cells[:1], bulk.types)[1].ravel()
    h = 1e-4
    moved = np.array([bulk.coords[0] + s * h * np.eye(36)[k] for k in range(36) for s in (1, -1)])
    e = pot.eval(moved, np.repeat(bulk.cells[:1], 72, axis=0), bulk.types)[0].reshape(36, 2)
    np.testing.assert_allclose(force, -(e[:, 0] - e[:, 1]) / (2 * h), atol=1e-6)


def test_arrays_of_other_kinds_give_the_same(bulk):
    pot = DeepPot(ONE_SIDE)
    want = pot.eval(bulk.coords, bulk.cells, bulk.types)[0]
    n = len(bulk.coords)
    views = [
        (bulk.coords.tolist(), bulk.cells.tolist(), bulk.types),
        (bulk.coords.reshape(n, 12, 3), bulk.cells.reshape(n, 3, 3), np.array(bulk.types, dtype=np.int64)),
        (np.asfortranarray(bulk.coords), np.asfortranarray(bulk.cells), np.array(bulk.types, dtype=np.uint8)),
        (np.repeat(bulk.coords, 2, axis=1)[:, ::2], bulk.cells, np.repeat(bulk.types, 2)[::2]),
    ]
    for coords, cells, types in views:
        np.testing.assert_array_equal(pot.eval(coords, cells, types)[0], want)


def test_no_atoms_and_no_frames_are_no_error():
    pot = DeepPot(ONE_SIDE)
    e, f, v = pot.eval(np.zeros((1, 0)), None, [])
    assert e.tolist() == [[0.0]] and f.shape == (1, 0, 3) and not v.any()
    e, f, v = pot.eval(np.zeros((0, 36)), None, [0] * 12)
    assert (e.shape, f.shape, v.shape) == ((0, 1), (0, 12, 3), (0, 9))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"coords": np.zeros(35)}, r"coords: found the shape \(35,\), wanted \[nframes, 12, 3\]"),
        ({"coords": "here"}, "coords: found an array of"),
        ({"coords": [[1.0, 2.0], [3.0]]}, "coords: "),
        ({"coords": np.full(36, np.nan)}, "atom 0: the coordinate NaN is not a number"),
        ({"coords": np.full(36, np.inf)}, "is not a number"),
        ({"coords": np.zeros(36)}, "at the same place"),
        ({"cells": np.zeros(9)}, "cell"),
        ({"cells": np.full(9, np.nan)}, "cell"),
        ({"cells": np.eye(4)}, r"cells: found the shape \(4, 4\), wanted \(1, 9\)"),
        ({"atom_types": [2] * 12}, "atom 0 has type 2, the model has the types 0 to 1"),
        ({"atom_types": [0.5] * 12}, "atom_types: found an array of float64"),
        ({"atom_types": [2**40] * 12}, "atom_types: a number is out of range"),
        ({"atom_types": [0] * 11}, "coords: found the shape"),
        ({"mixed_type": True}, "atom_types: found the shape"),
        ({"fparam": [1.0]}, "fparam: found the shape"),
        ({"charge_spin": [1.0, 1.0]}, "charge_spin: the model takes none"),
    ],
)
def test_what_cannot_be_meant_is_a_value_error(bulk, change, text):
    pot = DeepPot(ONE_SIDE)
    good = {"coords": bulk.coords[0], "cells": bulk.cells[0], "atom_types": bulk.types}
    with pytest.raises(ValueError, match=text):
        pot.eval(**{**good, **change})
    assert np.isfinite(pot.eval(**good)[0]).all(), "the model is as good as before"


def test_parameters_that_the_model_wants_are_asked_for(bulk):
    pot = DeepPot(TWO_SIDE)
    frame = (bulk.coords[:2], bulk.cells[:2], bulk.types)
    with pytest.raises(ValueError, match="fparam: the model wants 2 for each frame"):
        pot.eval(*frame)
    want = pot.eval(*frame, fparam=np.tile(bulk.fparam[0], (2, 1)), aparam=np.full((2, 12, 1), 0.3))[0]
    np.testing.assert_array_equal(pot.eval(*frame, fparam=bulk.fparam[0], aparam=[0.3])[0], want)
    with pytest.raises(ValueError, match="not a number"):
        pot.eval(*frame, fparam=[np.nan, 1.0], aparam=[0.3])


def test_files_that_are_no_models_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.dp"):
        DeepPot(tmp_path / "absent.dp")
    with pytest.raises(FileNotFoundError, match="no such model file or checkpoint"):
        DeepPot(tmp_path / "nothing")
    for name, content, text in [
        ("rubbish.dp", b"rubbish", "not an HDF5 file"),
        ("cut.dp", ONE_SIDE.read_bytes()[:4000], "cut.dp"),
        ("graph.pb", b"\n\x0b", "convert-backend"),
        ("rubbish.yaml", b"a: [", "rubbish.yaml"),
        ("model.ckpt-1.phx", b"PHX", "model.ckpt-1.phx"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RuntimeError, match=text):
            DeepPot(tmp_path / name)
    with pytest.raises(OSError):
        (tmp_path / "folder.dp").mkdir()
        DeepPot(tmp_path / "folder.dp")
    with pytest.raises(ValueError, match="threads"):
        DeepPot(ONE_SIDE, threads=0)
    with pytest.raises(ValueError, match="head"):
        DeepPot(ONE_SIDE, head="water")


def test_threads_of_python_take_turns_and_others_run_on(bulk):
    pot = DeepPot(ONE_SIDE, threads=1)
    want = pot.eval(bulk.coords, bulk.cells, bulk.types)[1]
    ticks, wrong, done = [0], [], threading.Event()

    def tick():
        while not done.is_set():
            ticks[0] += 1
            time.sleep(1e-4)

    def work():
        for _ in range(20):
            if not np.array_equal(pot.eval(bulk.coords, bulk.cells, bulk.types)[1], want):
                wrong.append(1)

    ticker = threading.Thread(target=tick)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for thread in [ticker, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    ticker.join()
    assert not wrong and ticks[0] > 1


def _energy(pot, coords, cells, types, queue):
    queue.put(pot.eval(coords, cells, types)[0])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_evaluates_too(bulk):
    pot = DeepPot(ONE_SIDE, threads=2)
    frame = (bulk.coords, bulk.cells, bulk.types)
    want = pot.eval(*frame)[0]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_energy, args=(pot, *frame, queue))
    child.start()
    child.join(60)
    assert child.exitcode == 0, "the child hangs or failed"
    np.testing.assert_array_equal(queue.get(), want)


def test_it_can_be_pickled_and_closed(bulk):
    with DeepPot(ONE_SIDE) as pot:
        twin = pickle.loads(pickle.dumps(pot))
        frame = (bulk.coords, bulk.cells, bulk.types)
        np.testing.assert_array_equal(twin.eval(*frame)[0], pot.eval(*frame)[0])
    with pytest.raises(ValueError, match="closed"):
        pot.get_rcut()
