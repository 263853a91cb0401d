"""Makes the models, the data and the expected output of `dp test` with DeePMD-kit. Run here: python make.py [MODEL]..."""

import copy
import os
import subprocess
import sys

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.model import get_model

DESCRIPTOR = dict(type="se_e2_a", rcut=4.0, rcut_smth=0.5, neuron=[4, 8], axis_neuron=2, seed=1)
FITTING = dict(neuron=[6, 6], seed=1)

# name: (descriptor, fitting net, shortest distance of the training data, systems of the test)
MODELS = {
    "one_side": (dict(sel=[6, 12], type_one_side=True), dict(), 0.875, ["bulk", "cluster"]),
    "two_side": (
        dict(sel=[6, 12], type_one_side=False, precision="float32", exclude_types=[[0, 0]], resnet_dt=True),
        dict(precision="float32", numb_fparam=2, numb_aparam=1),
        None,
        ["bulk"],
    ),
    # No energies: outputs of frames and of atoms.
    "dos": (dict(sel=[6, 12], type_one_side=True), dict(type="dos", numb_dos=3), 0.875, ["bulk", "cluster"]),
    "property": (
        dict(sel=[6, 12], type_one_side=True), dict(type="property", property_name="gap", task_dim=2, intensive=True), 0.875,
        ["cluster", "bulk"],
    ),
    # Vectors of frames, tensors of atoms.
    "dipole": (dict(sel=[6, 12], type_one_side=True), dict(type="dipole"), 0.875, ["bulk", "cluster"]),
    "polar": (
        dict(sel=[6, 12], type_one_side=True), dict(type="polar", fit_diag=False, scale=[2.0, 0.5]), 0.875, ["cluster", "bulk"],
    ),
}


def statistics(tree):
    """Numbers as training would find them: no direction is special."""
    for centre in range(2):
        davg, dstd = (tree["descriptor"]["@variables"][key][centre] for key in ("davg", "dstd"))
        davg[:, 0], davg[:, 1:] = 0.0625 * (centre + 1), 0.0
        dstd[:, 0], dstd[:, 1:] = 0.125 + 0.0625 * centre, 0.09375
    for column in range(tree["@variables"]["out_bias"].shape[2]):
        tree["@variables"]["out_bias"][0, :, column] = [-2.5 + column, -1.25 + column]
    if tree["fitting"]["type"] != "ener":
        tree["@variables"]["out_std"][0] *= [[0.5], [0.75]]
    if tree["fitting"]["numb_fparam"]:
        tree["fitting"]["@variables"]["fparam_avg"][:] = [0.5, -0.25]
        tree["fitting"]["@variables"]["fparam_inv_std"][:] = [2.0, 4.0]
        tree["fitting"]["@variables"]["aparam_avg"][:] = [0.125]
        tree["fitting"]["@variables"]["aparam_inv_std"][:] = [1.5]


def system(name, n_atoms, n_frames, pbc, rng):
    """Atoms near the points of a grid, random labels."""
    os.makedirs(f"{name}/set.000", exist_ok=True)
    # The data counts H before O, the models the other way round.
    np.savetxt(f"{name}/type.raw", np.arange(n_atoms) % 3 // 2, fmt="%d")
    with open(f"{name}/type_map.raw", "w") as f:
        f.write("H\nO\n")
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:n_atoms]
    coord = 1.7 * grid + rng.uniform(-0.3, 0.3, (n_frames, n_atoms, 3))
    arrays = dict(coord=coord, energy=rng.normal(-20, 1, n_frames), force=rng.normal(0, 1, (n_frames, n_atoms, 3)))
    if pbc:
        cell = np.diag([5.1, 5.3, 5.2]) + rng.uniform(-0.2, 0.2, (n_frames, 3, 3))
        arrays.update(box=cell, virial=rng.normal(0, 1, (n_frames, 9)))
        arrays.update(fparam=rng.normal(0, 1, (n_frames, 2)), aparam=rng.normal(0, 1, (n_frames, n_atoms)))
    else:
        open(f"{name}/nopbc", "w").close()
    for key, value in arrays.items():
        np.save(f"{name}/set.000/{key}.npy", value.reshape(n_frames, -1))
    other = np.random.default_rng([7, n_atoms])
    for key, width in [("dos", 3), ("gap", 2), ("dipole", 3), ("polarizability", 9)]:
        np.save(f"{name}/set.000/{key}.npy", other.normal(0, 1, (n_frames, width)))
        np.save(f"{name}/set.000/atom_{key}.npy", other.normal(0, 1, (n_frames, n_atoms * width)))


rng = np.random.default_rng(7)
system("bulk", 12, 3, True, rng)
system("cluster", 7, 2, False, rng)
for name in sys.argv[1:] or MODELS:
    descriptor, fitting, min_nbor_dist, systems = MODELS[name]
    script = dict(type_map=["O", "H"], descriptor={**DESCRIPTOR, **descriptor}, fitting_net={**FITTING, **fitting})
    model = get_model(copy.deepcopy(script)).serialize()
    statistics(model)
    tree = {"backend": "PyTorch", "pt_version": str(torch.__version__), "model": model, "model_def_script": script,
            "@variables": {"min_nbor_dist": min_nbor_dist} if min_nbor_dist else {}}
    save_dp_model(f"{name}.dp", tree)
    dp = os.path.join(os.path.dirname(sys.executable), "dp")
    subprocess.run([dp, "convert-backend", f"{name}.dp", f"{name}.pth"], check=True)
    with open("systems.txt", "w") as f:
        f.write("\n".join(systems) + "\n")
    command = [dp, "--pt", "test", "-m", f"{name}.pth", "-f", "systems.txt", "-d", name]
    command += ["--atomic"] if "type" in fitting and name != "dipole" else []
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    lines = [line.split("INFO", 1)[1].strip() for line in log.splitlines() if "DEEPMD INFO" in line]
    with open(f"{name}.log", "w") as f:
        f.write("\n".join(lines) + "\n")
    os.remove(f"{name}.pth")
    os.remove("systems.txt")
