"""Arrays as the extension module takes them: address and length of contiguous memory.

Who calls it holds on to the arrays until it returns, and has made those that are to be filled.
"""

import numpy as np


def numbers(name, x):
    """As contiguous float64; the very same memory where it is that already."""
    try:
        x = np.asarray(x)
    except ValueError as e:  # rows of different lengths
        raise ValueError(f"{name}: {e}") from None
    if x.dtype.kind not in "fiu":
        raise ValueError(f"{name}: found an array of {x.dtype}, wanted numbers")
    return np.require(x, dtype=np.float64, requirements=["C", "A"])


def whole_numbers(x):
    """As contiguous int32."""
    return np.require(x, dtype=np.int32, requirements=["C", "A"])


def handed(x):
    """Address and length; None where there is no array."""
    if x is None:
        return None
    assert x.flags.c_contiguous and x.flags.aligned and x.dtype in (np.float64, np.int32)
    return (x.ctypes.data, x.size)
