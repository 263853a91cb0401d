"""A trained Deep Potential, with the methods of ``deepmd.infer.DeepPot``."""

import os
import warnings

import numpy as np

from . import _phalanx
from .arrays import handed, numbers, whole_numbers

_INT32 = np.iinfo(np.int32)


class DeepPot:
    """Energies, forces and virials of a trained model. Lengths in A, energies in eV.

    model_file
        ``model.dp``, ``model.yaml``, or a checkpoint (``model.ckpt``, its folder)
    threads
        threads that compute; else ``OMP_NUM_THREADS``, else all cores, shared with other ranks of this host

    The other arguments are those of DeePMD-kit. Neighbours are always found here, and memory follows the atoms, so that
    ``auto_batch_size`` and ``nlist_backend`` say nothing.

    Several threads may use one object; they take turns, and other Python threads run meanwhile.
    """

    def __init__(
        self, model_file, *, auto_batch_size=True, neighbor_list=None, head=None, nlist_backend="auto", threads=None
    ):
        if neighbor_list is not None:
            warnings.warn("neighbor_list is not used: Phalanx finds the same neighbours itself", stacklevel=2)
        if head is not None:
            raise ValueError(f"head={head!r}: a model of Phalanx has one task and no heads")
        self.model_file = os.fspath(model_file)
        self._model = _phalanx.load(self.model_file, threads)

    def __repr__(self):
        return f"DeepPot({self.model_file!r})"

    def __reduce__(self):
        return (DeepPot, (self.model_file,))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Lets go of the model."""
        self._model = None

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
        for name, value in kwargs.items():
            if name not in ("efield", "charge_spin"):
                raise TypeError(f"eval() got an unexpected keyword argument {name!r}")
            if value is not None:
                raise ValueError(f"{name}: the model takes none")
        model = self._open()
        types, n_atoms, type_frames = _types(atom_types, mixed_type)
        coords, n_frames = _coords(coords, n_atoms, type_frames)
        cells = None if cells is None else _flat("cells", cells, n_frames, (9,))
        fparam = _flat("fparam", fparam, n_frames, (model["numb_fparam"],))
        aparam = _flat("aparam", aparam, n_frames, (n_atoms, model["numb_aparam"]))
        found = [np.empty((n_frames, 1)), np.empty((n_frames, n_atoms, 3)), np.empty((n_frames, 9))]
        of_atoms = [np.empty((n_frames, n_atoms, 1)), np.empty((n_frames, n_atoms, 9))] if atomic else [None, None]
        model["evaluate"](
            n_frames,
            n_atoms,
            tuple(handed(x) for x in (coords, cells, types, fparam, aparam)),
            tuple(handed(x) for x in found + of_atoms),
        )
        return tuple(found + of_atoms) if atomic else tuple(found)

    def _open(self):
        if self._model is None:
            raise ValueError(f"{self.model_file}: the model was closed")
        return self._model

    def get_type_map(self):
        """Names of the types; `atom_types` are indices into them."""
        return list(self._open()["type_map"])

    def get_ntypes(self):
        return len(self._open()["type_map"])

    def get_rcut(self):
        """Atoms farther apart than this do not see each other, A."""
        return self._open()["rcut"]

    def get_dim_fparam(self):
        return self._open()["numb_fparam"]

    def get_dim_aparam(self):
        return self._open()["numb_aparam"]

    def has_default_fparam(self):
        return False

    def get_sel_type(self):
        """Types that bring energy: all of them."""
        return list(range(self.get_ntypes()))

    def get_ntypes_spin(self):
        return 0

    has_efield = property(lambda self: False)
    has_spin = property(lambda self: False)
    has_hessian = property(lambda self: False)
    use_spin = property(lambda self: [])


def _types(atom_types, mixed_type):
    """Types as int32, the number of atoms, and that of frames where it is told."""
    x = np.asarray(atom_types)
    if x.size == 0:
        x = x.astype(np.int32)
    if x.dtype.kind not in "iu":
        raise ValueError(f"atom_types: found an array of {x.dtype}, wanted whole numbers")
    if x.size and (x.min() < _INT32.min or x.max() > _INT32.max):
        raise ValueError("atom_types: a number is out of range")
    if x.ndim not in (1, 2) or (mixed_type and x.ndim != 2):
        wanted = "[nframes, natoms]" if mixed_type else "[natoms]"
        raise ValueError(f"atom_types: found the shape {x.shape}, wanted {wanted}")
    n_frames = x.shape[0] if x.ndim == 2 else None
    return whole_numbers(x), x.shape[-1], n_frames


def _coords(coords, n_atoms, type_frames):
    """Coordinates, flat, and the number of frames."""
    x = numbers("coords", coords)
    if n_atoms == 0:
        if x.size:
            raise ValueError(f"coords: found {x.size} numbers and no atoms")
        n_frames = type_frames or (x.shape[0] if x.ndim > 1 else 1)
    elif x.size % (3 * n_atoms):
        raise ValueError(f"coords: found the shape {x.shape}, wanted [nframes, {n_atoms}, 3]")
    else:
        n_frames = x.size // (3 * n_atoms)
    if type_frames not in (None, n_frames):
        raise ValueError(f"atom_types: found {type_frames} frames, and {n_frames} of coords")
    return x.reshape(-1), n_frames


def _flat(name, x, n_frames, shape):
    """Numbers of all frames, flat; given once, or for fewer dimensions, they hold for all."""
    size = int(np.prod(shape))
    if x is None:
        if size and n_frames:
            raise ValueError(f"{name}: the model wants {shape[-1]} for each {'frame' if len(shape) == 1 else 'atom'}")
        return np.empty(0)
    x = numbers(name, x)
    if x.size == n_frames * size:
        return x.reshape(-1)
    if name != "cells" and x.size == size:
        return np.tile(x.reshape(-1), n_frames)
    if name != "cells" and x.size == shape[-1]:
        return np.tile(x.reshape(-1), n_frames * size // shape[-1])
    raise ValueError(f"{name}: found the shape {x.shape}, wanted {(n_frames, *shape)}")
