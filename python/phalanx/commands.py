"""The commands ``dp`` and ``pinn``, as the programs of the same names."""

import signal
import sys

from . import _phalanx


def _run(command):
    # Python would raise KeyboardInterrupt after the command has saved and ended well.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(command(sys.argv))


def dp():
    _run(_phalanx.dp)


def pinn():
    _run(_phalanx.pinn)
