//! Which frames next, and the queue that prepares them.
