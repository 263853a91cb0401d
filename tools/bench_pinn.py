"""Steps a second of PiNN (its CPU build, default threads) on frames of an extended XYZ file; called by bench_pinn.sh."""
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import logging
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import tensorflow as tf
from ase.io import read

tf.get_logger().setLevel(logging.ERROR)
from pinn import get_model, get_network
from pinn.io import sparse_batch

BATCH, WARM, STEPS = 10, 30, int(os.environ.get("BENCH_STEPS", "200"))


def dataset(path):
    frames = read(path, ":")

    def generate():
        for atoms in frames:
            yield dict(elems=atoms.numbers.astype(np.int32), coord=atoms.positions.astype(np.float32),
                       cell=np.array(atoms.cell).astype(np.float32),
                       e_data=np.float32(atoms.get_potential_energy()), f_data=atoms.get_forces().astype(np.float32))

    kinds = dict(elems=tf.int32, coord=tf.float32, cell=tf.float32, e_data=tf.float32, f_data=tf.float32)
    shapes = dict(elems=[None], coord=[None, 3], cell=[3, 3], e_data=[], f_data=[None, 3])
    return tf.data.Dataset.from_generator(generate, kinds, shapes)


class Clock(tf.estimator.SessionRunHook):
    """Starts after the warm-up steps."""

    def __init__(self):
        self.n = 0
        self.times = []

    def after_run(self, *_):
        self.n += 1
        self.times.append(time.time())


def measure(path, folder, forces):
    network = {"name": "PiNet", "params": {"atom_types": [1, 8]}}
    model = {"name": "potential_model", "params": {"use_force": forces}}
    params = {"model_dir": os.path.join(folder, f"forces_{forces}"), "network": network, "model": model}
    pre = get_network(network).preprocess

    def train():
        return dataset(path).apply(sparse_batch(BATCH)).map(pre).cache().repeat().shuffle(10)

    clock = Clock()
    config = tf.estimator.RunConfig(save_summary_steps=1000, log_step_count_steps=None, save_checkpoints_steps=10**6)
    get_model(params, config=config).train(train, max_steps=WARM + STEPS, hooks=[clock])
    spent = clock.times[-1] - clock.times[WARM - 1]
    print(f"PiNN, {'energies and forces' if forces else 'energies'}: {(len(clock.times) - WARM) / spent:.1f} steps/s")


if __name__ == "__main__":
    for forces in (False, True):
        measure(sys.argv[1], sys.argv[2], forces)
