//! Who am I among the processes.
