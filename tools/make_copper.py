"""Frames of hot copper with energies, forces and virials of a published analytic potential (numpy).

    python3 make_copper.py FOLDER [FRAMES]

FOLDER/data_0 .. data_3  four systems of 256 atoms, FRAMES each (default: 80), as `dp train` reads them. Each has as many frames of
                         a crystal at 300 K, a hot crystal, a compressed melt and a melt.

Sutton and Chen, Philosophical Magazine Letters 61, 139 (1990): epsilon 12.382 meV, a 3.61 A, c 39.432, n 9, m 6. The two sums over
neighbours are switched off smoothly between 5 and 6 A. Atoms move by Langevin dynamics; a frame is kept every 40 steps of 2 fs.
"""

import sys
from pathlib import Path

import numpy as np

EPSILON, A, C, N, M = 12.382e-3, 3.61, 39.432, 9, 6
INNER, OUTER = 5.0, 6.0
BOLTZMANN = 8.617333e-5  # eV/K
MASS = 63.546 * 1.0364270  # eV (10 fs)^2 / A^2
STEP, BETWEEN, FRICTION = 0.2, 40, 0.05  # in units of 10 fs
CELLS = 4


def switch(r):
    """1 inside INNER, 0 outside OUTER, and its derivative: two continuous derivatives at both ends."""
    x = np.clip((r - INNER) / (OUTER - INNER), 0.0, 1.0)
    return 1 - x**3 * (10 - 15 * x + 6 * x * x), -30 * x * x * (1 - x) ** 2 / (OUTER - INNER)


def evaluate(positions, edge):
    """Energy, forces and virial of one frame in a cubic cell."""
    i, j = np.triu_indices(len(positions), 1)
    apart = positions[j] - positions[i]
    apart -= edge * np.round(apart / edge)
    r = np.sqrt((apart**2).sum(1))
    near = r < OUTER
    i, j, apart, r = i[near], j[near], apart[near], r[near]
    s, ds = switch(r)
    pair, density = (A / r) ** N, (A / r) ** M
    rho = np.bincount(i, density * s, len(positions)) + np.bincount(j, density * s, len(positions))
    root = np.sqrt(rho)
    energy = EPSILON * ((pair * s).sum() - C * root.sum())
    by_r = EPSILON * (
        -N * pair / r * s + pair * ds - 0.5 * C * (1 / root[i] + 1 / root[j]) * (-M * density / r * s + density * ds)
    )
    pull = (by_r / r)[:, None] * apart  # the force on i
    forces = np.stack([np.bincount(i, pull[:, k], len(positions)) - np.bincount(j, pull[:, k], len(positions)) for k in range(3)], 1)
    return energy, forces, -(apart[:, :, None] * pull[:, None, :]).sum(0)


def crystal(lattice):
    corners = np.stack(np.meshgrid(*[np.arange(CELLS)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    basis = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    return (corners + basis).reshape(-1, 3) * lattice, CELLS * lattice


def sample(lattice, kelvin, frames, random, start_kelvin):
    """Frames of Langevin dynamics, after a while at `start_kelvin` that melts the crystal where it is hot."""
    positions, edge = crystal(lattice)
    velocities = np.zeros_like(positions)
    kept = []
    forces = evaluate(positions, edge)[1]
    warm_up = 600
    for step in range(warm_up + frames * BETWEEN):
        temperature = start_kelvin if step < warm_up // 2 else kelvin
        velocities += 0.5 * STEP * forces / MASS
        positions = positions + 0.5 * STEP * velocities
        keep = np.exp(-FRICTION * STEP)
        velocities = keep * velocities + np.sqrt((1 - keep**2) * BOLTZMANN * temperature / MASS) * random.normal(size=positions.shape)
        positions = positions + 0.5 * STEP * velocities
        energy, forces, virial = evaluate(positions, edge)
        velocities += 0.5 * STEP * forces / MASS
        if step >= warm_up and (step - warm_up + 1) % BETWEEN == 0:
            kept.append((positions % edge, energy, forces, virial, np.diag([edge] * 3)))
    return kept


def write(folder, kept):
    columns = [np.array(column) for column in zip(*kept)]
    n = len(kept)
    (folder / "set.000").mkdir(parents=True, exist_ok=True)
    (folder / "type.raw").write_text("0\n" * len(kept[0][0]))
    (folder / "type_map.raw").write_text("Cu\n")
    for name, array in zip(["coord", "energy", "force", "virial", "box"], columns):
        np.save(folder / "set.000" / f"{name}.npy", array.reshape(n, -1) if array.ndim > 1 else array)


def main():
    folder, frames = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 80
    random = np.random.default_rng(1)
    conditions = [(3.61, 300, 300), (3.68, 1000, 1000), (3.68, 1800, 4000), (3.78, 1500, 4000)]
    kept = [sample(lattice, kelvin, frames, random, start) for lattice, kelvin, start in conditions]
    for k in range(4):
        write(folder / f"data_{k}", [frame for frames in kept for frame in frames[k::4]])


if __name__ == "__main__":
    main()
