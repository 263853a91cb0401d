"""A trained potential, with the methods of ``deepmd.infer.DeepPot``."""

import numpy as np

from . import _phalanx
from .deep_eval import DeepEval


class DeepPot(DeepEval):
    __doc__ = "Energies, forces and virials of a trained model." + DeepEval.__doc__.removeprefix("A trained model.")

    _load = staticmethod(_phalanx.load)

    def eval(
        self, coords, cells, atom_types, atomic=False, fparam=None, aparam=None, mixed_type=False, **kwargs
    ):
        """Evaluates one or more frames.

        coords
            ``[nframes, natoms, 3]``, or flat
        cells
            ``[nframes, 9]``, rows are the lattice vectors, or None for open boundaries
        atom_types
            ``[natoms]``; with `mixed_type` ``[nframes, natoms]``; -1 is no atom
        atomic
            return what each atom brings to energy and virial, too
        fparam
            ``[nframes, dim_fparam]``, or ``[dim_fparam]`` for all frames
        aparam
            ``[nframes, natoms, dim_aparam]``, ``[natoms, dim_aparam]`` or ``[dim_aparam]``

        Returns energy ``[nframes, 1]``, force ``[nframes, natoms, 3]``, virial ``[nframes, 9]``, and with `atomic` the
        energies ``[nframes, natoms, 1]`` and virials ``[nframes, natoms, 9]`` of atoms.
        """
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        n_frames, n_atoms, _ = given
        found = [np.empty((n_frames, 1)), np.empty((n_frames, n_atoms, 3)), np.empty((n_frames, 9))]
        of_atoms = [np.empty((n_frames, n_atoms, 1)), np.empty((n_frames, n_atoms, 9))] if atomic else [None, None]
        self._filled("evaluate", given, found + of_atoms)
        return tuple(found + of_atoms) if atomic else tuple(found)
