#!/usr/bin/env python3
"""Real PiNN and Phalanx with each other's checkpoints.

    tools/check_pinn.py PINN_SOURCE golden FOLDER    makes the files of tests/golden/pinn_tf
    tools/check_pinn.py PINN_SOURCE check PINN       PINN is our program; ends with 1 where something differs

PINN_SOURCE is a checkout of PiNN 2 (it is not on PyPI); Python needs tensorflow-cpu 2.15, numpy 1.26, ase 3.22, pyyaml and click.
For each network: PiNN trains three steps on one structure and goes on to six. `check` lets our program predict with what PiNN
trained, go on from step 3 to 6, and compares weights, moments and predictions with PiNN's; then PiNN loads and continues ours.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

SMALL = dict(atom_types=[1, 8], rc=3.0, depth=2, n_basis=3, pp_nodes=[4], pi_nodes=[4], ii_nodes=[4], out_nodes=[4])
POTENTIAL = dict(
    name="potential_model",
    params=dict(use_force=True, e_dress={1: 0.5, 8: -1.5}, e_scale=2.0, e_unit=27.25, f_loss_multiplier=3.0),
)
DIPOLE = dict(name="dipole_model", params=dict(use_l2=False, d_scale=1.5, d_unit=2.0))
DECAY = dict(
    class_name="ExponentialDecay", config=dict(decay_rate=0.5, decay_steps=10, initial_learning_rate=0.01)
)
CASES = dict(
    pinet=(dict(name="PiNet", params=SMALL), POTENTIAL, DECAY),
    pinet2=(dict(name="PiNet2", params=dict(SMALL, rank=3, pp_nodes=[5, 4], out_nodes=[4, 3])), POTENTIAL, DECAY),
    pinet2_weighted=(dict(name="PiNet2", params=dict(SMALL, rank=5, weighted=True)), POTENTIAL, 0.01),
    dipole=(dict(name="PiNet", params=dict(SMALL, depth=3, pi_nodes=[3, 4])), DIPOLE, 0.01),
)
TOLERANCE = 2e-5  # float32, and sums in another order, over three steps


def frame():
    """One structure whose numbers float32 holds, so that text does not change them."""
    import numpy as np

    rng = np.random.RandomState(5)

    def exact(x):
        return np.round(x * 1024) / 1024

    home = np.array([[a % 2 * 2.0, a // 2 * 1.6, a % 3] for a in range(6)])
    return dict(
        elems=np.array([8, 1, 1, 8, 1, 1]),
        coord=exact(home + rng.normal(0, 0.2, (6, 3))),
        cell=np.array([[5.0, 0, 0], [0.5, 5.5, 0], [0, -0.25, 6.0]]),
        e_data=exact(rng.normal()),
        f_data=exact(rng.normal(size=(6, 3))),
        d_data=exact(abs(rng.normal())),
    )


def write_xyz(path):
    f = frame()
    with open(path, "w") as out:
        out.write(f"6\nLattice=\"{' '.join(map(str, f['cell'].flat))}\" Properties=species:S:1:pos:R:3:forces:R:3 ")
        out.write(f"energy={f['e_data']} dipole={f['d_data']} pbc=\"T T T\"\n")
        for z, x, force in zip(f["elems"], f["coord"], f["f_data"]):
            out.write(" ".join([{1: "H", 8: "O"}[z], *map(str, x), *map(str, force)]) + "\n")


def data(repeat):
    import tensorflow as tf
    from pinn.io import sparse_batch

    kinds = {key: tf.int32 if key == "elems" else tf.float32 for key in frame()}
    shapes = {key: value.shape for key, value in frame().items() if hasattr(value, "shape")}
    shapes = {key: shapes.get(key, ()) for key in kinds}
    one = tf.data.Dataset.from_generator(lambda: iter([frame()]), kinds, shapes)
    return (one.repeat() if repeat else one).apply(sparse_batch(1))


def train(model, steps):
    import pinn

    pinn.get_model(model).train(lambda: data(True), max_steps=steps)


def predict(folder):
    import pinn

    model = pinn.get_model(folder)
    found = next(iter(model.predict(lambda: data(False), yield_single_examples=False)))
    return {key: value.ravel().astype(float).tolist() for key, value in found.items()}


def calculator(folder):
    """What `pinn.get_calc` says, the way PiNN's users have it."""
    import pinn
    from ase import Atoms

    f = frame()
    atoms = Atoms(numbers=f["elems"], positions=f["coord"], cell=f["cell"], pbc=True)
    atoms.calc = pinn.get_calc(folder)
    return dict(energy=[float(atoms.get_potential_energy())], forces=atoms.get_forces().ravel().tolist())


def params_of(case, folder):
    network, model, rate = CASES[case]
    optimizer = dict(class_name="Adam", config=dict(learning_rate=rate, global_clipnorm=1.0))
    return json.loads(json.dumps(dict(model_dir=folder, network=network, optimizer=optimizer))) | dict(model=model)


def golden(case, folder):
    """The case's folder: params.yml, checkpoints of step 3 and 6, `checkpoint` at step 3, and what PiNN predicts."""
    shutil.rmtree(folder, ignore_errors=True)
    train(params_of(case, folder), 3)
    found = {"3": predict(folder)}
    train(folder, 6)
    found["6"] = predict(folder)
    for name in os.listdir(folder):
        keep = name == "params.yml" or ("ckpt-3." in name or "ckpt-6." in name) and not name.endswith(".meta")
        path = os.path.join(folder, name)
        if not keep:
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    with open(f"{folder}/params.yml") as file:
        text = file.read().replace(folder, "model")
    with open(f"{folder}/params.yml", "w") as file:
        file.write(text)
    point_to(folder, 3)
    with open(f"{folder}/predicted.json", "w") as file:
        json.dump(found, file, indent=1)
    write_xyz(f"{folder}/frame.xyz")


def point_to(folder, step):
    with open(f"{folder}/checkpoint", "w") as file:
        file.write(f'model_checkpoint_path: "model.ckpt-{step}"\nall_model_checkpoint_paths: "model.ckpt-{step}"\n')


def worst(ours, theirs):
    """The largest difference over one plus the size of the number."""
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return max(abs(a - b) / (1 + abs(b)) for a, b in zip(ours, theirs))


def ours(program, folder):
    """What `pinn predict` says, by PiNN's names."""
    said = subprocess.run([program, "predict", folder, f"{folder}/frame.xyz"], check=True, capture_output=True, text=True)
    lines = said.stdout.splitlines()
    quoted = lambda key: [float(x) for x in lines[1].split(f'{key}="')[1].split('"')[0].split()]
    atoms = [[float(x) for x in line.split()[4:]] for line in lines[2:]]
    if "energy=" in lines[1]:
        energy = float(lines[1].split("energy=")[1].split()[0])
        return dict(energy=[energy], forces=[x for atom in atoms for x in atom], stress=quoted("stress"))
    return dict(charges=[x for atom in atoms for x in atom])


def tensors(prefix):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name).ravel().tolist() for name in reader.get_variable_to_shape_map()}


def check(case, program, place):
    """All directions for one case; returns what differs and by how much."""
    theirs, mine = f"{place}/{case}-pinn", f"{place}/{case}-ours"
    golden(case, theirs)
    shutil.copytree(theirs, mine)
    os.remove(f"{mine}/model.ckpt-6.index")
    predicted = json.load(open(f"{theirs}/predicted.json"))
    compare = lambda got, want: max(worst(got[key], want[key]) for key in got)
    found = {"predict PiNN's step 3": compare(ours(program, mine), predicted["3"])}
    line = [program, "train", mine, "-t", f"{mine}/frame.xyz", "-e", f"{mine}/frame.xyz", "-b", "1", "--train-steps", "6"]
    subprocess.run(line + ["--device", "cpu"], check=True, capture_output=True)
    found["continue PiNN to step 6"] = compare(ours(program, mine), predicted["6"])
    a, b = tensors(f"{mine}/model.ckpt-6"), tensors(f"{theirs}/model.ckpt-6")
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    found["weights and moments of step 6"] = max(worst(a[name], b[name]) for name in a)
    found["PiNN predicts ours"] = compare(ours(program, mine), predict(mine))
    if case != "dipole":
        calc = calculator(mine)
        found["get_calc of ours"] = max(worst(ours(program, mine)[key], calc[key]) for key in calc)
    point_to(theirs, 6)
    train(theirs, 8)
    train(mine, 8)
    a, b = tensors(f"{mine}/model.ckpt-8"), tensors(f"{theirs}/model.ckpt-8")
    found["PiNN continues ours to step 8"] = max(worst(a[name], b[name]) for name in a)
    return found


def main():
    if len(sys.argv) != 4 or sys.argv[2] not in ("golden", "check"):
        sys.exit(__doc__)
    sys.path.insert(0, sys.argv[1])
    import logging

    import tensorflow as tf

    tf.get_logger().setLevel(logging.ERROR)
    if sys.argv[2] == "golden":
        for case in CASES:
            golden(case, os.path.join(sys.argv[3], case))
        return
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        for case in CASES:
            for what, difference in check(case, os.path.abspath(sys.argv[3]), place).items():
                wrong += not difference < TOLERANCE
                print(f"{case:16} {what:32} {difference:.1e}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
