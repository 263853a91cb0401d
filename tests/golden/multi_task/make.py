"""Makes the cases of this folder with DeePMD-kit 3.2 (PyTorch backend, CPU). Run here: python make.py [CASE]...

Each case is a real `dp --pt train` of two branches, in which DeePMD-kit is told which branch to take in each step: those that Phalanx
draws for the same seed. A batch holds all frames of a system, so that their order matters to the last bits alone.
  CASE.json   the input, whose systems are those of ../se_e2_a/data; "branches": the branch of each step; "predicted": for each
              branch energies [eV] and forces [eV/A] of all frames of its system after the last step
"""

import json
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "../se_e2_a/data")
# The draws of seed 10 with weights 1 and 2; multi_task.rs holds them against what Phalanx draws.
BRANCHES = json.load(open(os.path.join(HERE, "branches.json")))
SYSTEMS = dict(first="mix", second="mixed")

DESCRIPTOR = dict(
    type="se_e2_a", sel=[14, 20], rcut=3.5, rcut_smth=0.5, neuron=[3, 6], axis_neuron=2, type_one_side=True,
    precision="float64", seed=1,
)
ATTENTION = dict(
    type="se_atten", sel=30, rcut=3.5, rcut_smth=0.5, neuron=[3, 6], axis_neuron=2, attn=4, attn_layer=1, tebd_dim=3,
    set_davg_zero=False, precision="float64",
)
FITTING = dict(neuron=[5, 5], resnet_dt=True, precision="float64")
LOSS = dict(type="ener", start_pref_e=0.5, limit_pref_e=1, start_pref_f=20, limit_pref_f=1, start_pref_v=0.5, limit_pref_v=1)
FORCES = dict(type="ener", start_pref_e=0.1, limit_pref_e=1, start_pref_f=10, limit_pref_f=1, start_pref_v=0, limit_pref_v=0)

# name: what is shared, and the models of both branches
CASES = {
    # A fitting net without a seed draws from the generator of the run, the second branch after the first.
    "shared_descriptor": (
        dict(types=["H", "O"], descriptor=DESCRIPTOR),
        dict(type_map="types", descriptor="descriptor", fitting_net=FITTING),
        dict(type_map="types", descriptor="descriptor", fitting_net=dict(FITTING, neuron=[4, 4, 6])),
    ),
    "shared_fitting": (
        dict(types=["H", "O"], descriptor=DESCRIPTOR, fitting=dict(FITTING, seed=2, dim_case_embd=3)),
        dict(type_map="types", descriptor="descriptor", fitting_net="fitting"),
        dict(type_map="types", descriptor="descriptor", fitting_net="fitting"),
    ),
    "shared_types": (
        dict(types=["H", "O"], descriptor=ATTENTION),
        dict(type_map="types", descriptor="descriptor:1", fitting_net=FITTING),
        dict(type_map="types", descriptor="descriptor", fitting_net=FITTING),
    ),
}


def make_input(shared, first, second):
    data = {
        name: dict(training_data=dict(systems=[system], batch_size=4)) for name, system in SYSTEMS.items()
    }
    return dict(
        model=dict(shared_dict=shared, model_dict=dict(first=first, second=second)),
        learning_rate=dict(type="exp", decay_steps=2, start_lr=0.01, stop_lr=1e-4),
        loss_dict=dict(first=LOSS, second=FORCES),
        training=dict(
            data_dict=data, model_prob=dict(first=1.0, second=2.0), numb_steps=len(BRANCHES), seed=10, disp_freq=1000,
            save_freq=1000,
        ),
    )


def train(written):
    from deepmd.pt.entrypoints.main import train as dp_train
    from deepmd.pt.utils import dp_random

    waiting, choose = list(BRANCHES), dp_random.choice

    def choice(a, *args, p=None, **kwargs):
        if p is None or len(p) != 2:
            return choose(a, *args, p=p, **kwargs)
        assert np.allclose(p, [1 / 3, 2 / 3])
        return waiting.pop(0)

    dp_random.choice = choice
    try:
        with open("input.json", "w") as file:
            json.dump(written, file)
        dp_train("input.json", None, None, None, None, "", False, True, False, "out.json")
    finally:
        dp_random.choice = choose
    assert not waiting, "every branch was taken"


def predictions(system, branch):
    from deepmd.infer import DeepPot

    folder = os.path.join(system, "set.000")
    coord, cell = (np.load(os.path.join(folder, name + ".npy")) for name in ["coord", "box"])
    names = open(os.path.join(system, "type_map.raw")).read().split()
    real = os.path.join(folder, "real_atom_types.npy")
    types = np.load(real) if os.path.exists(real) else np.tile(np.loadtxt(os.path.join(system, "type.raw"), dtype=int), (len(coord), 1))
    model = DeepPot("model.ckpt.pt", head=branch)
    assert model.get_type_map() == names
    energies, forces = [], []
    for x, box, kinds in zip(coord, cell, types):
        e, f, _ = model.eval(x[None], box[None], kinds)
        energies.append(float(e[0, 0]))
        forces.append(f[0].reshape(-1).tolist())
    return dict(energy=energies, force=forces)


def make(name):
    written = make_input(*CASES[name])
    case = dict(input=json.loads(json.dumps(written)), branches=BRANCHES)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for system in SYSTEMS.values():
            os.symlink(os.path.join(os.path.abspath(DATA), system), system)
        train(written)
        case["predicted"] = {branch: predictions(system, branch) for branch, system in SYSTEMS.items()}
        os.chdir(HERE)
    with open(os.path.join(HERE, name + ".json"), "w") as file:
        json.dump(case, file)
        file.write("\n")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case)
