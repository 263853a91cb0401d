"""Makes the cases of this folder with DeePMD-kit 3.2 (PyTorch backend, CPU). Run here: python make.py [CASE]...

Each case is a real `dp --pt train` up to its loop: input, statistics and weights are DeePMD-kit's own. The loop is
replaced by one that notes what it does. Boundaries are those of the data: a system with a file `nopbc` is open.
  input.json         the training input; paths are relative to data/
  initial.dp         the model before the first step
  predict.npz        energy, force, virial, atom_energy of all frames of the first system; of a model that predicts no energy its
                     output and atom_output
  grad0.npz          d loss / d parameter at step 0, before any clipping
  trace.json         system, frames, learning rate, loss and errors of each step; with LKF the atoms of each force update too, and
                     where batches mix systems the system of each frame
  final_predict.npz  the prediction after the last step
  steepness          where there is one, the embedding nets' parameters are those of the seed times this number
  like               in place of initial.dp and predict.npz: the case that has the same two
"""

import contextlib
import copy
import json
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 12

DESCRIPTOR = dict(
    type="se_e2_a", sel=[14, 20], rcut=3.5, rcut_smth=0.5, neuron=[3, 6], axis_neuron=2, type_one_side=True,
    precision="float64", seed=1,
)
FITTING = dict(neuron=[5, 5], resnet_dt=True, precision="float64", seed=1)
RATE = dict(type="exp", decay_steps=2, start_lr=0.01, stop_lr=1e-4)
LOSS = dict(
    type="ener", start_pref_e=0.5, limit_pref_e=1, start_pref_f=20, limit_pref_f=1, start_pref_v=0.5, limit_pref_v=1
)
ATOMS = dict(start_pref_ae=2, limit_pref_ae=1)
WEIGHTS = dict(start_pref_pf=3, limit_pref_pf=1)
GENERALIZED = dict(start_pref_gf=4, limit_pref_gf=2, numb_generalized_coord=2)
# Losses and fitting nets of models that predict no energy.
DOS_LOSS = dict(type="dos", start_pref_dos=0.5, limit_pref_dos=1, start_pref_cdf=2, limit_pref_cdf=0.5, start_pref_acdf=0.3, limit_pref_acdf=0.1)
DOS = dict(type="dos", numb_dos=5)
METRIC = ["mape", "smooth_mae", "rmse", "mae", "mse"]
PROPERTY = dict(type="property", property_name="gap", task_dim=2)
TENSOR_LOSS = dict(type="tensor", pref=0.7, pref_atomic=0.4)
DIPOLE = dict(type="dipole")
POLAR = dict(type="polar")
# None: the key is left out.
RADIAL = dict(type="se_e2_r", axis_neuron=None, type_one_side=None)
ANGLES = dict(type="se_e3", axis_neuron=None, type_one_side=None)
# Slots for all types together; small nets.
ATTENTION = dict(type="se_atten", sel=30, attn=4, tebd_dim=3)
PLAIN = dict(type="se_atten_v2", sel=30, attn=4, attn_layer=0, tebd_dim=4)
# DeePMD-kit's PyTorch takes 0.1 for smin_alpha whatever the input says.
TABLE = dict(use_srtab="table.txt", smin_alpha=0.1, sw_rmin=1.3, sw_rmax=2.1)


def both(**keys):
    """The same keys in the descriptor and in the fitting net."""
    return dict(descriptor=keys, fitting=keys)


# name: what differs from the defaults above
CASES = {
    "one_side_virial": dict(),
    "two_side_gelu": dict(
        descriptor=dict(type_one_side=False, resnet_dt=True, activation_function="gelu"),
        fitting=dict(activation_function="gelu"),
    ),
    # Nets that no series describes.
    "two_side_relu": dict(descriptor=dict(type_one_side=False, resnet_dt=True, activation_function="relu")),
    "relu6_float32": dict(descriptor=dict(activation_function="relu6", precision="float32"), fitting=dict(precision="float32")),
    # Embedding nets as steep as training makes them: series on several panels.
    "steep_one_side": dict(steepness=6.0, descriptor=dict(neuron=[4, 8])),
    "steep_two_side": dict(steepness=8.0, descriptor=dict(type_one_side=False, resnet_dt=True)),
    "steep_float32": dict(steepness=5.0, **both(precision="float32")),
    "small_sel": dict(descriptor=dict(sel=[3, 4])),
    "open_boundaries": dict(systems=["open"], loss=dict(start_pref_v=0, limit_pref_v=0)),
    "exclude_davg_zero": dict(descriptor=dict(exclude_types=[[0, 1]], set_davg_zero=True)),
    "exclude_two_side": dict(descriptor=dict(exclude_types=[[0, 0]], type_one_side=False)),
    "env_protection": dict(descriptor=dict(env_protection=0.125)),
    "fparam_aparam": dict(fitting=dict(numb_fparam=2, numb_aparam=1)),
    "float32": both(precision="float32"),
    # The PyTorch backend takes atom_ener for the net only; the TensorFlow backend keeps it as the bias too, which is
    # what the key promises. preset_out_bias makes the two the same; it is not noted in input.json.
    "atom_ener": dict(
        fitting=dict(atom_ener=[-3.25, None]), descriptor=dict(set_davg_zero=True), preset_out_bias=dict(energy=[-3.25, None])
    ),
    "mixed_type": dict(systems=["mixed"]),
    "mixed_type_mae": dict(systems=["mixed"], loss=dict(loss_func="mae", f_use_norm=True, **ATOMS)),
    "mixed_type_huber": dict(systems=["mixed"], loss=dict(use_huber=True, huber_delta=0.4, **ATOMS)),
    "two_systems": dict(systems=["mix", "open"]),
    "fixed_descriptor": dict(descriptor=dict(trainable=False), fitting=dict(trainable=True)),
    "loss_huber": dict(loss=dict(use_huber=True, huber_delta=[0.05, 0.5, 0.02], **ATOMS), **both(activation_function="softplus")),
    "loss_huber_norm": dict(loss=dict(use_huber=True, huber_delta=0.75, f_use_norm=True)),
    "loss_mae": dict(loss=dict(loss_func="mae", **ATOMS, **WEIGHTS), **both(activation_function="sigmoid")),
    "loss_mae_norm": dict(loss=dict(loss_func="mae", f_use_norm=True)),
    "loss_relative_f": dict(loss=dict(relative_f=0.5, **WEIGHTS)),
    "loss_relative_f_mae": dict(loss=dict(relative_f=0.5, loss_func="mae")),
    "loss_atom_pref": dict(loss=WEIGHTS, **both(activation_function="gelu_tf")),
    "loss_atom_ener": dict(loss=ATOMS, **both(activation_function="silu")),
    # The derivatives of positions by two generalised coordinates; the second with virtual atoms, and without squares elsewhere.
    "loss_generalized_force": dict(loss=GENERALIZED),
    "loss_generalized_force_mixed": dict(
        systems=["mixed"], loss=dict(GENERALIZED, start_pref_f=0, loss_func="mae"), model=dict(atom_exclude_types=[0]),
    ),
    # Batches of frames of systems with eight and with five atoms.
    "mixed_batches": dict(systems=["mix", "few"], batch_size="mixed:3", loss=ATOMS),
    "mixed_batches_atten": dict(
        systems=["mix", "few"], batch_size="mixed:4", descriptor=ATTENTION, loss=dict(use_huber=True, huber_delta=0.4),
    ),
    "loss_intensive": dict(loss=dict(intensive_ener_virial=True)),
    "adamw": dict(optimizer=dict(type="AdamW", weight_decay=0.1)),
    "adam_decay": dict(optimizer=dict(type="Adam", weight_decay=0.05, adam_beta1=0.8, adam_beta2=0.99)),
    # Distances alone: no axis_neuron, and type_one_side (false by default) does not matter.
    "se_e2_r": dict(descriptor=RADIAL),
    "se_e2_r_exclude": dict(descriptor=dict(exclude_types=[[0, 1]], resnet_dt=True, env_protection=0.125, **RADIAL)),
    "se_e2_r_float32": dict(descriptor=dict(precision="float32", **RADIAL), fitting=dict(precision="float32")),
    # Neighbours two by two.
    "se_e3": dict(descriptor=ANGLES),
    "se_e3_exclude": dict(
        descriptor=dict(exclude_types=[[0, 1]], resnet_dt=True, env_protection=0.125, sel=[3, 9], **ANGLES), systems=["mixed"]
    ),
    "se_e3_gelu": dict(descriptor=dict(set_davg_zero=True, activation_function="gelu", neuron=[2, 4, 4], seed=None, **ANGLES)),
    "se_e3_float32": dict(descriptor=dict(precision="float32", **ANGLES), fitting=dict(precision="float32")),
    "hybrid_e3": dict(hybrid=[dict(rcut=2.6, sel=[4, 6], seed=3, **ANGLES), dict()]),
    # Attention between the neighbours; types by an embedding, and one fitting net for all of them.
    "se_atten": dict(descriptor=dict(type_one_side=False, **ATTENTION)),
    "se_atten_smooth": dict(
        descriptor=dict(smooth_type_embedding=True, set_davg_zero=False, use_tebd_bias=True, resnet_dt=True, **ATTENTION)
    ),
    "se_atten_strip": dict(
        descriptor=dict(
            tebd_input_mode="strip", attn_layer=1, attn_dotr=False, normalize=False, temperature=0.7, concat_output_tebd=False,
            set_davg_zero=False, exclude_types=[[0, 1]], **ATTENTION,
        ),
        systems=["mixed"],
    ),
    "se_atten_strip_smooth": dict(
        descriptor=dict(
            tebd_input_mode="strip", smooth_type_embedding=True, type_one_side=False, scaling_factor=2.5, ln_eps=1e-3,
            use_econf_tebd=True, env_protection=0.125, seed=None, **ATTENTION,
        ),
        fitting=dict(numb_fparam=2, numb_aparam=1),
    ),
    # Fewer slots than neighbours; the normalisation of layers is trained whatever trainable_ln says.
    "se_atten_small_sel": dict(descriptor=dict(ATTENTION, sel=9, trainable_ln=False, activation_function="gelu", attn_layer=3)),
    "se_atten_v2": dict(descriptor=dict(ATTENTION, type="se_atten_v2", type_one_side=False), systems=["mix", "open"]),
    "se_atten_v2_zero": dict(descriptor=dict(ATTENTION, type="se_atten_v2", set_davg_zero=True, exclude_types=[[0, 0]])),
    "se_atten_v2_plain": dict(descriptor=dict(type_one_side=False, **PLAIN), model=dict(pair_exclude_types=[[0, 1]])),
    "se_atten_float32": dict(descriptor=dict(precision="float32", smooth_type_embedding=True, **ATTENTION), fitting=dict(precision="float32")),
    "se_atten_atom_ener": dict(
        fitting=dict(atom_ener=[-3.25, None]), descriptor=dict(attn_layer=0, **ATTENTION), preset_out_bias=dict(energy=[-3.25, None])
    ),
    "hybrid_atten": dict(hybrid=[dict(ATTENTION, sel=25), dict(seed=2, sel=[8, 12])]),
    # Other fitting nets behind them.
    "se_atten_dos": dict(descriptor=dict(ATTENTION, attn_layer=1), systems=["mixed"], fitting=DOS, loss=DOS_LOSS),
    "se_atten_property": dict(descriptor=dict(ATTENTION, attn_layer=0), fitting=dict(intensive=True, **PROPERTY), loss=dict(type="property", loss_func="mse")),
    "se_atten_dipole": dict(descriptor=ATTENTION, fitting=DIPOLE, loss=TENSOR_LOSS),
    "se_atten_polar": dict(
        descriptor=dict(ATTENTION, attn_layer=1, set_davg_zero=False, type_one_side=False),
        systems=["mixed"], fitting=POLAR, loss=TENSOR_LOSS,
    ),
    "se_atten_v2_dipole": dict(descriptor=dict(type_one_side=False, **PLAIN), fitting=DIPOLE, loss=TENSOR_LOSS),
    "se_atten_v2_property": dict(
        descriptor=dict(ATTENTION, type="se_atten_v2", precision="float32"),
        fitting=dict(precision="float32", **PROPERTY), loss=dict(type="property", loss_func="mse"),
    ),
    "se_e3_dos": dict(descriptor=ANGLES, fitting=DOS, loss=DOS_LOSS),
    "se_e3_property": dict(descriptor=dict(exclude_types=[[0, 1]], **ANGLES), systems=["mixed"], fitting=PROPERTY, loss=dict(type="property")),
    # Descriptors one after another, each with its own cutoff, slots and nets.
    "hybrid": dict(hybrid=[dict(), dict(rcut=2.5, rcut_smth=0.3, sel=[6, 9], neuron=[4], seed=2, **RADIAL)]),
    # Too few slots, and excluded pairs beyond the cutoff of their descriptor; nets without a seed.
    "hybrid_exclude": dict(hybrid=[
        dict(rcut=2.8, sel=[3, 7], exclude_types=[[0, 0]], type_one_side=False),
        dict(rcut=3.6, sel=[5, 4], exclude_types=[[0, 1]], resnet_dt=True, seed=None, **RADIAL),
        dict(rcut=2.4, rcut_smth=1.0, sel=[4, 4], neuron=[2, 4], axis_neuron=3, exclude_types=[[0, 1]], seed=3),
        dict(rcut=2.6, sel=[4, 5], neuron=[3], exclude_types=[[1, 1]], seed=4, **RADIAL),
    ], fitting=dict(numb_fparam=2, numb_aparam=1)),
    "hybrid_float32": dict(
        hybrid=[dict(precision="float32", rcut=3.0, seed=2, **RADIAL), dict(precision="float32", rcut_smth=0.2)],
        fitting=dict(precision="float32"),
    ),
    # Slots of pairs that are no neighbours are empty; those of a descriptor's excluded pairs are not.
    "pair_exclude": dict(
        model=dict(pair_exclude_types=[[0, 1]]),
        hybrid=[dict(exclude_types=[[1, 1]]), dict(rcut=2.5, sel=[2, 3], neuron=[4], seed=2, **RADIAL)],
    ),
    "atom_exclude": dict(model=dict(atom_exclude_types=[1]), loss=dict(**ATOMS, **WEIGHTS)),
    "atom_exclude_mae": dict(model=dict(atom_exclude_types=[0]), systems=["mixed"], loss=dict(loss_func="mae")),
    "preset_bias": dict(model=dict(preset_out_bias=dict(energy=[None, -2.5]))),
    "default_fparam": dict(systems=["open"], loss=dict(start_pref_v=0, limit_pref_v=0), fitting=dict(numb_fparam=2, default_fparam=[0.5, -1.0])),
    "aparam_as_mask": dict(fitting=dict(numb_aparam=1, use_aparam_as_mask=True)),
    # A table of pair energies at short range: one that goes on as zeros, and one that goes on as a curve.
    "srtab": dict(descriptor=dict(type_one_side=False, **ATTENTION), model=TABLE),
    "srtab_plain": dict(
        descriptor=dict(set_davg_zero=True, **PLAIN), fitting=dict(numb_fparam=2, numb_aparam=1), loss=ATOMS,
        model=dict(TABLE, use_srtab="table_cut.txt", sw_rmin=0.7, sw_rmax=2.3, pair_exclude_types=[[0, 1]]),
    ),
    "srtab_mixed": dict(
        descriptor=dict(ATTENTION, sel=9), model=dict(TABLE, atom_exclude_types=[1]), systems=["mixed"], training=dict(gradient_max_norm=0.5),
    ),
    "srtab_float32": dict(
        descriptor=dict(precision="float32", set_davg_zero=True, **PLAIN), fitting=dict(precision="float32"), model=TABLE,
    ),
    # DeePMD-kit rounds to bfloat16, float16 and float32 inside these two; here their arithmetic is float64 throughout.
    "hybrid_muon": dict(optimizer=dict(type="HybridMuon")),
    "hybrid_muon_plain": dict(
        optimizer=dict(type="HybridMuon", enable_gram=False, magma_muon=False, lr_adjust=4.0, weight_decay=0.1, momentum=0.8),
        training=dict(gradient_max_norm=0.5),
    ),
    "ada_muon": dict(optimizer=dict(type="AdaMuon")),
    "ada_muon_rms": dict(optimizer=dict(type="AdaMuon", lr_adjust=0.0, weight_decay=0.1, muon_momentum=0.9, adam_beta1=0.8)),
    # Blocks of several tensors, and tensors of several blocks.
    "lkf": dict(optimizer=dict(type="LKF", kf_blocksize=25, kf_start_pref_e=2.0, kf_limit_pref_f=3.0)),
    "lkf_one_block": dict(optimizer=dict(type="LKF"), descriptor=dict(type_one_side=False)),
    "lkf_fixed_descriptor": dict(
        optimizer=dict(type="LKF", kf_blocksize=40), descriptor=dict(trainable=False), fitting=dict(trainable=True)
    ),
    "dos": dict(fitting=DOS, loss=dict(type="dos")),
    "dos_all": dict(fitting=dict(numb_fparam=2, numb_aparam=1, activation_function="gelu", **DOS), loss=DOS_LOSS),
    # The second system has no labels of atoms.
    "dos_two_systems": dict(
        systems=["mix", "open"], fitting=DOS, loss=DOS_LOSS, descriptor=dict(type_one_side=False, resnet_dt=True)
    ),
    "dos_mixed": dict(systems=["mixed"], fitting=dict(rcond=1e-3, **DOS), loss=DOS_LOSS, model=dict(atom_exclude_types=[0])),
    "dos_hybrid": dict(
        hybrid=[dict(), dict(rcut=2.5, rcut_smth=0.3, sel=[6, 9], neuron=[4], seed=2, **RADIAL)], fitting=DOS,
        loss=dict(DOS_LOSS, start_pref_ados=0, start_pref_acdf=0), model=dict(preset_out_bias=dict(dos=[None, [0.5, -1, 0, 2, 1]])),
    ),
    "dos_float32": dict(descriptor=dict(precision="float32"), fitting=dict(precision="float32", **DOS), loss=DOS_LOSS),
    "property": dict(fitting=PROPERTY, loss=dict(type="property", metric=METRIC)),
    "property_intensive": dict(
        systems=["mix", "open"], fitting=dict(intensive=True, **PROPERTY),
        loss=dict(type="property", loss_func="mae", metric=["rmse"]),
    ),
    "property_alike": dict(
        fitting=dict(distinguish_types=False, numb_fparam=2, **PROPERTY), descriptor=RADIAL,
        loss=dict(type="property", loss_func="mse"),
    ),
    "property_alike_intensive": dict(
        fitting=dict(distinguish_types=False, intensive=True, **PROPERTY), loss=dict(type="property", loss_func="rmse"),
    ),
    "property_mixed": dict(
        systems=["mixed"], fitting=PROPERTY, loss=dict(type="property", loss_func="mape", metric=METRIC),
        model=dict(atom_exclude_types=[0]),
    ),
    "property_mixed_mean": dict(
        systems=["mixed"], fitting=dict(intensive=True, **PROPERTY), loss=dict(type="property", beta=0.3),
    ),
    "property_one": dict(
        fitting=dict(type="property", property_name="one", neuron=[6]), loss=dict(type="property", loss_func="mse"),
    ),
    "property_float32": dict(
        descriptor=dict(precision="float32"), fitting=dict(precision="float32", **PROPERTY), loss=dict(type="property"),
    ),
    "dipole": dict(fitting=DIPOLE, loss=TENSOR_LOSS),
    # The second system has no labels of atoms.
    "dipole_two_systems": dict(
        systems=["mix", "open"], fitting=dict(sel_type=[0], **DIPOLE),
        loss=TENSOR_LOSS, descriptor=dict(type_one_side=False, resnet_dt=True, exclude_types=[[0, 0]]),
    ),
    "dipole_mixed": dict(
        systems=["mixed"], fitting=dict(activation_function="gelu", **DIPOLE), loss=dict(TENSOR_LOSS, pref=0),
        model=dict(atom_exclude_types=[0]),
    ),
    "dipole_float32": dict(descriptor=dict(precision="float32"), fitting=dict(precision="float32", **DIPOLE), loss=TENSOR_LOSS),
    # Files of atoms hold labels of oxygen alone. DeePMD-kit's PyTorch reads them where it is told so, and leaves the others out by
    # atom_exclude_types; neither is noted in input.json.
    "dipole_selected": dict(systems=["part"], selected=[0], fitting=dict(sel_type=[0], **DIPOLE), loss=TENSOR_LOSS),
    "polar_selected": dict(
        systems=["part", "mix"], selected=[0], fitting=dict(sel_type=0, fit_diag=False, **POLAR), loss=TENSOR_LOSS,
    ),
    # Directions of all descriptors of a hybrid, one after another.
    "dipole_hybrid": dict(
        hybrid=[dict(), dict(rcut=2.6, sel=[6, 9], neuron=[4], axis_neuron=3, seed=2, type_one_side=False)],
        fitting=DIPOLE, loss=TENSOR_LOSS,
    ),
    "polar_hybrid": dict(
        hybrid=[dict(rcut=2.6, sel=[6, 9], neuron=[2, 4], seed=2), dict(), dict(rcut=3.0, neuron=[3], seed=3)],
        fitting=dict(scale=[1.5, 0.25], **POLAR), loss=TENSOR_LOSS, systems=["mixed"],
    ),
    "polar_hybrid_whole": dict(
        hybrid=[dict(ATTENTION, sel=25, attn_layer=1), dict(seed=2, sel=[8, 12])], fitting=dict(fit_diag=False, **POLAR),
        loss=TENSOR_LOSS,
    ),
    "polar": dict(fitting=POLAR, loss=TENSOR_LOSS),
    "polar_whole": dict(
        systems=["mix", "open"], fitting=dict(fit_diag=False, scale=[1.5, 0.25], **POLAR), loss=TENSOR_LOSS,
        descriptor=dict(type_one_side=False, resnet_dt=True, exclude_types=[[0, 0]]),
    ),
    "polar_not_shifted": dict(
        fitting=dict(shift_diag=False, scale=2.0, numb_fparam=2, numb_aparam=1, **POLAR), loss=dict(TENSOR_LOSS, pref_atomic=0),
    ),
    "polar_mixed": dict(
        systems=["mixed"], fitting=dict(fit_diag=False, **POLAR), loss=TENSOR_LOSS, model=dict(atom_exclude_types=[0]),
    ),
    "polar_float32": dict(descriptor=dict(precision="float32"), fitting=dict(precision="float32", **POLAR), loss=TENSOR_LOSS),
    "clipped": dict(training=dict(gradient_max_norm=0.5)),
    "rate_cosine": dict(rate=dict(type="cosine", start_lr=0.01, stop_lr=1e-4)),
    "rate_wsd": dict(rate=dict(type="wsd", start_lr=0.01, stop_lr=1e-4, decay_phase_ratio=0.5)),
    "rate_wsd_cosine": dict(
        rate=dict(type="wsd", start_lr=0.01, stop_lr=1e-4, decay_phase_ratio=0.5, decay_type="cosine", warmup_steps=3)
    ),
    "rate_warm_up": dict(
        rate=dict(type="exp", decay_steps=3, start_lr=0.01, stop_lr=1e-4, smooth=True, warmup_steps=4, warmup_start_factor=0.1)
    ),
}


def case_input(difference):
    """The training input of a case."""
    get = lambda key: copy.deepcopy(difference.get(key, {}))
    descriptor = lambda own: {key: x for key, x in {**DESCRIPTOR, **own}.items() if x is not None}
    parts = [descriptor(own) for own in get("hybrid")]
    config = dict(
        model=dict(
            type_map=["O", "H"],
            descriptor=dict(type="hybrid", list=parts) if parts else descriptor(get("descriptor")),
            fitting_net={**FITTING, **get("fitting")},
            data_stat_nbatch=4,
            **get("model"),
        ),
        learning_rate=get("rate") or copy.deepcopy(RATE),
        loss=get("loss") if "type" in get("loss") else {**LOSS, **get("loss")},
        training=dict(
            training_data=dict(systems=get("systems") or ["mix"], batch_size=get("batch_size") or 2),
            numb_steps=STEPS, seed=10, disp_freq=100, save_freq=10000, **get("training"),
        ),
    )
    if "optimizer" in difference:
        config["optimizer"] = get("optimizer")
    return config


def make_data():
    """Small systems with random labels: they test derivatives, not learning."""
    rng = np.random.default_rng(11)
    n_frames, n_atoms = 4, 8
    types = np.array([0, 1, 1, 0, 1, 1, 0, 1])
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)
    for name in ["mix", "open", "mixed"]:
        coord = 2.2 * grid + rng.uniform(-0.4, 0.4, (n_frames, n_atoms, 3))
        arrays = dict(
            coord=coord, energy=rng.normal(-20, 2, n_frames), force=rng.normal(0, 1, (n_frames, n_atoms, 3)),
            atom_ener=rng.normal(-2.5, 0.5, (n_frames, n_atoms)),
        )
        if name != "open":
            arrays["box"] = np.diag([4.4, 4.6, 4.5]) + rng.uniform(-0.4, 0.4, (n_frames, 3, 3))
            arrays["virial"] = rng.normal(0, 1, (n_frames, 9))
        if name == "mix":
            # DeePMD-kit 3.2 reads weights of atoms one frame at a time without repeating them: three for each.
            arrays["atom_pref"] = rng.uniform(0, 2, (n_frames, n_atoms, 3))
            arrays["fparam"] = rng.normal(1, 2, (n_frames, 2))
            arrays["aparam"] = rng.normal(-1, 0.5, (n_frames, n_atoms))
        if name == "mixed":
            real = np.array([rng.permutation(types) for _ in range(n_frames)])
            real[1, 6:], real[2, 7:] = -1, -1
            for key in ["force", "atom_ener"]:
                arrays[key][real < 0] = 0
            arrays["real_atom_types"] = real
        os.makedirs(f"{HERE}/data/{name}/set.000", exist_ok=True)
        for key, value in arrays.items():
            np.save(f"{HERE}/data/{name}/set.000/{key}.npy", value.reshape(n_frames, -1))
        # The data counts H before O, the models the other way round.
        np.savetxt(f"{HERE}/data/{name}/type.raw", np.zeros(n_atoms) if name == "mixed" else 1 - types, fmt="%d")
        if name == "mixed":
            np.save(f"{HERE}/data/{name}/set.000/real_atom_types.npy", np.where(real < 0, -1, 1 - real).astype(np.int32))
        with open(f"{HERE}/data/{name}/type_map.raw", "w") as f:
            f.write("H\nO\n")
        make_outputs(name, n_frames, n_atoms)
        if name == "open":
            open(f"{HERE}/data/{name}/nopbc", "w").close()


def make_more_data():
    """What came later: systems of fewer atoms and of labels of few atoms, derivatives of positions."""
    rng = np.random.default_rng(17)
    n_frames, n_atoms = 3, 5
    types = np.array([1, 0, 1, 0, 1])
    coord = 2.2 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 1, 1]]) + rng.uniform(-0.3, 0.3, (n_frames, n_atoms, 3))
    few = dict(
        coord=coord, box=np.diag([4.4, 4.6, 4.5]) + rng.uniform(-0.3, 0.3, (n_frames, 3, 3)), energy=rng.normal(-13, 2, n_frames),
        force=rng.normal(0, 1, (n_frames, n_atoms, 3)), virial=rng.normal(0, 1, (n_frames, 9)),
        atom_ener=rng.normal(-2.5, 0.5, (n_frames, n_atoms)),
    )
    write_system("few", types, few)
    mix = lambda key: np.load(f"{HERE}/data/mix/set.000/{key}.npy")
    types = np.loadtxt(f"{HERE}/data/mix/type.raw", dtype=int)
    of_oxygen = lambda key: mix(key).reshape(len(mix("coord")), len(types), -1)[:, types == 1]
    same = ["coord", "box", "dipole", "polarizability"]
    write_system("part", 1 - types, {key: mix(key) for key in same} | {
        key: of_oxygen(key) for key in ["atomic_dipole", "atomic_polarizability"]
    })
    for name in ["mix", "mixed"]:
        np.save(f"{HERE}/data/{name}/set.000/drdq.npy", rng.normal(0, 0.3, (4, 8 * 3 * 2)))


def write_system(name, types, arrays):
    """A system; `types` are those of the models, and the data counts them the other way round."""
    os.makedirs(f"{HERE}/data/{name}/set.000", exist_ok=True)
    for key, value in arrays.items():
        np.save(f"{HERE}/data/{name}/set.000/{key}.npy", value.reshape(len(arrays["coord"]), -1))
    np.savetxt(f"{HERE}/data/{name}/type.raw", 1 - types, fmt="%d")
    with open(f"{HERE}/data/{name}/type_map.raw", "w") as f:
        f.write("H\nO\n")


def make_tables():
    """Pair energies of O-O, O-H and H-H that repel: up to zero, and cut off before."""
    r = 0.02 * np.arange(1, 161)
    energy = np.stack([a / r * np.exp(-r / b) for a, b in [(30, 0.8), (10, 0.5), (4, 0.9)]], 1)
    smooth = np.where(r < 3.19, 1 - (r / 3.2) ** 4, 0)[:, None]
    np.savetxt(f"{HERE}/data/table.txt", np.hstack([r[:, None], energy * smooth]), fmt="%.10g")
    np.savetxt(f"{HERE}/data/table_cut.txt", np.hstack([r[:, None], energy])[:120], fmt="%.10g")


def make_outputs(name, n_frames, n_atoms):
    """Labels that are no energies."""
    rng = np.random.default_rng([13, len(name)])
    arrays = dict(
        dos=rng.normal(8, 2, (n_frames, 5)), gap=rng.normal([-3, 20], [1, 4], (n_frames, 2)), one=rng.normal(5, 1, n_frames),
    )
    if name != "open":
        arrays["atom_dos"] = rng.normal(1, 0.5, (n_frames, n_atoms, 5))
    for key, width in [("dipole", 3), ("polarizability", 9)]:
        arrays[key] = rng.normal(4, 2, (n_frames, width))
        if name != "open":
            arrays[f"atomic_{key}"] = rng.normal(0.5, 0.5, (n_frames, n_atoms, width))
    for key, value in arrays.items():
        np.save(f"{HERE}/data/{name}/set.000/{key}.npy", value.reshape(n_frames, -1))


def predict(trainer, path):
    """The model on all frames of the first system."""
    import torch

    system = trainer.training_dataloader.dataset.systems[0]
    out = {}
    # DeePMD-kit sorts atoms by type when it reads them.
    order = np.arange(system._natoms) if system.mixed_type else system.data_system.idx_map
    for k in range(len(system)):
        frame = system[k]
        tensor = lambda key, *shape: torch.as_tensor(np.asarray(frame[key]), dtype=torch.float64).reshape(1, *shape)
        got = trainer.model(
            tensor("coord", -1, 3).requires_grad_(True),
            torch.as_tensor(np.asarray(frame["atype"])).reshape(1, -1).long(),
            box=None if frame["box"] is None else tensor("box", 9),
            fparam=tensor("fparam", -1) if frame.get("find_fparam") else None,
            aparam=tensor("aparam", -1, 1) if frame.get("find_aparam") else None,
        )
        of_energy = {key: key for key in ["energy", "force", "virial", "atom_energy"]}
        of_tensor = {key: "output" if key.startswith("global_") else "atom_output" for key in ["dipole", "global_dipole", "polar", "global_polar"] if key in got}
        of_output = of_tensor or {key: "atom_output" if key.startswith("atom_") else "output" for key in got if key != "mask"}
        for name, key in (of_energy if "energy" in got else of_output).items():
            values = got[name].detach().double().numpy()[0]
            if key in ["force", "atom_energy", "atom_output"]:
                sorted_values, values = values, np.empty_like(values)
                values[order] = sorted_values
            out.setdefault(key, []).append(values.reshape(1, -1))
    np.savez_compressed(path, frames=np.arange(len(system)), **{k: np.concatenate(v) for k, v in out.items()})


@contextlib.contextmanager
def all_float64():
    """DeePMD-kit's own code, with float64 in place of every shorter type that it asks for."""
    import torch
    from deepmd.pt.optimizer.hybrid_muon import _GramNewtonSchulzOrthogonalizer as Gram

    names = ["bfloat16", "float16", "float32"]
    kept = {name: getattr(torch, name) for name in names}, torch.Tensor.float, Gram.__call__
    for name in names:
        setattr(torch, name, torch.float64)
    torch.Tensor.float = torch.Tensor.double
    Gram.__call__ = lambda self, x: self._orthogonalize_impl(x)  # not compiled
    try:
        yield
    finally:
        for name, value in kept[0].items():
            setattr(torch, name, value)
        torch.Tensor.float, Gram.__call__ = kept[1:]


def kalman_step(trainer, inputs, labels, step, row):
    """A step of LKF as DeePMD-kit's trainer makes it; notes the atoms whose forces it looks at."""
    from deepmd.pt.optimizer import KFOptimizerWrapper

    wrapper = KFOptimizerWrapper(trainer.wrapper, trainer.optimizer, 24, 6, False)
    sample = wrapper._KFOptimizerWrapper__sample
    order = trainer.training_dataloader.dataset.systems[0].data_system.idx_map

    def noted(*sizes):
        index = sample(*sizes)
        row["atoms"] = [[int(order[i]) for i in group] for group in index]
        return index

    wrapper._KFOptimizerWrapper__sample = noted
    pref = lambda which: (
        (start := trainer.opt_param[f"kf_start_pref_{which}"])
        * (trainer.opt_param[f"kf_limit_pref_{which}"] / start) ** (step / trainer.num_steps)
    )
    wrapper.update_energy(inputs, labels["energy"], pref("e"))
    wrapper.update_force(inputs, labels["force"], pref("f"))


def mixed_batch(trainer, size):
    """So many batches of one frame as one: shorter frames have virtual atoms behind theirs, as DeePMD-kit's TensorFlow merges them."""
    import torch

    drawn = [trainer._next_training_batch("Default") for _ in range(size)]
    most = max(inputs["atype"].shape[1] for inputs, _, _ in drawn)

    def merged(key, values):
        if not torch.is_tensor(values[0]) or key.startswith("find_") or key == "natoms":
            return values[0]
        if values[0].dim() < 2 or key in ["box", "virial", "energy"]:
            return torch.cat(values)
        pad = lambda x: torch.nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, most - x.shape[1]], value=-1 if key == "atype" else 0)
        return torch.cat([pad(x) for x in values])

    whole = lambda k: {key: merged(key, [batch[k][key] for batch in drawn]) for key in drawn[0][k] if drawn[0][k][key] is not None}
    number = lambda batch, key: int(np.asarray(batch[2][key]).reshape(-1)[0])
    return whole(0), whole(1), [(number(batch, "sid"), number(batch, "fid")) for batch in drawn]


@contextlib.contextmanager
def labels_of(types):
    """DeePMD-kit's own reader, told that files of atoms may hold those of some types alone."""
    from deepmd.pt.loss.tensor import TensorLoss

    requirement = TensorLoss.label_requirement

    def selected(loss):
        items = requirement.fget(loss)
        for item in items:
            if item.atomic and types is not None:
                item.type_sel, item.output_natoms_for_type_sel = types, True
                item.dict = item.to_dict()
        return items

    TensorLoss.label_requirement = property(selected)
    try:
        yield
    finally:
        TensorLoss.label_requirement = requirement


def record(trainer, folder, config, steepness):
    """The training loop, with notes."""
    import torch
    from deepmd.dpmodel.utils.serialization import save_dp_model
    from deepmd.pt_expt.train.gradient import clip_grad_norm_

    os.makedirs(folder, exist_ok=True)
    if os.path.exists(f"{folder}/like"):
        os.remove(f"{folder}/like")
    with open(f"{folder}/input.json", "w") as f:
        json.dump(config, f, indent=1)
    if steepness:
        with open(f"{folder}/steepness", "w") as f:
            f.write(f"{steepness}\n")
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                if "descriptor" in name:
                    parameter.mul_(steepness)
    tree = {"backend": "PyTorch", "pt_version": str(torch.__version__), "model": trainer.model.serialize(),
            "model_def_script": config["model"], "@variables": {}}
    tree["model"]["preset_out_bias"] = None
    save_dp_model(f"{folder}/initial.dp", tree)
    predict(trainer, f"{folder}/predict.npz")
    trace = []
    for step in range(STEPS):
        trainer.optimizer.zero_grad(set_to_none=True)
        names = config["training"]["training_data"]["systems"]
        size = config["training"]["training_data"]["batch_size"]
        if isinstance(size, str):
            inputs, labels, chosen = mixed_batch(trainer, int(size.removeprefix("mixed:")))
            place = dict(systems=[names[s] for s, _ in chosen], frames=[k for _, k in chosen])
        else:
            inputs, labels, chosen = trainer._next_training_batch("Default")
            frames = [int(k) for k in np.asarray(chosen["fid"]).reshape(-1)]
            place = dict(system=names[int(np.asarray(chosen["sid"]).reshape(-1)[0])], frames=frames)
        # Flags in float32 would round the prefactors of the loss to seven digits.
        labels = {k: float(v) if k.startswith("find_") else v for k, v in labels.items()}
        kalman = trainer.opt_type == "LKF"
        rate = trainer.lr_schedule.value(step) if kalman else trainer.scheduler.get_last_lr()[0]
        _, loss, errors = trainer.wrapper(**inputs, cur_lr=rate, label=labels, task_key="Default")
        loss.backward()
        if step == 0:
            grads = {k: p.grad for k, p in trainer.wrapper.named_parameters() if p.grad is not None}
            # A network beside a table is the first of two models.
            grads = {k.replace("atomic_model.models.0.", "atomic_model."): g.detach().double().numpy() for k, g in grads.items()}
            np.savez_compressed(f"{folder}/grad0.npz", **grads)
        trace.append(dict(
            step=step,
            **place,
            lr=rate,
            loss=float(loss.detach()),
            # NaN where the system has no such label.
            **{k: None if np.isnan(float(v)) else float(v) for k, v in errors.items() if not k.startswith("l2_")},
        ))
        if trainer.gradient_max_norm > 0:
            clip_grad_norm_(trainer.wrapper.parameters(), trainer.gradient_max_norm, stable=True)
        if kalman:
            kalman_step(trainer, inputs, labels, step, trace[-1])
            continue
        with all_float64() if "Muon" in trainer.opt_type else contextlib.nullcontext():
            trainer.optimizer.step()
        trainer.scheduler.step()
    predict(trainer, f"{folder}/final_predict.npz")
    with open(f"{folder}/trace.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(row) for row in trace) + "\n]\n")


def make_case(name):
    """Runs in a process of its own: DeePMD-kit's random state must be fresh."""
    from deepmd.pt.entrypoints import main
    from deepmd.pt.train import training

    config = case_input(CASES[name])
    run = copy.deepcopy(config)
    if "preset_out_bias" in CASES[name]:
        run["model"]["preset_out_bias"] = CASES[name]["preset_out_bias"]
    if "batch_size" in CASES[name]:
        run["training"]["training_data"]["batch_size"] = 1
    selected = CASES[name].get("selected")
    if selected is not None:
        run["model"]["atom_exclude_types"] = [t for t in range(2) if t not in selected]
    training.Trainer.run = lambda trainer: record(trainer, f"{HERE}/{name}", config, CASES[name].get("steepness"))
    os.chdir(f"{HERE}/data")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(run, f)
        f.flush()
        with labels_of(selected):
            main.train(f.name, None, None, None, None, "", skip_neighbor_stat=True, output="/dev/null")


def share(names):
    """Removes models that another case has too."""
    first = {}
    for name in names:
        folder = f"{HERE}/{name}"
        if not os.path.exists(f"{folder}/predict.npz"):
            continue
        with open(f"{folder}/predict.npz", "rb") as f:
            same = first.setdefault((f.read(), json.dumps(case_input(CASES[name])["model"])), name)
        if same != name:
            with open(f"{folder}/like", "w") as f:
                f.write(same)
            os.remove(f"{folder}/initial.dp")
            os.remove(f"{folder}/predict.npz")


def run():
    os.environ.update(NUM_WORKERS="0", OMP_NUM_THREADS="1", DEVICE="cpu")
    names = sys.argv[1:] or list(CASES)
    if not sys.argv[1:]:
        make_data()
        make_more_data()
        make_tables()
    import deepmd.pt.entrypoints.main  # noqa: F401  (once, before the forks)

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
    share(list(CASES))
    # DeePMD-kit writes the input once more, in an older layout.
    if os.path.exists(f"{HERE}/data/input_v2_compat.json"):
        os.remove(f"{HERE}/data/input_v2_compat.json")
    print("made", len(names) - len(failed), "cases; failed:", failed or "none")


if __name__ == "__main__":
    run()
