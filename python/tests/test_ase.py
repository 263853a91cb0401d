"""``phalanx.ase.DP`` under real ASE: dynamics, relaxation, phonons."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import GOLDEN, ONE_SIDE, ROOT, TWO_SIDE

pytest.importorskip("ase")
from ase import Atoms, units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.filters import FrechetCellFilter
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from ase.vibrations import Vibrations

from phalanx.ase import DP


#: With room for all neighbours: where some are left out, as with the others in a dense cell, the energy jumps while atoms move.
SMOOTH = GOLDEN / "se_e2_a/one_side_virial/initial.dp"


@pytest.fixture
def water(bulk):
    atoms = bulk.atoms()
    atoms.calc = DP(model=SMOOTH)
    return atoms


def drift(atoms, dt_fs, time_fs):
    """How much the total energy varies in a run, eV."""
    MaxwellBoltzmannDistribution(atoms, temperature_K=100, rng=np.random.default_rng(1))
    dynamics = VelocityVerlet(atoms, dt_fs * units.fs)
    energies = [atoms.get_total_energy()]
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.run(round(time_fs / dt_fs))
    return np.ptp(energies)


def test_energy_is_conserved_and_better_so_with_shorter_steps(bulk):
    errors = []
    for dt in (0.2, 0.1):
        atoms = bulk.atoms()
        atoms.calc = DP(SMOOTH)
        errors.append(drift(atoms, dt, 5))
    # The error of velocity Verlet goes with the square of the step where forces are those of the energy.
    assert errors[0] < 0.02 and 3 < errors[0] / errors[1] < 5, errors


def test_stress_is_the_slope_of_the_energy_with_strain(water):
    stress = water.get_stress(voigt=False)
    np.testing.assert_allclose(stress, stress.T)
    cell, h = water.cell.copy(), 1e-5
    for i, j in [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]:
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * h / 2
            strain[j, i] += sign * h / 2
            strained = water.copy()
            strained.calc = water.calc
            strained.set_cell(cell @ strain, scale_atoms=True)
            energies.append(strained.get_potential_energy())
        slope = (energies[0] - energies[1]) / (2 * h) / water.get_volume()
        assert abs(slope - stress[i, j]) < 1e-6, (i, j, slope, stress[i, j])


def test_the_virial_is_minus_stress_times_volume(water):
    water.get_stress()
    virial = water.calc.results["virial"]
    np.testing.assert_allclose(-virial / water.get_volume(), water.get_stress(voigt=False), atol=1e-10)
    assert water.calc.results["free_energy"] == water.get_potential_energy()


def test_a_cell_relaxes_downhill(water):
    before, volume = water.get_potential_energy(), water.get_volume()
    relaxation = BFGS(FrechetCellFilter(water), logfile=None, maxstep=0.02)
    relaxation.run(fmax=1e-3, steps=8)
    assert water.get_potential_energy() < before
    assert water.get_volume() != volume


def test_vibrations_of_a_cluster_have_a_symmetric_hessian(bulk, tmp_path):
    atoms = Atoms("OH2", [(0, 0, 0), (0.96, 0, 0), (-0.24, 0.93, 0)], calculator=DP(ONE_SIDE))
    vibrations = Vibrations(atoms, name=str(tmp_path / "vib"), delta=1e-3)
    vibrations.run()
    hessian = vibrations.get_vibrations().get_hessian_2d()
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-4)
    # Moving all atoms alike costs nothing.
    np.testing.assert_allclose(hessian.reshape(9, 3, 3).sum(axis=1), 0, atol=1e-4)


def test_open_directions_see_no_images(bulk):
    atoms = bulk.atoms()
    atoms.calc = DP(ONE_SIDE)
    for pbc in [(True, True, False), (False, True, False)]:
        atoms.pbc = pbc
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        wide = atoms.copy()
        wide.calc = atoms.calc
        wide.pbc = True
        cell = np.array(atoms.cell)
        for k in np.flatnonzero(~atoms.pbc):
            cell[k] *= 40
        wide.set_cell(cell)
        np.testing.assert_allclose(energy, wide.get_potential_energy(), rtol=1e-10)
        np.testing.assert_allclose(forces, wide.get_forces(), atol=1e-9)
    # A slab need not have a third vector.
    slab = atoms.copy()
    slab.calc = DP(ONE_SIDE)
    slab.pbc = (True, True, False)
    with_vector = slab.get_potential_energy()
    slab.cell[2] = 0
    np.testing.assert_allclose(slab.get_potential_energy(), with_vector, rtol=1e-12)
    with pytest.raises(PropertyNotImplementedError):
        slab.get_stress()


def test_parameters_come_with_the_atoms(bulk):
    atoms = bulk.atoms()
    atoms.calc = DP(TWO_SIDE)
    with pytest.raises(ValueError, match="fparam"):
        atoms.get_potential_energy()
    atoms.info.update(fparam=bulk.fparam[0], aparam=bulk.aparam[0])
    energy = atoms.get_potential_energy()
    atoms.info["fparam"] = bulk.fparam[0] + 0.5
    assert np.isfinite(energy) and atoms.get_potential_energy() != energy


def test_the_example_runs():
    script = ROOT / "examples/python/md.py"
    done = subprocess.run([sys.executable, script, ONE_SIDE, "20"], capture_output=True, text=True)
    assert done.returncode == 0 and "the total energy varied by" in done.stdout, done.stderr


def test_what_cannot_be_computed_is_said(water):
    other = Atoms("NaCl", [(0, 0, 0), (2, 0, 0)], calculator=DP(ONE_SIDE))
    with pytest.raises(ValueError, match="no type for Cl, Na; it has O, H"):
        other.get_potential_energy()
    renamed = Atoms("NaCl", [(0, 0, 0), (2, 0, 0)], calculator=DP(ONE_SIDE, type_dict={"Na": 0, "Cl": 1}))
    assert np.isfinite(renamed.get_potential_energy())
    with pytest.raises(PropertyNotImplementedError):
        renamed.get_stress()
    water.positions[3, 1] = np.nan
    with pytest.raises(ValueError, match="atom 3: the coordinate NaN"):
        water.get_forces()
    flat = Atoms("OH", [(0, 0, 0), (1, 0, 0)], pbc=True, calculator=DP(ONE_SIDE))
    with pytest.raises(ValueError, match="cell"):
        flat.get_potential_energy()
    with pytest.warns(UserWarning, match="neighbor_list"):
        DP(ONE_SIDE, neighbor_list=object())
