"""Beside DeePMD-kit itself, where it is installed: the same calls, the same numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, ONE_SIDE, TWO_SIDE

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


def test_descriptors_and_last_layers_have_the_same_numbers(both, bulk):
    for function in ("eval_descriptor", "eval_fitting_last_layer"):
        for name, tolerance, parameters in [
            ("one_side", 1e-10, {}),
            ("two_side", 5e-5, {"fparam": bulk.fparam, "aparam": bulk.aparam}),
        ]:
            found = [getattr(pot, function)(bulk.coords, bulk.cells, bulk.types, **parameters) for pot in both[name]]
            np.testing.assert_allclose(*found, rtol=tolerance, atol=tolerance, err_msg=f"{name}: {function}")


def test_models_without_an_energy_have_the_same_numbers(bulk, tmp_path):
    from deepmd.infer.deep_dipole import DeepDipole
    from deepmd.infer.deep_dos import DeepDOS
    from deepmd.infer.deep_polar import DeepPolar
    from deepmd.infer.deep_property import DeepProperty

    for name, kind in [("dipole", DeepDipole), ("polar", DeepPolar), ("dos", DeepDOS), ("property", DeepProperty)]:
        ours = GOLDEN / "se_e2_a" / name / "initial.dp"
        theirs = tmp_path / f"{name}.pth"
        command = Path(sys.executable).with_name("dp")
        subprocess.run([command, "convert-backend", ours, theirs], check=True, capture_output=True)
        pair = getattr(phalanx, kind.__name__)(ours), kind(str(theirs))
        frames = bulk.coords, bulk.cells, bulk.types
        calls = [("eval", False), ("eval", True)] + ([("eval_full", True)] if kind is DeepDipole else [])
        for function, atomic in calls:
            found = [getattr(model, function)(*frames, atomic=atomic) for model in pair]
            found = [list(x) if isinstance(x, tuple) else [x] for x in found]
            if function == "eval_full":
                # Its PyTorch back end has forces and virials of atoms in the order of atoms, then components, whatever shape it gives them.
                for k, each in [(1, 3), (4, 9)]:
                    theirs = found[1][k].reshape(len(bulk.coords), 12, 3, each)
                    found[1][k] = theirs.transpose(0, 2, 1, 3)
            for a, b in zip(*found):
                assert a.shape == b.shape, name
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=name)
        assert pair[0].get_sel_type() == list(pair[1].get_sel_type() or range(2)), name


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
