"""Makes systems.hdf5 (h5py 3, numpy): python make_systems_hdf5.py

Three systems: /water (two sets; gzip and float32), /deep/mixed (mixed type, open boundaries, fixed-length names)
and /deep (a system that holds another). Values are ramps of quarters, so that a test can say what each should be.
"""

import h5py
import numpy as np


def ramp(frames, width, first):
    return (first + 0.25 * np.arange(frames * width)).reshape(frames, width)


def add_set(group, name, frames, first, dtype="f8", **how):
    s = group.create_group(name)
    cell = np.tile(np.array([9, 0, 0, 1, 9, 0, 0, 0, 9], dtype=dtype), (frames, 1))
    s.create_dataset("coord.npy", data=ramp(frames, 9, first).astype(dtype), **how)
    s.create_dataset("box.npy", data=cell)
    s.create_dataset("energy.npy", data=ramp(frames, 1, first - 100)[:, 0].astype(dtype))
    s.create_dataset("force.npy", data=ramp(frames, 9, first + 0.5).astype(dtype))
    return s


with h5py.File("systems.hdf5", "w") as f:
    water = f.create_group("water")
    water["type.raw"] = np.array([0, 1, 1])
    water["type_map.raw"] = ["O", "H"]
    add_set(water, "set.000", 3, 0, chunks=(2, 9), compression="gzip")
    add_set(water, "set.001", 2, 20, dtype=">f4")
    for path in ["deep", "deep/mixed"]:
        deep = f.create_group(path)
        deep["type.raw"] = np.array([0, 0, 0], dtype="i4")
        deep["type_map.raw"] = np.array(["H", "O"], dtype="S2")
        deep["nopbc"] = True
        s = add_set(deep, "set.000", 2, 5)
        if path == "deep/mixed":
            s["real_atom_types.npy"] = np.array([[1, 0, -1], [0, 0, 1]], dtype="i4")
