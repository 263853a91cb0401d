"""Beside DeePMD-kit itself, where it is installed: the same calls, the same numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ONE_SIDE, TWO_SIDE

import phalanx

pytest.importorskip("deepmd")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Each model here and in DeePMD-kit, which gives derivatives of its own formats only."""
    from deepmd.infer import DeepPot

    folder = tmp_path_factory.mktemp("models")
    pairs = {}
    for model in (ONE_SIDE, TWO_SIDE):
        theirs = folder / f"{model.stem}.pth"
        command = Path(sys.executable).with_name("dp")
        subprocess.run([command, "convert-backend", model, theirs], check=True, capture_output=True)
        pairs[model.stem] = (phalanx.DeepPot(model), DeepPot(str(theirs)))
    return pairs


def compare(pair, tolerance, *args, **kwargs):
    ours, theirs = (pot.eval(*args, **kwargs) for pot in pair)
    assert len(ours) == len(theirs)
    for name, a, b in zip(("e", "f", "v", "ae", "av"), ours, theirs):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


def test_all_kinds_of_frames_have_the_same_numbers(both, bulk):
    n = len(bulk.coords)
    swapped = np.array(bulk.types)[::-1]
    mixed = np.array([bulk.types if k % 2 else swapped for k in range(n)])
    for atomic in (False, True):
        pair = both["one_side"]
        compare(pair, 1e-10, bulk.coords, bulk.cells, bulk.types, atomic=atomic)
        compare(pair, 1e-10, bulk.coords[0], bulk.cells[0], bulk.types, atomic=atomic)
        compare(pair, 1e-10, bulk.coords, None, bulk.types, atomic=atomic)
        compare(pair, 1e-10, bulk.coords, bulk.cells, mixed, mixed_type=True, atomic=atomic)
        compare(pair, 1e-10, bulk.coords, None, mixed, mixed_type=True, atomic=atomic)
        parameters = {"fparam": bulk.fparam, "aparam": bulk.aparam}
        compare(both["two_side"], 5e-5, bulk.coords, bulk.cells, bulk.types, atomic=atomic, **parameters)
        parameters = {"fparam": bulk.fparam[0], "aparam": [0.3]}
        compare(both["two_side"], 5e-5, bulk.coords, bulk.cells, bulk.types, atomic=atomic, **parameters)


def test_both_say_the_same_about_a_model(both):
    asked = "get_type_map get_ntypes get_rcut get_dim_fparam get_dim_aparam get_sel_type get_ntypes_spin has_default_fparam"
    for ours, theirs in both.values():
        for question in asked.split():
            assert getattr(ours, question)() == getattr(theirs, question)(), question
        for question in ("has_efield", "has_spin", "has_hessian", "use_spin"):
            assert getattr(ours, question) == getattr(theirs, question), question


def test_both_calculators_give_the_same(both, bulk, tmp_path):
    pytest.importorskip("ase")
    from deepmd.calculator import DP as Theirs

    from phalanx.ase import DP

    found = []
    for calculator in (DP(ONE_SIDE), Theirs(both["one_side"][1].model_file)):
        atoms = bulk.atoms()
        atoms.calc = calculator
        found.append((atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress(), calculator.results["virial"]))
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
