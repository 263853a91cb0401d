"""A stand-in for DFT: smooth pair potentials between O and H, with exact forces and virials. Called by DP-GEN in the folder of a task.

    label.py structure labels.hdf5        a POSCAR, by DP-GEN
    label.py FOLDER OUT FRAMES            the first frames of a DeePMD-kit system, labelled anew: the initial data
"""
import sys

import dpdata
import numpy as np

CUTOFF = 4.0
# Pairs of types: energy (eV), range (A) and position of the well (A), 0 for a repulsion without a well.
PAIRS = {(0, 0): (2.0, 1.2, 0.0), (0, 1): (3.0, 0.6, 0.97), (1, 1): (1.0, 0.8, 0.0)}


def pair(r, kind):
    """Energy of pairs at distances r, and its slope; both vanish at the cutoff."""
    depth, length, well = PAIRS[kind]
    u = np.exp(-(r - well) / length)
    e, de = (depth * (u * u - 2 * u), depth * (-2 * u * u + 2 * u) / length) if well else (depth * u, -depth * u / length)
    s = 1 - (r / CUTOFF) ** 2
    return e * s**3, de * s**3 - e * 6 * r / CUTOFF**2 * s**2


def label(coord, cell, types):
    """Energy, forces and virial of one frame, with all images within the cutoff."""
    force, virial, energy = np.zeros_like(coord), np.zeros((3, 3)), 0.0
    reach = np.ceil(CUTOFF * np.linalg.norm(np.linalg.inv(cell), axis=0)).astype(int)
    for shift in np.ndindex(*(2 * reach + 1)):
        d = coord[None] + (np.array(shift) - reach) @ cell - coord[:, None]
        r = np.linalg.norm(d, axis=2)
        i, j = np.nonzero((r > 1e-9) & (r < CUTOFF))
        for kind in PAIRS:
            both = (np.minimum(types[i], types[j]) == kind[0]) & (np.maximum(types[i], types[j]) == kind[1])
            a, b = i[both], j[both]
            e, slope = pair(r[a, b], kind)
            energy += e.sum() / 2  # each pair comes from both sides
            f = (slope / r[a, b])[:, None] * d[a, b] / 2
            np.add.at(force, a, f)
            np.add.at(force, b, -f)
            virial -= d[a, b].T @ f
    return energy, force, virial


def labelled(system):
    data = dict(system.data)
    # The model's order of types, whatever the order of the file is.
    order = np.array([["O", "H"].index(name) for name in data["atom_names"]])
    types = order[data["atom_types"]]
    found = [label(x, cell, types) for x, cell in zip(data["coords"], data["cells"])]
    data["energies"], data["forces"], data["virials"] = (np.array(x) for x in zip(*found))
    return dpdata.LabeledSystem(data=data)


if len(sys.argv) == 4:
    system = dpdata.System(sys.argv[1], fmt="deepmd/npy")[: int(sys.argv[3])]
    labelled(system).to("deepmd/npy", sys.argv[2])
    system[0].to("vasp/poscar", sys.argv[2] + "/POSCAR")
else:
    labelled(dpdata.System(sys.argv[1], fmt="vasp/poscar")).to("deepmd/hdf5", sys.argv[2])
