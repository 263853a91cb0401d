"""Data sets of many kinds of batches, for tools/bench_gpu_kinds.sh: random atoms with random labels (numpy).

    python3 make_kinds.py FOLDER [FRAMES]

FOLDER/one        one system of 256 atoms
FOLDER/many/NNN   500 systems of 20 to 200 atoms, each of another composition
FOLDER/mixed      one mixed-type system of 128 atoms; no two frames have the same composition

FRAMES is how many each of the 500 systems has (default: 4); the other two hold about as many atoms in all.
"""

import sys
from pathlib import Path

import numpy as np

random = np.random.default_rng(1)
VOLUME = 10.0  # A^3 of an atom: about that of water


def positions(n_frames, n_atoms):
    """Atoms near the points of a grid, so that none come too close; and the cell."""
    side = int(np.ceil(n_atoms ** (1 / 3)))
    step = VOLUME ** (1 / 3) * (n_atoms / side**3) ** (1 / 3)
    step = max(step, 1.7)
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3) * step
    coord = np.stack([grid[random.permutation(len(grid))[:n_atoms]] for _ in range(n_frames)])
    coord = coord + random.uniform(-0.3, 0.3, coord.shape)
    return coord.reshape(n_frames, -1), np.tile((np.eye(3) * side * step).reshape(-1), (n_frames, 1))


def write(folder, n_frames, n_atoms, mixed):
    data = folder / "set.000"
    data.mkdir(parents=True, exist_ok=True)
    coord, cell = positions(n_frames, n_atoms)
    np.save(data / "coord.npy", coord)
    np.save(data / "box.npy", cell)
    np.save(data / "energy.npy", random.normal(size=(n_frames, 1)))
    np.save(data / "force.npy", random.normal(size=(n_frames, 3 * n_atoms)))
    (folder / "type_map.raw").write_text("A\nB\nC\n")
    shares = lambda: random.dirichlet([1.0, 1.0, 1.0])
    types = np.zeros(n_atoms, int) if mixed else random.choice(3, n_atoms, p=shares())
    np.savetxt(folder / "type.raw", types, fmt="%d")
    if mixed:
        each = [random.choice(3, n_atoms, p=shares()) for _ in range(n_frames)]
        np.save(data / "real_atom_types.npy", np.array(each, np.int32))


folder, frames = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
sizes = random.integers(20, 201, 500)
total = int(sizes.sum()) * frames
write(folder / "one", total // 256, 256, False)
write(folder / "mixed", total // 128, 128, True)
for number, n_atoms in enumerate(sizes):
    write(folder / "many" / f"{number:03}", frames, int(n_atoms), False)
