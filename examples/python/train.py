"""Trains a small potential of water from Python and stops when it is good enough.

    python examples/python/train.py [folder]

Run it from the root of the project. It takes about a minute and writes ``model.ckpt-*.phx``, ``lcurve.out`` and ``out.json``.
"""

import sys
from pathlib import Path

import phalanx

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
water = Path(__file__).resolve().parents[1] / "water"

input = {
    "model": {
        "type_map": ["O", "H"],
        "descriptor": {
            "type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "rcut_smth": 0.5,
            "neuron": [10, 20, 40], "axis_neuron": 8, "seed": 1,
        },
        "fitting_net": {"neuron": [60, 60, 60], "seed": 1},
    },
    "learning_rate": {"type": "exp", "start_lr": 0.003, "stop_lr": 3e-5, "decay_steps": 20},
    "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 20},
    "training": {
        "training_data": {"systems": [water / f"data_{k}" for k in range(3)], "batch_size": 1},
        "validation_data": {"systems": [water / "data_3"], "batch_size": 1, "numb_btch": 3},
        "numb_steps": 1000,
        "disp_freq": 50,
        "save_freq": 500,
        "seed": 1,
        "save_ckpt": folder / "model.ckpt",
        "disp_file": folder / "lcurve.out",
    },
}


def show(row):
    print(f"{row['step']:6d}  force error {row['rmse_f_val']:.3f} eV/A, learning rate {row['lr']:.1e}", flush=True)
    return row["rmse_f_val"] > 0.1  # False ends the run, with a checkpoint


folder.mkdir(parents=True, exist_ok=True)
ended = phalanx.train(input, show, output=folder / "out.json", log_level="WARNING")
print(f"{ended.step} steps; python examples/python/md.py {ended.checkpoint}")
