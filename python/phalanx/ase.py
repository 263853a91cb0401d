"""Calculators for ASE.

>>> from phalanx.ase import DP
>>> atoms.calc = DP("model.dp")
>>> from phalanx.ase import PiNet
>>> atoms.calc = PiNet("model_dir")
"""

import os

import numpy as np
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes

from . import _phalanx
from .arrays import handed, numbers, whole_numbers
from .deep_pot import DeepPot

__all__ = ["DP", "PiNet"]


class DP(Calculator):
    """A Deep Potential, with the keywords of ``deepmd.calculator.DP``.

    model
        a model file or checkpoint
    label
        the calculator's label
    type_dict
        the type of each element; from the model unless given
    neighbor_list, head, nlist_backend, threads
        see :class:`phalanx.DeepPot`

    Frame and atom parameters come from ``atoms.info["fparam"]`` and ``["aparam"]``. Directions in which ``atoms.pbc`` is
    False are open.
    """

    name = "DP"
    implemented_properties = ["energy", "free_energy", "forces", "virial", "stress"]

    def __init__(
        self,
        model,
        label="DP",
        type_dict=None,
        neighbor_list=None,
        head=None,
        nlist_backend="auto",
        threads=None,
        **kwargs,
    ):
        super().__init__(label=label, **kwargs)
        self.dp = DeepPot(
            os.fspath(model), neighbor_list=neighbor_list, head=head, nlist_backend=nlist_backend, threads=threads
        )
        self.type_dict = type_dict or {name: k for k, name in enumerate(self.dp.get_type_map())}

    def check_state(self, atoms, tol=1e-15):
        changes = super().check_state(atoms, tol)
        before = self.atoms.info if self.atoms is not None else {}
        if any(not np.array_equal(before.get(name), atoms.info.get(name)) for name in ("fparam", "aparam")):
            changes = [*changes, "info"]
        return changes

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        atoms = self.atoms
        _check_stress(atoms, properties)
        energy, forces, virial = self.dp.eval(
            coords=atoms.get_positions()[np.newaxis],
            cells=_cell(atoms, self.dp.get_rcut()),
            atom_types=self._types(atoms),
            fparam=atoms.info.get("fparam"),
            aparam=atoms.info.get("aparam"),
            charge_spin=atoms.info.get("charge_spin"),
        )
        energy, virial = float(energy[0, 0]), virial[0].reshape(3, 3)
        self.results = {"energy": energy, "free_energy": energy, "forces": forces[0], "virial": virial}
        if atoms.pbc.any() and atoms.cell.rank == 3:
            self.results["stress"] = _voigt(-virial / atoms.get_volume())

    def _types(self, atoms):
        symbols = atoms.get_chemical_symbols()
        unknown = sorted(set(symbols) - set(self.type_dict))
        if unknown:
            raise ValueError(f"the model has no type for {', '.join(unknown)}; it has {', '.join(self.type_dict)}")
        return np.array([self.type_dict[symbol] for symbol in symbols], dtype=np.int32)


class PiNet(Calculator):
    """A PiNet or PiNet2 that was trained by ``pinn train``, here or by PiNN.

    model
        the folder of the model, or one of its checkpoints
    label
        the calculator's label
    threads
        how many compute; as many as the commands take unless given

    A potential has energies in the unit of ``e_unit`` of its params.yml, eV where that was meant; a dipole model has charges and
    dipoles. Directions in which ``atoms.pbc`` is False are open.
    """

    name = "PiNet"

    def __init__(self, model, label="PiNet", threads=None, **kwargs):
        super().__init__(label=label, **kwargs)
        self._model = _phalanx.load_pinet(os.fspath(model), threads)
        potential = ["energy", "free_energy", "forces", "stress"]
        self.implemented_properties = ["charges", "dipole"] if self._model["is_dipole"] else potential

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        atoms = self.atoms
        _check_stress(atoms, properties)
        elements = whole_numbers(atoms.get_atomic_numbers())
        coord = numbers("positions", atoms.get_positions())
        cell = _cell(atoms, self._model["rc"])
        cell = None if cell is None else numbers("cell", cell)
        n = len(atoms)
        energy, forces, stress, charges, dipole = (np.zeros(k) for k in (1, 3 * n, 9, n, 3))
        read = (handed(elements), handed(coord), handed(cell))
        self._model["evaluate"](read, tuple(handed(x) for x in (energy, forces, stress, charges, dipole)))
        if self._model["is_dipole"]:
            self.results = {"charges": charges, "dipole": dipole}
            return
        energy = float(energy[0])
        self.results = {"energy": energy, "free_energy": energy, "forces": forces.reshape(n, 3)}
        if atoms.pbc.any() and atoms.cell.rank == 3:
            stress = stress.reshape(3, 3)
            if not atoms.pbc.all():
                # Over the volume of the cell that ASE knows, not of the long one that was evaluated.
                stress = stress * (abs(np.linalg.det(cell.reshape(3, 3))) / atoms.get_volume())
            self.results["stress"] = _voigt(stress)


def _check_stress(atoms, properties):
    if "stress" in properties and (not atoms.pbc.any() or atoms.cell.rank < 3):
        raise PropertyNotImplementedError("stress: the atoms have no cell, or open boundaries")


def _voigt(stress):
    """xx, yy, zz, yz, xz, xy of dE/dstrain over the volume; tension is positive."""
    return (0.5 * (stress + stress.T)).flat[[0, 4, 8, 5, 2, 1]]


def _cell(atoms, rcut):
    """The cell as the model takes it: None, or periodic in all three directions.

    Along open ones it is so long that nothing reaches an image of itself.
    """
    if not atoms.pbc.any():
        return None
    if atoms.pbc.all():
        return np.asarray(atoms.cell).reshape(1, 9)
    if np.linalg.matrix_rank(np.asarray(atoms.cell)[atoms.pbc]) < atoms.pbc.sum():
        raise ValueError(f"the cell {atoms.cell.tolist()} has no volume along the periodic directions {atoms.pbc.tolist()}")
    open_directions = ~atoms.pbc
    cell = atoms.cell.copy()
    cell[open_directions] = 0
    cell = np.array(cell.complete())
    for k in np.flatnonzero(open_directions):
        # `complete` made it a unit vector across the others.
        along = atoms.get_positions() @ cell[k]
        cell[k] *= np.ptp(along) + 2 * rcut if len(along) else 1.0
    return cell.reshape(1, 9)
