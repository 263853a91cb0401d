//! Neighbour lists.
