"""``phalanx.DeepDipole`` and the others that predict no energy, descriptors and last hidden layers: the numbers of DeePMD-kit, its
shapes, bad input."""

import json
import pickle

import numpy as np
import pytest
from conftest import GOLDEN, ONE_SIDE

from phalanx import DeepDipole, DeepDOS, DeepPolar, DeepPot, DeepProperty

#: made by DeePMD-kit 3.2.0: tests/golden/outputs/make.py
CLASSES = {
    "dipole": DeepDipole, "se_atten_dipole": DeepDipole, "polar": DeepPolar, "polar_whole": DeepPolar,
    "dos": DeepDOS, "property_intensive": DeepProperty, "one_side_virial": DeepPot,
}
TENSORS = [name for name, kind in CLASSES.items() if kind in (DeepDipole, DeepPolar)]


def model_file(name):
    return GOLDEN / "se_e2_a" / name / "initial.dp"


def load(name):
    want = json.loads((GOLDEN / f"outputs/{name}.json").read_text())
    return CLASSES[name](model_file(name)), {key: np.array(value) for key, value in want.items()}


def close(found, want):
    np.testing.assert_allclose(np.ravel(found), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_have_the_numbers_and_shapes_of_deepmd_kit(name, bulk):
    model, want = load(name)
    n = 3 if CLASSES[name] is DeepDipole else 9
    one = bulk.coords[:1], bulk.cells[:1], bulk.types
    tensor, force, virial, of_atoms, atom_virial = model.eval_full(*one, atomic=True)
    shapes = [x.shape for x in (tensor, force, virial, of_atoms, atom_virial)]
    assert shapes == [(1, n), (1, n, 12, 3), (1, n, 9), (1, 12, n), (1, n, 12, 9)]
    for key, x in [("output", tensor), ("force", force), ("virial", virial), ("atom_output", of_atoms), ("atom_virial", atom_virial)]:
        if key in want:  # DeePMD-kit has no derivatives of polarizabilities
            close(x, want[key])
    close(model.eval(*one), want["atom_output"])
    close(model.eval(*one, atomic=False), want["output"])
    assert len(model.eval_full(*one)) == 3
    many = model.eval_full(bulk.coords, bulk.cells, bulk.types, atomic=True)
    for a, b in zip(many, (tensor, force, virial, of_atoms, atom_virial)):
        assert len(a) == len(bulk.coords)
        np.testing.assert_array_equal(a[:1], b)


def test_densities_of_states_and_properties_have_the_numbers_of_deepmd_kit(bulk):
    for name in ("dos", "property_intensive"):
        model, want = load(name)
        found, of_atoms = model.eval(bulk.coords[:1], bulk.cells[:1], bulk.types, atomic=True)
        close(found, want["output"])
        close(of_atoms, want["atom_output"])
        assert len(model.eval(bulk.coords, bulk.cells, bulk.types)) == 1
    dos, prop = load("dos")[0], load("property_intensive")[0]
    assert dos.numb_dos == dos.get_numb_dos() == dos.eval(bulk.coords, None, bulk.types)[0].shape[1]
    assert prop.task_dim == prop.get_task_dim() and prop.get_intensive() and prop.get_var_name()


@pytest.mark.parametrize("name", CLASSES)
def test_descriptors_and_last_layers_have_the_numbers_of_deepmd_kit(name, bulk):
    model, want = load(name)
    one = bulk.coords[:1], bulk.cells[:1], bulk.types
    for function, key in [(model.eval_descriptor, "descriptor"), (model.eval_fitting_last_layer, "last_hidden")]:
        found = function(*one)
        assert found.shape[:2] == (1, 12) and found.dtype == np.float64
        close(found, want[key])
        assert function(*one, dtype="fp32").dtype == np.float32
        assert function(bulk.coords, bulk.cells, bulk.types).shape == (len(bulk.coords), *found.shape[1:])


def test_the_wrong_class_the_wrong_frames_and_a_closed_model_are_errors(bulk):
    with pytest.raises(ValueError, match="help: load it with DeepPolar"):
        DeepDipole(model_file("polar"))
    with pytest.raises(RuntimeError, match="predicts an energy"):
        DeepDOS(ONE_SIDE)
    with pytest.raises(RuntimeError, match="predicts no energy"):
        DeepPot(model_file("dipole"))
    model = DeepDipole(model_file("dipole"))
    with pytest.raises(ValueError, match="coords"):
        model.eval(bulk.coords[0][:5], None, bulk.types)
    with pytest.raises(ValueError, match="is not a number"):
        model.eval(np.full((1, 36), np.nan), None, bulk.types)
    with pytest.raises(ValueError, match="dtype"):
        model.eval_descriptor(bulk.coords, None, bulk.types, dtype="fp16")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.eval(bulk.coords, None, bulk.types), model.eval(bulk.coords, None, bulk.types))
    model.close()
    with pytest.raises(ValueError, match="was closed"):
        model.eval(bulk.coords, None, bulk.types)
