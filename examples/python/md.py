"""Molecular dynamics of water with ASE: constant energy, 64 molecules.

    python examples/python/md.py MODEL [steps]

Run it from the root of the project, with a model that was trained on ``examples/water``: a ``.dp`` file or a checkpoint, such
as ``train.py`` leaves.
"""

import sys
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet

from phalanx.ase import DP

model, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
data = Path(__file__).resolve().parents[1] / "water/data_0"
types = np.loadtxt(data / "type.raw", dtype=int)
names = (data / "type_map.raw").read_text().split()
atoms = Atoms(
    [names[t] for t in types],
    positions=np.load(data / "set.000/coord.npy")[0].reshape(-1, 3),
    cell=np.load(data / "set.000/box.npy")[0].reshape(3, 3),
    pbc=True,
    calculator=DP(model),
)

MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(1))
dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
energies = []


def show():
    energies.append(atoms.get_total_energy())
    print(
        f"{dynamics.nsteps:6d}  {atoms.get_temperature():7.1f} K  total energy {energies[-1]:.4f} eV  "
        f"pressure {-atoms.get_stress()[:3].mean() / units.GPa:6.2f} GPa",
        flush=True,
    )


dynamics.attach(show, interval=20)
dynamics.run(steps)
print(f"the total energy varied by {1e3 * np.ptp(energies) / len(atoms):.3f} meV an atom")
