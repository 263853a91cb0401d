//! Sums, broadcasts and barriers over ranks.
