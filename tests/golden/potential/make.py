"""What DeePMD-kit says about single atoms, for the models and data of ../dp_test. Run here: python make.py"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from deepmd.infer import DeepPot

DATA = "../dp_test/bulk/"
dp = os.path.join(os.path.dirname(sys.executable), "dp")
load = lambda key: np.load(f"{DATA}set.000/{key}.npy")[:1]
# The data counts H before O, the models the other way round.
types = 1 - np.loadtxt(f"{DATA}type.raw", dtype=int)
with tempfile.TemporaryDirectory() as folder:
    for name in ["one_side", "two_side"]:
        subprocess.run([dp, "convert-backend", f"../dp_test/{name}.dp", f"{folder}/{name}.pth"], check=True)
        model = DeepPot(f"{folder}/{name}.pth")
        parameters = dict(fparam=load("fparam"), aparam=load("aparam")) if name == "two_side" else {}
        found = model.eval(load("coord"), load("box"), types, atomic=True, **parameters)
        keys = ["energy", "force", "virial", "atom_energy", "atom_virial"]
        with open(f"{name}.json", "w") as f:
            json.dump({key: np.ravel(value).tolist() for key, value in zip(keys, found)}, f)
            f.write("\n")
