//! `dp`: DeePMD-kit's command line, Phalanx underneath.

fn main() {}
