"""What DeePMD-kit says about models that predict no energy, and about descriptors and last hidden layers, for the first frame of
../dp_test/bulk. Run here: python make.py"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from deepmd.infer import DeepPot
from deepmd.infer.deep_dipole import DeepDipole
from deepmd.infer.deep_dos import DeepDOS
from deepmd.infer.deep_polar import DeepPolar
from deepmd.infer.deep_property import DeepProperty

MODELS = {
    "dipole": DeepDipole,
    "se_atten_dipole": DeepDipole,
    "polar": DeepPolar,
    "polar_whole": DeepPolar,
    "dos": DeepDOS,
    "property_intensive": DeepProperty,
    "one_side_virial": DeepPot,
}
DATA = "../dp_test/bulk/set.000/"
dp = os.path.join(os.path.dirname(sys.executable), "dp")
coord, cell = np.load(DATA + "coord.npy")[:1], np.load(DATA + "box.npy")[:1]
# The data counts H before O, the models the other way round.
types = 1 - np.loadtxt("../dp_test/bulk/type.raw", dtype=int)
with tempfile.TemporaryDirectory() as folder:
    for name, kind in MODELS.items():
        subprocess.run([dp, "convert-backend", f"../se_e2_a/{name}/initial.dp", f"{folder}/{name}.pth"], check=True)
        model = kind(f"{folder}/{name}.pth")
        found = {}
        if kind is DeepDipole:
            keys = ["output", "force", "virial", "atom_output", "atom_virial"]
            found = dict(zip(keys, model.eval_full(coord, cell, types, atomic=True)))
            # The PyTorch back end has the numbers in the order of atoms, then components, whatever shape it gives them.
            for key, each in [("force", 3), ("atom_virial", 9)]:
                found[key] = found[key].reshape(len(types), 3, each).transpose(1, 0, 2)
        elif kind is DeepPolar:  # whose derivatives are nan there
            found["atom_output"] = model.eval(coord, cell, types)
            found["output"] = model.eval(coord, cell, types, atomic=False)
        elif kind is not DeepPot:
            found = dict(zip(["output", "atom_output"], model.eval(coord, cell, types, atomic=True)))
        found["descriptor"] = model.eval_descriptor(coord, cell, types)
        found["last_hidden"] = model.eval_fitting_last_layer(coord, cell, types)
        with open(f"{name}.json", "w") as f:
            json.dump({key: np.ravel(value).tolist() for key, value in found.items()}, f)
            f.write("\n")
