"""What all trained Deep Potentials have, with the methods of ``deepmd.infer``."""

import os
import warnings

import numpy as np

from .arrays import handed, numbers, whole_numbers

_INT32 = np.iinfo(np.int32)


class DeepEval:
    """A trained model. Lengths in A, energies in eV.

    model_file
        ``model.dp``, ``model.yaml``, or a checkpoint (``model.ckpt``, its folder)
    threads
        threads that compute; else ``OMP_NUM_THREADS``, else all cores, shared with other ranks of this host

    The other arguments are those of DeePMD-kit. Neighbours are always found here, and memory follows the atoms, so that
    ``auto_batch_size`` and ``nlist_backend`` say nothing.

    Several threads may use one object; they take turns, and other Python threads run meanwhile.
    """

    #: loads the model: what it says about itself, and functions
    _load = None

    def __init__(
        self, model_file, *, auto_batch_size=True, neighbor_list=None, head=None, nlist_backend="auto", threads=None
    ):
        if neighbor_list is not None:
            warnings.warn("neighbor_list is not used: Phalanx finds the same neighbours itself", stacklevel=2)
        if head is not None:
            raise ValueError(f"head={head!r}: a model of Phalanx has one task and no heads")
        self.model_file = os.fspath(model_file)
        self._model = type(self)._load(self.model_file, threads)

    def __repr__(self):
        return f"{type(self).__name__}({self.model_file!r})"

    def __reduce__(self):
        return (type(self), (self.model_file,))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Lets go of the model."""
        self._model = None

    def _open(self):
        if self._model is None:
            raise ValueError(f"{self.model_file}: the model was closed")
        return self._model

    def _given(self, coords, cells, atom_types, fparam, aparam, mixed_type, others):
        """The number of frames and of atoms, and the arrays that the model reads; `others` are keywords that must be empty."""
        for name, value in others.items():
            if name not in ("efield", "charge_spin"):
                raise TypeError(f"unexpected keyword argument {name!r}")
            if value is not None:
                raise ValueError(f"{name}: the model takes none")
        model = self._open()
        types, n_atoms, type_frames = _types(atom_types, mixed_type)
        coords, n_frames = _coords(coords, n_atoms, type_frames)
        cells = None if cells is None else _flat("cells", cells, n_frames, (9,))
        fparam = _flat("fparam", fparam, n_frames, (model["numb_fparam"],))
        aparam = _flat("aparam", aparam, n_frames, (n_atoms, model["numb_aparam"]))
        return n_frames, n_atoms, (coords, cells, types, fparam, aparam)

    def _filled(self, function, given, filled):
        """Has arrays filled; None stands for one that nobody wants."""
        n_frames, n_atoms, arrays = given
        self._open()[function](
            n_frames, n_atoms, tuple(handed(x) for x in arrays), tuple(handed(x) for x in filled)
        )
        return filled

    def _of_atoms(self, function, width, given, dtype):
        if dtype not in ("native", "fp64", "fp32"):
            raise ValueError(f"dtype: found {dtype!r}, wanted 'fp32', 'fp64' or 'native'")
        n_frames, n_atoms, arrays = given
        out = np.empty((n_frames, n_atoms, self._open()[width]))
        self._open()[function](n_frames, n_atoms, tuple(handed(x) for x in arrays), handed(out))
        return out.astype(np.float32) if dtype == "fp32" else out

    def eval_descriptor(
        self, coords, cells, atom_types, fparam=None, aparam=None, mixed_type=False, dtype="native", **kwargs
    ):
        """The descriptors of atoms, ``[nframes, natoms, width]``; arguments are those of ``eval``.

        `dtype` is that of the result: ``fp32``, ``fp64``, or ``native``, which is float64 for every model.
        """
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        return self._of_atoms("descriptors", "n_descriptor", given, dtype)

    def eval_fitting_last_layer(
        self, coords, cells, atom_types, fparam=None, aparam=None, mixed_type=False, dtype="native", **kwargs
    ):
        """The last hidden layer of the fitting net of each atom, ``[nframes, natoms, width]``, as `eval_descriptor`."""
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        return self._of_atoms("last_hidden", "n_hidden", given, dtype)

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
        """Types whose atoms the model says something about."""
        return list(self._open()["selected_types"])

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
