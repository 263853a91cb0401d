"""Small systems and models of the project's own tests."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
#: float64, and float32 with frame and atom parameters
ONE_SIDE = GOLDEN / "dp_test/one_side.dp"
TWO_SIDE = GOLDEN / "dp_test/two_side.dp"


class Bulk:
    """Twelve atoms of water in a triclinic cell, several frames, with what DeePMD-kit says about the first."""

    def __init__(self):
        of = lambda name: np.load(GOLDEN / f"dp_test/bulk/set.000/{name}.npy").astype(np.float64)
        self.coords = of("coord")
        self.cells = of("box")
        # The data counts H before O, the models the other way round.
        self.types = [0 if i % 3 == 2 else 1 for i in range(12)]
        self.fparam = of("fparam")
        self.aparam = of("aparam")

    def atoms(self, frame=0):
        from ase import Atoms

        symbols = ["OH"[t] for t in self.types]
        return Atoms(symbols, self.coords[frame].reshape(-1, 3), cell=self.cells[frame].reshape(3, 3), pbc=True)


@pytest.fixture
def bulk():
    return Bulk()


def small_input(folder, **training):
    """An input that trains a small net on the water of the examples, in seconds."""
    return {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {
                "type": "se_e2_a", "sel": [20, 40], "rcut": 4.0, "rcut_smth": 0.5, "neuron": [4, 8],
                "axis_neuron": 4, "seed": 1,
            },
            "fitting_net": {"neuron": [16, 16], "seed": 1},
        },
        "learning_rate": {"type": "exp", "start_lr": 0.005, "decay_steps": 20, "stop_lr": 1e-4},
        "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
        "training": {
            "training_data": {"systems": [ROOT / "examples/water/data_0"], "batch_size": 1},
            "validation_data": {"systems": [ROOT / "examples/water/data_3"], "batch_size": 1},
            "numb_steps": 40,
            "disp_freq": 10,
            "save_freq": 1000,
            "seed": 1,
            "save_ckpt": folder / "model.ckpt",
            "disp_file": folder / "lcurve.out",
            **training,
        },
    }
