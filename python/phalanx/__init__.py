"""Neural-network interatomic potentials: evaluate them, train them.

>>> from phalanx import DeepPot
>>> energy, force, virial = DeepPot("model.dp").eval(coords, cells, atom_types)

>>> import phalanx
>>> phalanx.train("input.json", callback=lambda row: print(row["step"], row["rmse_f_trn"]))

``phalanx.ase`` has the calculators for ASE.
"""

from ._phalanx import VERSION as __version__
from .deep_outputs import DeepDipole, DeepDOS, DeepPolar, DeepProperty
from .deep_pot import DeepPot
from .training import Trained, train

__all__ = ["DeepDOS", "DeepDipole", "DeepPolar", "DeepPot", "DeepProperty", "Trained", "train", "__version__"]
