//! What a run tells: log, progress, lcurve.out, TensorBoard.
