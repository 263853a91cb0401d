//! Physical constants and conversions, each with its source. Å and eV inside.
