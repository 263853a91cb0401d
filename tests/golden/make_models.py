"""Makes the small models of this folder with DeePMD-kit. Run here: python make_models.py"""

import copy
import json

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import save_dp_model
from deepmd.pt.model.model import get_model

DESCRIPTOR = dict(type="se_e2_a", rcut=4.0, rcut_smth=0.5, neuron=[2, 4], axis_neuron=2, seed=1)
FITTING = dict(neuron=[5, 5], seed=1)

# name: (descriptor, fitting net, numbers of statistics from here on)
MODELS = {
    "one_side_f64": (dict(sel=[3, 4], type_one_side=True), dict(atom_ener=[], rcond=1e-3)),
    "two_side_f32": (
        dict(sel=[3, 4], type_one_side=False, precision="float32", resnet_dt=True, exclude_types=[[0, 1]],
             activation_function="silut:3.5", trainable=False, env_protection=1e-6),
        dict(precision="float32", numb_fparam=2, numb_aparam=1, atom_ener=[-1.5, None],
             activation_function="gelu_tf", trainable=[True, False, True]),
    ),
}


def statistics(tree):
    """Replaces the zeros and ones of a fresh model by numbers that a test can recognise."""
    for centre in range(2):
        for column in range(4):
            tree["descriptor"]["@variables"]["davg"][centre, :, column] = 0.125 * centre + 0.5 * (column == 0)
            tree["descriptor"]["@variables"]["dstd"][centre, :, column] = 0.25 + centre + 0.5 * column
    tree["@variables"]["out_bias"][0, :, 0] = [-93.5, -187.25]
    tree["@variables"]["out_std"][0, :, 0] = [0.75, 0.5]
    tree["fitting"]["@variables"]["bias_atom_e"][:, 0] = [0.5, 0.25]
    if tree["fitting"]["numb_fparam"]:
        tree["fitting"]["@variables"]["fparam_avg"][:] = [0.5, -0.25]
        tree["fitting"]["@variables"]["fparam_inv_std"][:] = [2.0, 4.0]
        tree["fitting"]["@variables"]["aparam_avg"][:] = [0.125]
        tree["fitting"]["@variables"]["aparam_inv_std"][:] = [8.0]


def layers(net):
    """First number and sum of every array of a net."""
    arrays = (a for layer in net["layers"] for a in layer["@variables"].values() if a is not None)
    return [[list(a.shape), float(a.ravel()[0]), float(a.astype(np.float64).sum())] for a in arrays]


for name, (descriptor, fitting) in MODELS.items():
    script = dict(type_map=["O", "H"], descriptor={**DESCRIPTOR, **descriptor}, fitting_net={**FITTING, **fitting})
    model = get_model(copy.deepcopy(script)).serialize()
    statistics(model)
    tree = {"backend": "PyTorch", "pt_version": str(torch.__version__), "model": model, "model_def_script": script,
            "@variables": {"min_nbor_dist": 0.875}}
    save_dp_model(f"{name}.dp", tree)
    save_dp_model(f"{name}.yaml", tree)
    known = {part: [layers(net) for net in model[outer][inner]["networks"]]
             for part, outer, inner in [("descriptor", "descriptor", "embeddings"), ("fitting", "fitting", "nets")]}
    with open(f"{name}.json", "w") as f:
        json.dump(known, f)
