//! Checkpoints: complete or absent.
