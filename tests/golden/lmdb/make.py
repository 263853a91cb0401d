"""Makes frames.lmdb: frames of 2, 3 and 40 atoms in the layout of DeePMD-kit's LMDB data sets, and lets DeePMD-kit read it.

Needs the packages deepmd-kit (3.2), lmdb and msgpack. Numbers follow from the number of the frame; src/data/format/lmdb/tests.rs knows how.
"""

import pathlib
import shutil

import lmdb
import msgpack
import numpy as np

here = pathlib.Path(__file__).parent
path = here / "frames.lmdb"
shutil.rmtree(path, ignore_errors=True)


def array(x, dtype):
    x = np.asarray(x, dtype)
    # Both names of a type are in use.
    return {"nd": True, "type": x.dtype.name if x.size % 2 else x.dtype.str, "shape": list(x.shape), "data": x.tobytes()}


def frame(k, n):
    atoms = np.arange(n)
    coords = k + 0.25 * atoms[:, None] + 0.125 * np.arange(3)[None, :]
    out = {
        "atom_types": array((atoms + k) % 2, "<i4" if k % 2 else "<i8"),
        "coords": array(coords, "<f8"),
        "energies": -1.5 * k if k % 3 else array([-1.5 * k], "<f4"),
        "forces": array(coords - 7, "<f4"),
        "orig": array([0, 0, 0], "<f8"),
        "atom_names": ["H", "O"],
    }
    if n != 3:
        out["cells"] = array(np.eye(3) * 20, "<f8")
    if k in (4, 9):
        out["virials"] = array(np.arange(9).reshape(3, 3) * 0.5, "<f8")
    return out


sizes = [2, 2, 3, 40, 40, 2, 40, 3, 40, 40, 2, 2]
env = lmdb.open(str(path), map_size=1 << 20)
with env.begin(write=True) as txn:
    for k, n in enumerate(sizes):
        txn.put(format(k, "012d").encode(), msgpack.packb(frame(k, n), use_bin_type=True))
    metadata = {"nframes": len(sizes), "frame_idx_fmt": "012d", "type_map": ["H", "O"], "frame_nlocs": sizes,
                "system_info": {"natoms": [1, 1]}}
    txn.put(b"__metadata__", msgpack.packb(metadata, use_bin_type=True))
(here / "compact").mkdir()
env.copy(str(here / "compact"), compact=True)
env.close()
shutil.move(here / "compact" / "data.mdb", path / "data.mdb")
shutil.rmtree(here / "compact")
(path / "lock.mdb").unlink(missing_ok=True)

from deepmd.dpmodel.utils.lmdb_data import LmdbDataReader  # noqa: E402

reader = LmdbDataReader(str(path), ["O", "H"], batch_size=2)
got = reader[3]
assert np.allclose(got["coord"][5], 3 + 1.25 + 0.125 * np.arange(3)), got["coord"][5]
assert list(got["atype"][:3]) == [(0 if t == 1 else 1) for t in [1, 0, 1]], got["atype"][:3]
print("DeePMD-kit reads", len(reader), "frames")
