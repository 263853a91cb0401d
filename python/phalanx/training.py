"""Training from Python, as ``dp train`` does it."""

import collections.abc
import json
import os
from typing import NamedTuple, Optional

from . import _phalanx


class Trained(NamedTuple):
    """How a run ended."""

    step: int  #: steps done
    stopped: bool  #: whether the callback ended it before the last step
    checkpoint: Optional[str]  #: the last checkpoint, which ``DeepPot`` and ``dp freeze`` take; None on ranks other than 0


def train(
    input,
    callback=None,
    *,
    init_model=None,
    restart=None,
    init_frz_model=None,
    finetune=None,
    use_pretrain_script=False,
    output="out.json",
    skip_neighbor_stat=False,
    pytorch_conventions=False,
    device="auto",
    log_level="INFO",
    log_path=None,
    mpi_log="master",
):
    """Trains a Deep Potential in this process; returns a :class:`Trained`.

    input
        the path of an input file, or a dict with what stands in one; paths in it count from the working folder
    callback
        called with each row of the learning curve as a dict: ``step``, ``lr``, ``rmse_trn``, ``rmse_val``,
        ``rmse_e_trn`` and so on. If it returns False the run ends with a checkpoint; what it raises is raised here
        after that. It is called on the thread that called `train`, on rank 0 only.
    pytorch_conventions
        as ``dp --pt train``

    The other arguments are the flags of ``dp train``. Other Python threads run meanwhile. Ctrl-C finishes the step,
    saves, and raises KeyboardInterrupt. Under ``mpirun`` or ``torchrun`` every rank calls this.
    """
    is_json = isinstance(input, collections.abc.Mapping)
    text = _json(input) if is_json else os.fspath(input)
    starts = {
        "init_model": init_model, "restart": restart, "init_frz_model": init_frz_model, "finetune": finetune
    }
    starts = [(flag, os.fspath(path)) for flag, path in starts.items() if path is not None]
    if len(starts) > 1:
        raise ValueError(" and ".join(flag for flag, _ in starts) + " contradict each other")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: found a {type(callback).__name__}, wanted something to call")
    flags = {
        "start": starts[0] if starts else None,
        "output": os.fspath(output),
        "skip_neighbor_stat": bool(skip_neighbor_stat),
        "use_pretrain_script": bool(use_pretrain_script),
        "pytorch_conventions": bool(pytorch_conventions),
        "device": str(device),
        "log_level": str(log_level),
        "log_path": None if log_path is None else os.fspath(log_path),
        "mpi_log": str(mpi_log),
    }
    step, stopped, checkpoint = _phalanx.train(text, is_json, callback, flags)
    return Trained(step, stopped, None if checkpoint is None else os.fspath(checkpoint))


def _json(input):
    """A dict as JSON; what NumPy and pathlib bring is understood."""

    def plain(x):
        if isinstance(x, os.PathLike):
            return os.fspath(x)
        if hasattr(x, "tolist"):
            return x.tolist()
        raise TypeError(f"input: a {type(x).__name__} has no place in an input")

    try:
        return json.dumps(input, default=plain, allow_nan=False)
    except (RecursionError, ValueError) as e:
        raise ValueError(f"input: {e}") from None
