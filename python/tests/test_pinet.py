"""PiNet under ASE: what PiNN says, and derivatives."""

import json
import shutil

import numpy as np
import pytest
from conftest import GOLDEN

pytest.importorskip("ase")
from ase.io import read  # noqa: E402

from phalanx.ase import PiNet  # noqa: E402


@pytest.fixture
def model(tmp_path):
    """A model that PiNN itself has trained: params.yml and TensorFlow's checkpoints."""

    def of(case):
        folder = tmp_path / case
        shutil.copytree(GOLDEN / "pinn_tf" / case, folder)
        return folder

    return of


@pytest.mark.parametrize("case", ["pinet", "pinet2"])
def test_what_pinn_predicts(model, case):
    folder = model(case)
    atoms = read(folder / "frame.xyz")
    atoms.calc = PiNet(folder, threads=1)
    want = json.loads((folder / "predicted.json").read_text())["3"]  # the newest, by its file `checkpoint`
    assert np.isclose(atoms.get_potential_energy(), np.ravel(want["energy"])[0], rtol=2e-5)
    assert np.allclose(atoms.get_forces().ravel(), np.ravel(want["forces"]), rtol=2e-5, atol=2e-5)


def test_forces_and_stress_are_slopes(model):
    atoms = read(model("pinet") / "frame.xyz")
    atoms.calc = PiNet(model("pinet2"), threads=1)
    forces, stress = atoms.get_forces(), atoms.get_stress(voigt=False)
    step = 1e-2  # the network computes in float32
    moved = []
    for sign in (1, -1):
        other = atoms.copy()
        other.calc = atoms.calc
        other.positions[1, 0] += sign * step
        moved.append(other.get_potential_energy())
    assert np.isclose(-(moved[0] - moved[1]) / (2 * step), forces[1, 0], rtol=0.02, atol=0.02)
    strained = []
    for sign in (1, -1):
        other = atoms.copy()
        other.calc = atoms.calc
        other.set_cell(atoms.cell * (1 + sign * 1e-3), scale_atoms=True)
        strained.append(other.get_potential_energy())
    slope = (strained[0] - strained[1]) / 2e-3
    assert np.isclose(slope, np.trace(stress) * atoms.get_volume(), rtol=0.02, atol=0.05)


def test_a_dipole_model_has_charges_and_no_energy(model):
    folder = model("dipole")
    atoms = read(folder / "frame.xyz")
    atoms.calc = PiNet(folder, threads=1)
    assert atoms.calc.get_property("charges", atoms).shape == (len(atoms),)
    with pytest.raises(Exception, match="energy"):
        atoms.get_potential_energy()


def test_bad_input_is_an_exception(model, tmp_path):
    with pytest.raises(OSError):
        PiNet(tmp_path / "nothing")
    folder = model("pinet")
    atoms = read(folder / "frame.xyz")
    atoms.calc = PiNet(folder, threads=1)
    atoms.numbers[0] = 79
    with pytest.raises(ValueError, match="Au|79"):
        atoms.get_potential_energy()
    atoms = read(folder / "frame.xyz")
    atoms.calc = PiNet(folder, threads=1)
    atoms.positions[0, 0] = np.nan
    with pytest.raises(ValueError):
        atoms.get_potential_energy()
