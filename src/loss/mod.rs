//! Energy, force and virial losses and their derivatives.

pub mod options;
