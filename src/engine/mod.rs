//! Evaluates a batch and differentiates a loss.
