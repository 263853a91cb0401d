"""Trained models that predict no energy, with the methods of ``deepmd.infer``: ``DeepDipole``, ``DeepPolar``, ``DeepDOS``,
``DeepProperty``."""

import numpy as np

from . import _phalanx
from .deep_eval import DeepEval


class _DeepOutput(DeepEval):
    #: the type of the fitting net
    _kind = None
    _load = staticmethod(_phalanx.load_outputs)

    def __init__(self, model_file, **kwargs):
        super().__init__(model_file, **kwargs)
        found = self._model["kind"]
        if found != self._kind:
            raise ValueError(
                f"{self.model_file}: wanted a model with a fitting net of type \"{self._kind}\", found \"{found}\"\n"
                f"  help: load it with {_CLASSES[found].__name__}"
            )

    def _evaluate(self, given, derivatives=False, atomic=False):
        """Output, that of atoms, force and virial of each component, and those of atoms; None for what nobody wants."""
        n_frames, n_atoms, _ = given
        width = self._open()["width"]
        found = [np.empty((n_frames, width)), np.empty((n_frames, n_atoms, width)), None, None, None]
        if derivatives:
            found[2:4] = np.empty((n_frames, width, n_atoms, 3)), np.empty((n_frames, width, 9))
        if derivatives and atomic:
            found[4] = np.empty((n_frames, width, n_atoms, 9))
        return self._filled("evaluate", given, found)

    def _both(self, given, atomic):
        output, of_atoms = self._evaluate(given)[:2]
        return (output, of_atoms) if atomic else (output,)


class _DeepTensor(_DeepOutput):
    def eval(
        self, coords, cells, atom_types, atomic=True, fparam=None, aparam=None, mixed_type=False, **kwargs
    ):
        """The tensors of atoms ``[nframes, natoms, width]``, or without `atomic` their sums ``[nframes, width]``.

        The other arguments are those of ``DeepPot.eval``.
        """
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        return self._evaluate(given)[1 if atomic else 0]

    def eval_full(
        self, coords, cells, atom_types, atomic=False, fparam=None, aparam=None, mixed_type=False, **kwargs
    ):
        """The tensor ``[nframes, width]``, minus the slope of each component ``[nframes, width, natoms, 3]``, and its virial
        ``[nframes, width, 9]``; with `atomic` also the tensors ``[nframes, natoms, width]`` and virials
        ``[nframes, width, natoms, 9]`` of atoms."""
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        output, of_atoms, force, virial, atom_virial = self._evaluate(given, derivatives=True, atomic=atomic)
        return (output, force, virial, of_atoms, atom_virial) if atomic else (output, force, virial)

    @property
    def output_tensor_name(self):
        return self._kind


class DeepDipole(_DeepTensor):
    """Dipoles of a trained model. Arguments are those of ``DeepPot``."""

    _kind = "dipole"


class DeepPolar(_DeepTensor):
    """Polarizabilities of a trained model. Arguments are those of ``DeepPot``."""

    _kind = "polar"


class DeepDOS(_DeepOutput):
    """Densities of states of a trained model. Arguments are those of ``DeepPot``."""

    _kind = "dos"

    def eval(
        self, coords, cells, atom_types, atomic=False, fparam=None, aparam=None, mixed_type=False, **kwargs
    ):
        """The density of states ``[nframes, numb_dos]``, and with `atomic` those of atoms ``[nframes, natoms, numb_dos]``: a tuple."""
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        return self._both(given, atomic)

    def get_numb_dos(self):
        return self._open()["width"]

    numb_dos = property(get_numb_dos)


class DeepProperty(_DeepOutput):
    """Properties of structures from a trained model. Arguments are those of ``DeepPot``."""

    _kind = "property"

    def eval(
        self, coords, cells, atom_types, atomic=False, fparam=None, aparam=None, mixed_type=False, **kwargs
    ):
        """The property ``[nframes, task_dim]``, and with `atomic` those of atoms ``[nframes, natoms, task_dim]``: a tuple."""
        given = self._given(coords, cells, atom_types, fparam, aparam, mixed_type, kwargs)
        return self._both(given, atomic)

    def get_task_dim(self):
        return self._open()["width"]

    def get_intensive(self):
        """Whether the property is the mean over atoms, not the sum."""
        return self._open()["is_intensive"]

    def get_var_name(self):
        return self._open()["name"]

    task_dim = property(get_task_dim)


_CLASSES = {own._kind: own for own in (DeepDipole, DeepPolar, DeepDOS, DeepProperty)}
