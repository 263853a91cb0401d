"""Makes the golden files of this folder with a real DeePMD-kit (3.2.0, PyTorch):

    cd tests/golden/commands && python make_commands.py

Its own `dp` commands run on the models and systems of ../dp_test, converted to .pth, as DeePMD-kit has no
derivatives of a .dp:

- other.dp: one_side.dp with scaled fitting nets, a second model to compare with; other_f32.dp: in float32
- devi*.out: `dp model-devi` of both with several flags
- bulk.npy, cluster_f32.npy: `dp eval-desc`
- bias.json: the biases that `dp --pt change-bias` writes
- small_table.dp, small_table_f32.dp: `dp --dp compress` with steps so coarse that the tables are told from the
  nets by every digit; tables.json: energies of the atoms that DeePMD-kit computes from them
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "dp_test"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from deepmd.dpmodel.utils.serialization import load_dp_model, save_dp_model  # noqa: E402
from deepmd.infer import DeepPot  # noqa: E402
from deepmd.main import main  # noqa: E402


def make_other():
    """A second model with the same types: other numbers in the fitting nets."""
    model = load_dp_model(str(GOLDEN / "one_side.dp"))
    for net in model["model"]["fitting"]["nets"]["networks"]:
        for layer in net["layers"]:
            layer["@variables"]["w"] = layer["@variables"]["w"] * 0.9
    save_dp_model(str(HERE / "other.dp"), model)


def single_precision(tree):
    """The same tree in float32."""
    if isinstance(tree, dict):
        return {k: "float32" if k == "precision" else single_precision(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [single_precision(v) for v in tree]
    return tree.astype(np.float32) if isinstance(tree, np.ndarray) else tree


def make_other_f32():
    model = load_dp_model(str(HERE / "other.dp"))
    for part in ("descriptor", "fitting"):
        model["model"][part] = single_precision(model["model"][part])
    save_dp_model(str(HERE / "other_f32.dp"), model)


def make_single():
    """The first frame of bulk."""
    shutil.copytree("bulk", "single")
    for file in Path("single/set.000").iterdir():
        np.save(file, np.load(file)[:1])


def model_devi():
    models = ["-m", "one_side.pth", "other.pth"]
    for name, system, flags in (
        ("devi.out", "all", []),
        ("devi_atomic.out", "bulk", ["--atomic", "-f", "10"]),
        ("devi_relative.out", "bulk", ["--relative", "0.5"]),
        ("devi_real.out", "bulk", ["--real_error"]),
        # DeePMD-kit 3.2.0 fails at --relative_v unless there is one frame.
        ("devi_relative_v.out", "single", ["--relative", "0.5", "--relative_v", "0.25"]),
        ("devi_real_relative.out", "single", ["--real_error", "--relative", "0.5", "--relative_v", "0.25", "--atomic"]),
    ):
        (HERE / name).unlink(missing_ok=True)
        main(["model-devi", *models, "-s", system, "-o", str(HERE / name), *flags])


def eval_desc():
    main(["eval-desc", "-m", "one_side.pth", "-s", "bulk", "-o", "desc"])
    shutil.copy("desc/bulk.npy", HERE / "bulk.npy")
    # DeePMD-kit 3.2.0 does not read frame parameters for this command, so a float32 model without them.
    main(["eval-desc", "-m", "other_f32.pth", "-s", "cluster", "-o", "desc"])
    shutil.copy("desc/cluster.npy", HERE / "cluster_f32.npy")


def change_bias():
    cases = {
        "change": ["-s", "bulk"],
        "set": ["-s", "bulk", "-m", "set"],
        "value": ["-b", "-1.5", "-2.25"],
        "both": ["-s", "all"],
    }
    out = {}
    for name in ("one_side", "two_side"):
        for case, flags in cases.items():
            if name == "two_side" and case == "both":
                continue  # the cluster has no frame parameters
            main(["--pt", "change-bias", f"{name}.pth", *flags, "-o", f"{name}_{case}.pth"])
            main(["convert-backend", f"{name}_{case}.pth", "changed.dp"])
            model = load_dp_model("changed.dp")["model"]
            fitting = model["fitting"]["@variables"]
            out[f"{name} {case}"] = {
                "bias": (model["@variables"]["out_bias"].ravel() + fitting["bias_atom_e"].ravel()).tolist(),
                "out_std": model["@variables"]["out_std"].ravel().tolist(),
                **{
                    key: fitting[key].ravel().tolist()
                    for key in ("fparam_avg", "fparam_inv_std", "aparam_avg", "aparam_inv_std")
                    if fitting[key] is not None
                },
            }
    (HERE / "bias.json").write_text(json.dumps(out, indent=1) + "\n")


def compressed():
    out = {}
    system = Path("bulk/set.000")
    coord, box = np.load(system / "coord.npy"), np.load(system / "box.npy")
    names = Path("bulk/type_map.raw").read_text().split()
    types = [names[int(t)] for t in Path("bulk/type.raw").read_text().split()]
    for original, name in (("one_side", "small_table"), ("two_side", "small_table_f32")):
        model = load_dp_model(f"{original}.dp")
        model["min_nbor_dist"] = 0.9
        save_dp_model("with_distance.dp", model)
        path = str(HERE / f"{name}.dp")
        main(["--dp", "compress", "-i", "with_distance.dp", "-o", path, "-s", "0.5", "-e", "2"])
        for file in (f"{original}.dp", path):
            pot = DeepPot(file)
            parameters = {}
            if pot.get_dim_fparam():
                parameters = {"fparam": np.load(system / "fparam.npy"), "aparam": np.load(system / "aparam.npy")}
            index = [pot.get_type_map().index(t) for t in types]
            energy = pot.eval(coord, box, index, atomic=True, **parameters)
            # One configuration that leaves the tables at their upper end: two atoms come close.
            near = coord[:1].copy()
            near[0, 3:6] = near[0, 0:3] + np.array([0.3, 0.2, 0.1])
            close = pot.eval(near, box[:1], index, atomic=True, **{k: v[:1] for k, v in parameters.items()})
            key = name if file == path else f"{name} nets"
            out[key] = {"atom_energy": energy[3].reshape(len(coord), -1).tolist(), "close": close[3].ravel().tolist()}
    (HERE / "tables.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    make_other()
    make_other_f32()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bulk", "cluster", "all/bulk", "all/cluster"):
            shutil.copytree(GOLDEN / Path(name).name, Path(folder) / name)
        for name in ("one_side.dp", "two_side.dp"):
            shutil.copy(GOLDEN / name, folder)
        for name in ("other.dp", "other_f32.dp"):
            shutil.copy(HERE / name, folder)
        os.chdir(folder)
        make_single()
        for name in ("one_side", "two_side", "other", "other_f32"):
            main(["convert-backend", f"{name}.dp", f"{name}.pth"])
        for step in sys.argv[1:] or ("model_devi", "eval_desc", "change_bias", "compressed"):
            globals()[step]()
