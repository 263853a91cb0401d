"""Writes the cases of this folder with PiNN itself.

Python 3.11 with tensorflow-cpu 2.15.1, numpy 1.26.4, ase 3.22.1, click 7.1.2, and PiNN's source (commit c1cfd5c) on
PYTHONPATH:  python make.py

A case is oracle.json (options, losses, metrics) and arrays.npz (inputs, weights, predictions, gradients, weights after
each of three steps), in the words of PiNN's own parameters.
"""
import copy
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = dict(atom_types=[1, 8], depth=2, pp_nodes=[5, 4], pi_nodes=[6, 3], ii_nodes=[5, 4], out_nodes=[4, 3], n_basis=3)


def keras_adam(learning_rate, **config):
    return {"class_name": "Adam", "config": {"learning_rate": learning_rate, **config}}


def decay(initial, steps, rate, **more):
    config = dict(initial_learning_rate=initial, decay_steps=steps, decay_rate=rate, **more)
    return {"class_name": "ExponentialDecay", "config": config}


CASES = {
    "gauss_f2_swish": dict(
        network=("PiNet", dict(SMALL, basis_type="gaussian", cutoff_type="f2", act="swish", gamma=1.3)),
        model=("potential_model", dict(use_force=True, f_loss_multiplier=0.3, use_stress=True, s_loss_multiplier=7.7,
                                       use_e_per_atom=True, use_e_weight=True, e_loss_multiplier=2.1)),
        optimizer=keras_adam(decay(2e-3, 2, 0.7, staircase=True), global_clipnorm=0.05)),
    "hip_powers_gelu": dict(
        network=("PiNet", dict(SMALL, n_basis=[1, 3, 4], cutoff_type="hip", act="gelu", ii_nodes=[7], rc=3.3)),
        model=("potential_model", dict(use_force=True, use_l2=True, l2_loss_multiplier=0.7, e_scale=1.7,
                                       e_dress={1: 0.3, 8: -1.1}, e_unit=3.0)),
        optimizer=keras_adam(1e-3)),
    "open_softplus": dict(
        network=("PiNet", dict(SMALL, act="softplus", pi_nodes=[3], out_nodes=[], pp_nodes=[6], depth=3)),
        model=("potential_model", dict(use_force=True, log_e_per_atom=True)),
        optimizer=keras_adam(decay(1e-3, 3, 0.5), clipvalue=0.02, beta_1=0.8, beta_2=0.99, epsilon=1e-6),
        open=True),
    "centers_selu": dict(
        network=("PiNet", dict(SMALL, basis_type="gaussian", center=[0.5, 1.5, 2.5], gamma=[1.0, 2.0, 0.5],
                               act="selu", pi_nodes=[4, 5, 3])),
        model=("potential_model", dict(use_stress=True)), optimizer="default"),
    "dipole_weights": dict(
        network=("PiNet", dict(SMALL, act="sigmoid")),
        model=("dipole_model", dict(d_scale=0.8, d_unit=1.5, use_d_per_atom=True, log_d_per_atom=True,
                                    use_d_weight=True, use_l2=True, l2_loss_multiplier=0.01, d_loss_multiplier=1.3)),
        optimizer="default"),
    "dipole_elu": dict(
        network=("PiNet", dict(SMALL, act="elu")),
        model=("dipole_model", dict(use_l2=False, use_d_weight=True)), optimizer="default", open=True),
    "pinet2_rank5": dict(
        network=("PiNet2", dict(SMALL, rank=5)),
        model=("potential_model", dict(use_force=True, use_stress=True)), optimizer="default", dtype="float32"),
    "pinet2_weighted": dict(
        network=("PiNet2", dict(SMALL, rank=5, weighted=True, act="mish")),
        model=("potential_model", dict(use_force=True)), optimizer="default", dtype="float32"),
    "dress_relu": dict(
        network=("PiNet", dict(SMALL, act="relu", depth=1, n_basis=1, rc=3.0, pi_nodes=[5], atom_types=[8])),
        model=("potential_model", dict(use_force=True, use_stress=True, use_e_weight=True, use_l2=True, e_scale=0.4,
                                       e_unit=27.2, e_dress={1: -0.5, 6: 2.5}, f_loss_multiplier=3.3,
                                       l2_loss_multiplier=0.02)),
        optimizer=keras_adam(5e-3, clipnorm=0.1)),
    "hard_sigmoid_f32": dict(
        network=("PiNet", dict(SMALL, act="hard_sigmoid", out_nodes=[3, 4, 5], pp_nodes=[7], ii_nodes=[4, 4, 4],
                               basis_type="gaussian", n_basis=2, gamma=0.7)),
        model=("potential_model", dict(use_force=True, use_e_per_atom=True, log_e_per_atom=True, e_scale=2.0,
                                       e_dress={8: -1.0}, use_l2=True)),
        optimizer=keras_adam(decay(1e-3, 1, 0.9), clipvalue=0.005), dtype="float32"),
    "pinet2_rank3_wide": dict(
        network=("PiNet2", dict(SMALL, rank=3, pp_nodes=[9, 8], pi_nodes=[7], ii_nodes=[6, 8], out_nodes=[5],
                                basis_type="gaussian", n_basis=4, cutoff_type="f2", act="softplus", depth=3)),
        model=("potential_model", dict(use_force=True, use_stress=True, use_e_weight=True, use_l2=True, e_scale=1.5,
                                       s_loss_multiplier=5.0, e_dress={1: 0.2, 8: -0.7}, l2_loss_multiplier=0.3)),
        optimizer=keras_adam(1e-3, global_clipnorm=0.02), dtype="float32"),
    "pinet2_dipole": dict(
        network=("PiNet2", dict(SMALL, rank=5, weighted=True, n_basis=[1, 2], out_nodes=[])),
        model=("dipole_model", dict(d_scale=1.3, use_d_per_atom=True, use_d_weight=True, use_l2=True,
                                    l2_loss_multiplier=0.1)),
        optimizer=keras_adam(1e-3, clipnorm=0.05), dtype="float32"),
    "dipole_open_exponential": dict(
        network=("PiNet", dict(SMALL, act="exponential", cutoff_type="f2", depth=2, pi_nodes=[3])),
        model=("dipole_model", dict(d_scale=0.5, d_unit=3.0, use_d_per_atom=True, use_l2=False)),
        optimizer=keras_adam(decay(1e-3, 2, 0.5, staircase=True), global_clipnorm=1.0), open=True),
    "master_width16": dict(
        network=("PiNet", dict(atom_types=[1, 6, 8], depth=2, rc=3.5)),
        model=("potential_model", dict(use_force=True, use_stress=True, e_loss_multiplier=0.1,
                                       f_loss_multiplier=10.0)), optimizer="default"),
}


def inputs(rng, dtype, is_open):
    """Two structures, one with an element that the network does not know, one atom alone where they are open."""
    sizes = [6, 5]
    n = sum(sizes)
    cell = np.array([[[5.0, 0.2, 0.0], [0.6, 4.6, -0.3], [0.1, 0.4, 5.5]], [[6.0, 0, 0], [0, 5, 0], [0.5, 0, 4.5]]])
    coord = rng.uniform(-1.0, 6.0, (n, 3))
    if is_open:
        coord = rng.uniform(0.0, 4.0, (n, 3))
        coord[2] += 40.0
    found = dict(
        ind_1=np.repeat([0, 1], sizes)[:, None].astype(np.int32),
        elems=np.array([8, 1, 1, 6, 1, 8, 8, 1, 1, 8, 1], np.int32), coord=coord, cell=cell,
        e_data=rng.normal(size=2) * 3, f_data=rng.normal(size=(n, 3)), s_data=rng.normal(size=(2, 3, 3)) * 0.02,
        d_data=rng.uniform(1, 3, 2), e_weight=rng.uniform(0.5, 2, 2), f_weights=rng.uniform(0.5, 2, (n, 3)),
        d_weight=rng.uniform(0.5, 2, 2))
    if is_open:
        del found["cell"], found["s_data"]
    return {k: v if v.dtype == np.int32 else v.astype(dtype) for k, v in found.items()}


def variables(net):
    """Our names of PiNN's variables."""
    found = {}

    def dense(name, layer):
        if isinstance(layer, tf.keras.layers.Dense):
            found[f"{name}.kernel"] = layer.kernel
            if layer.use_bias:
                found[f"{name}.bias"] = layer.bias

    def chain(name, layers):
        for k, layer in enumerate(layers):
            dense(f"{name}.{k}", layer)

    for t, block in enumerate(net.gc_blocks):
        if hasattr(block, "invar_p1_layer"):
            invar = block.invar_p1_layer
            chain(f"block{t}.invar.pi", invar.pi_layer.ff_layer.dense_layers)
            chain(f"block{t}.invar.ii", invar.ii_layer.dense_layers)
            chain(f"block{t}.invar.pp", invar.pp_layer.dense_layers)
            for x in (3, 5):
                equivar = getattr(block, f"equivar_p{x}_layer", None)
                if equivar is None:
                    continue
                chain(f"block{t}.equivar{x}.pp", equivar.pp_layer.dense_layers)
                for part, layer in (("pi", equivar.pi_layer), ("dot", equivar.dot_layer)):
                    for w in ("wi", "wj"):
                        dense(f"block{t}.equivar{x}.{part}.{w}", getattr(layer, w, None))
            for x in (1, 3, 5):
                if hasattr(net, f"res_update{x}"):
                    dense(f"block{t}.res{x}", getattr(net, f"res_update{x}")[t].transform)
        else:
            chain(f"block{t}.pi", block.pi_layer.ff_layer.dense_layers)
            chain(f"block{t}.ii", block.ii_layer.dense_layers)
            dense(f"block{t}.res", net.res_update[t].transform)
        chain(f"block{t}.pp", block.pp_layer.dense_layers)
        chain(f"block{t}.out", net.out_layers[t].ff_layer.dense_layers)
        dense(f"block{t}.out.final", net.out_layers[t].out_units)
    return found


def outputs(tensors, out, name, params):
    """What PiNN predicts, as its model functions do it."""
    from pinn.models import potential
    from pinn.utils import atomic_dress
    if name == "dipole_model":
        q = out[:, None]
        mu = tf.math.unsorted_segment_sum(q * tensors["coord"], tensors["ind_1"][:, 0], 2)
        dipole = tf.sqrt(tf.reduce_sum(mu**2, axis=1) + 1e-6)
        return {"predict_dipole": dipole, "predict_charges": q / params["d_scale"] * params["d_unit"]}
    raw = tf.math.unsorted_segment_sum(out, tensors["ind_1"][:, 0], 2)
    energy = raw / params["e_scale"]
    if params["e_dress"]:
        energy += atomic_dress(tensors, params["e_dress"], dtype=energy.dtype)
    energy *= params["e_unit"]
    found = {"raw_energy": raw, "raw_forces": -potential._get_dense_grad(raw, tensors["coord"]),
             "predict_energy": energy, "predict_forces": -potential._get_dense_grad(energy, tensors["coord"])}
    if "cell" in tensors:
        found["predict_stress"] = potential._get_stress(energy, tensors)
    return found


def loss_of(tensors, out, name, params, mode):
    from pinn.models import dipole, potential
    if name == "potential_model":
        pred = tf.math.unsorted_segment_sum(out, tensors["ind_1"][:, 0], 2)
        return potential.make_metrics(tensors, pred, params, mode)
    q = out[:, None]
    charge = tf.math.unsorted_segment_sum(q, tensors["ind_1"][:, 0], 2)
    mu = tf.math.unsorted_segment_sum(q * tensors["coord"], tensors["ind_1"][:, 0], 2)
    mu = tf.sqrt(tf.reduce_sum(mu**2, axis=1) + 1e-6)
    return dipole.make_metrics(tensors, mu, charge, params, mode)


def make(name, case, seed):
    import pinn
    from pinn.models import dipole, potential
    from pinn.models.base import get_train_op
    from pinn.optimizers import default_adam
    from pinn.utils import connect_dist_grad
    dtype = case.get("dtype", "float64")
    tf.keras.backend.set_floatx(dtype)
    rng = np.random.default_rng(seed)
    data = inputs(rng, dtype, case.get("open", False))
    model_name, given = case["model"]
    defaults = potential.default_params if model_name == "potential_model" else dipole.default_params
    params = dict(defaults, **given)
    network = {"name": case["network"][0], "params": case["network"][1]}
    arrays = {f"inputs/{k}": v for k, v in data.items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.create_global_step()
        net = pinn.get_network(json.loads(json.dumps(network)))
        tensors = net.preprocess({k: tf.constant(v) for k, v in data.items()})
        connect_dist_grad(tensors)
        out = net(tensors)
        named = variables(net)
        train = loss_of(tensors, out, model_name, params, tf.estimator.ModeKeys.TRAIN)
        loss = tf.reduce_sum(train.LOSS)
        grads = tf.gradients(loss, list(named.values()))
        # Keras puts objects into what it is given.
        optimizer = copy.deepcopy(default_adam if case["optimizer"] == "default" else case["optimizer"])
        step = get_train_op(optimizer, train, net.trainable_variables)
        found = dict(outputs(tensors, out, model_name, params), atomic_output=out)
        session.run(tf.compat.v1.global_variables_initializer())
        for variable in named.values():
            shape = variable.shape.as_list()
            limit = np.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.3
            session.run(variable.assign(rng.uniform(-limit, limit, shape).astype(dtype)))
        arrays.update(session.run(found))

        def dump(suffix):
            for k, v in session.run(named).items():
                arrays[f"weights{suffix}/{k}"] = v
            known = {k: g for k, g in zip(named, grads) if g is not None}
            for k, v in session.run(known).items():
                arrays[f"grads{suffix}/{k}"] = v
            return float(session.run(loss))

        losses = [dump("")]
        for k in range(1, 4):
            session.run(step)
            losses.append(dump(f"_after_{k}"))
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    np.savez_compressed(os.path.join(folder, "arrays.npz"), **arrays)
    about = dict(network=network, model=dict(name=model_name, params=given), optimizer=case["optimizer"], dtype=dtype,
                 seed=seed, loss_at_step=losses, versions=dict(tensorflow=tf.__version__, numpy=np.__version__,
                                                               pinn_commit="c1cfd5c"))
    with open(os.path.join(folder, "oracle.json"), "w") as f:
        json.dump(about, f, indent=1)
    print(name, losses)


if __name__ == "__main__":
    for seed, (name, case) in enumerate(CASES.items()):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, case, seed + 1)
