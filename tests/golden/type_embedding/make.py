"""Makes the cases of this folder with DeePMD-kit 3.2 (TensorFlow back end, CPU). Run here: python make.py [CASE]...

Each case is a real `dp --tf train` up to its loop: input, statistics and weights are DeePMD-kit's own. The loop is replaced by one
that notes what it does, on all frames of a system of `../se_e2_a/data` at each step.
  input.json   the training input; paths are relative to that folder
  case.npz     "davg/K", "dstd/K" (of descriptor K, the first slot of each type), "bias", "fparam_avg", ...: the statistics
               "STEP/VARIABLE": the trained variables before each step, under TensorFlow's names, and after the last
               "STEP/gradient/VARIABLE", "STEP/loss", "STEP/rate": the gradient of the loss, the loss and the learning rate
               "energy", "force", "virial", "atom_energy": what is predicted before the first step, in the order of the files
"""

import copy
import json
import os
import shutil
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.abspath(f"{HERE}/../se_e2_a/data")
STEPS = 4

DESCRIPTOR = dict(
    type="se_e2_a", sel=[14, 20], rcut=3.5, rcut_smth=0.5, neuron=[4, 8], axis_neuron=2, type_one_side=True, seed=1,
)
TYPES = dict(neuron=[2, 4], seed=3)
FITTING = dict(neuron=[5, 5], resnet_dt=True, seed=1)
# Prefactors that change with the learning rate are rounded to float32 there.
LOSS = dict(
    type="ener", start_pref_e=0.5, limit_pref_e=0.5, start_pref_f=20, limit_pref_f=20, start_pref_v=0.5, limit_pref_v=0.5
)

# name: what differs from the defaults above
CASES = {
    "one_side": dict(),
    "two_side": dict(
        descriptor=dict(type_one_side=False, resnet_dt=True),
        types=dict(neuron=[3, 6, 4], resnet_dt=True, use_tebd_bias=True, activation_function="sigmoid"),
        fitting=dict(numb_fparam=2, numb_aparam=1),
    ),
    "electrons": dict(
        descriptor=dict(activation_function="gelu_tf"), types=dict(neuron=[5], use_econf_tebd=True, activation_function="linear"),
    ),
    "atom_ener": dict(descriptor=dict(set_davg_zero=True, type_one_side=False), fitting=dict(atom_ener=[-3.25, None])),
    "fixed": dict(descriptor=dict(type_one_side=False), types=dict(trainable=False)),
    "float32": dict(descriptor=dict(precision="float32"), types=dict(precision="float32"), fitting=dict(precision="float32")),
    # Numbers of the net of s are scaled by those of a net of types. Slots without a neighbour have no type there; with the mean of
    # the environment taken as zero they count for nothing.
    "scaled": dict(descriptor=dict(type="se_a_ebd_v2", set_davg_zero=True, type_one_side=False, resnet_dt=True)),
    "scaled_one_side": dict(
        descriptor=dict(type="se_a_ebd_v2", set_davg_zero=True, exclude_types=[[0, 1]], neuron=[2, 4, 7]), types=dict(neuron=[2], use_tebd_bias=True),
    ),
    "hybrid": dict(hybrid=[
        dict(type_one_side=False),
        dict(type="se_e2_r", rcut=2.5, rcut_smth=0.3, sel=[6, 9], neuron=[4], seed=2, axis_neuron=None),
    ]),
}


def case_input(difference):
    """The training input of a case."""
    get = lambda key: copy.deepcopy(difference.get(key, {}))
    descriptor = lambda own: {key: x for key, x in {**DESCRIPTOR, **own}.items() if x is not None}
    parts = [descriptor(own) for own in get("hybrid")]
    return dict(
        model=dict(
            type_map=["O", "H"],
            type_embedding={**TYPES, **get("types")},
            descriptor=dict(type="hybrid", list=parts) if parts else descriptor(get("descriptor")),
            fitting_net={**FITTING, **get("fitting")},
        ),
        learning_rate=dict(type="exp", decay_steps=1, start_lr=0.01, stop_lr=1e-3),
        loss=LOSS,
        training=dict(training_data=dict(systems=["mix"], batch_size=4), numb_steps=STEPS, seed=10, disp_freq=100, save_freq=10000),
    )


def record(trainer, data, folder, config):
    """The training loop, with notes."""
    from deepmd.tf.env import tf

    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/input.json", "w") as f:
        json.dump(config, f, indent=1)
    trainer._init_session()
    # All frames, in an order of DeePMD-kit's own; atoms are sorted by type.
    batch = data.get_batch()
    system = data.data_systems[0]
    n = len(batch["coord"])
    wanted = np.load(f"{DATA}/mix/set.000/coord.npy").reshape(n, -1, 3)[:, system.idx_map]
    given = batch["coord"].reshape(n, -1, 3)
    frames = [int(np.argmin(np.abs(wanted - own).sum((1, 2)))) for own in given]
    assert sorted(frames) == list(range(n)), frames
    feed = trainer.get_feed_dict(batch, is_training=True)
    run = lambda what: trainer.sess.run(what, feed_dict=feed)
    pred, variables = trainer.model_pred, tf.trainable_variables()
    every = {v.name: v for v in tf.global_variables()}
    plain = lambda name: name.split(":")[0]
    arrays = {}
    parts = len(config["model"]["descriptor"].get("list", [0]))
    for k in range(parts):
        suffix = f"_{k}" if "list" in config["model"]["descriptor"] else ""
        for name in ["avg", "std"]:
            value = run(every[f"descrpt_attr{suffix}/t_{name}:0"])
            arrays[f"d{name}/{k}"] = value[:, :1 if kind_of(config, k) == "se_e2_r" else 4]
    arrays["bias"] = run(every["fitting_attr/t_bias_atom_e:0"])
    for name in ["fparam_avg", "fparam_istd", "aparam_avg", "aparam_istd"]:
        if f"fitting_attr/t_{name}:0" in every:
            arrays[name] = run(every[f"fitting_attr/t_{name}:0"])
    for name, key in [("energy", "energy"), ("force", "force"), ("virial", "virial"), ("atom_energy", "atom_ener")]:
        value = run(pred[key]).reshape(n, -1)
        if key in ["force", "atom_ener"]:
            value = value.reshape(n, len(system.idx_map), -1)
            sorted_value, value = value, np.empty_like(value)
            value[:, system.idx_map] = sorted_value
        arrays[name] = np.empty_like(value)
        arrays[name][frames] = value
    gradients = tf.gradients(trainer.l2_l, variables)
    fixed = [v for v in tf.global_variables() if "type_embed_net" in v.name and v not in variables and "Adam" not in v.name]
    for step in range(STEPS + 1):
        for v in list(variables) + fixed:
            arrays[f"{step}/{plain(v.name)}"] = run(v)
        if step == STEPS:
            break
        # An idt that no shortcut takes has no gradient.
        for v, g in zip(variables, gradients):
            if g is not None:
                arrays[f"{step}/gradient/{plain(v.name)}"] = run(g)
        arrays[f"{step}/loss"], arrays[f"{step}/rate"] = run(trainer.l2_l), run(trainer.learning_rate)
        run(trainer.train_op)
    np.savez_compressed(f"{folder}/case.npz", **{key: np.asarray(value, dtype=np.float64) for key, value in arrays.items()})


def kind_of(config, k):
    """The type of a descriptor."""
    descriptor = config["model"]["descriptor"]
    return descriptor.get("list", [descriptor])[k]["type"]


def make_case(name):
    """Runs in a process of its own: TensorFlow has one graph."""
    from deepmd.tf.entrypoints.train import train
    from deepmd.tf.train.trainer import DPTrainer

    config = case_input(CASES[name])
    DPTrainer.train = lambda trainer, train_data=None, valid_data=None: record(trainer, train_data, f"{HERE}/{name}", config)
    with tempfile.TemporaryDirectory() as folder:
        # DeePMD-kit's TensorFlow wants one weight for each atom, its PyTorch has three there.
        shutil.copytree(f"{DATA}/mix", f"{folder}/mix", ignore=shutil.ignore_patterns("atom_pref.npy"))
        os.chdir(folder)
        run = copy.deepcopy(config)
        run["training"]["disp_file"] = f"{folder}/lcurve.out"
        with open(f"{folder}/input.json", "w") as f:
            json.dump(run, f)
        train(
            INPUT=f"{folder}/input.json", init_model=None, restart=None, output=f"{folder}/out.json", init_frz_model=None,
            mpi_log="master", log_level=2, log_path=None, is_compress=False, skip_neighbor_stat=True, finetune=None,
        )


def main():
    os.environ.update(OMP_NUM_THREADS="1", TF_INTRA_OP_PARALLELISM_THREADS="1", TF_INTER_OP_PARALLELISM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    names = sys.argv[1:] or list(CASES)
    failed = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            try:
                make_case(name)
                os._exit(0)
            except BaseException as e:
                print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
                os._exit(1)
        if os.waitpid(pid, 0)[1] != 0:
            failed.append(name)
    print("made", len(names) - len(failed), "cases; failed:", failed or "none")


if __name__ == "__main__":
    main()
