//! One operation on one block, in each of the four passes.

use super::layers::Radial;
use super::memory::Plane::*;
use super::pairs::Turn;
use super::plan::Op;
use super::task::Task;
use super::{atoms, kinds, layers, pairs};
use crate::engine::cpu::real::Real;

/// Values.
pub fn forward<T: Real>(op: &Op, t: &mut Task<T>) {
    match *op {
        Op::Dense { x, y, ref layer, parts, .. } => layers::forward(t, x, y, layer, parts),
        Op::PairInput { u, v, y, act, .. } => pairs::input_forward(t, u, v, y, act),
        Op::Kinds { y, n_basis } => kinds::forward(t, y, n_basis),
        Op::Radial { x, w, y, ref layer, n_basis } => Radial { x, w, y, layer, n_basis }.forward(t),
        Op::Contract { w, y, n_basis } => pairs::contract_forward(t, w, y, n_basis),
        Op::Sum { x, y } => pairs::sum_forward(t, x, y, Value),
        Op::Turn { p, a, direction, s, y } => Turn { p, a, direction, s, y }.forward(t),
        Op::Add { a, b, y } => atoms::add_forward(t, a, b, y, Value),
        Op::Dot { a, b, y, size } => atoms::dot_forward(t, a, b, y, size, false),
        Op::Scale { q, u, y, size } => atoms::scale_forward(t, q, u, y, size, false),
        Op::SpreadInput { .. } | Op::SpreadTurn { .. } => {}
    }
}

/// dE, backwards.
pub fn reverse<T: Real>(op: &Op, t: &mut Task<T>) {
    match *op {
        Op::Dense { constant: true, .. } => {}
        Op::PairInput { .. } | Op::Kinds { .. } | Op::Radial { .. } if t.again => {}
        Op::Dense { x, .. } if t.again && t.mem.shape(x.buf).keeps_de => {}
        Op::Dense { x, y, ref layer, parts, .. } => layers::reverse(t, x, y, layer, parts),
        Op::PairInput { u, y, z, act, .. } => pairs::input_reverse(t, u, y, z, act),
        Op::Kinds { y, n_basis } => kinds::reverse(t, y, n_basis),
        Op::Radial { x, w, y, ref layer, n_basis } => Radial { x, w, y, layer, n_basis }.reverse(t),
        Op::Contract { w, y, n_basis } => pairs::contract_reverse(t, w, y, n_basis),
        Op::Sum { x, y } => pairs::sum_back(t, x, y, De),
        Op::Turn { p, a, direction, s, y } => Turn { p, a, direction, s, y }.reverse(t),
        Op::Add { a, b, y } => atoms::add_back(t, a, b, y, De),
        Op::Dot { a, b, y, size } => atoms::dot_back(t, a, b, y, size, false),
        Op::Scale { q, u, y, size } => atoms::scale_back(t, q, u, y, size, false),
        Op::SpreadInput { v, z } => pairs::spread_input(t, v, z, De),
        Op::SpreadTurn { p, s, y, .. } => pairs::spread_turn(t, p, s, y, De, Value, De),
    }
}

/// Changes along a direction.
pub fn tangent<T: Real>(op: &Op, t: &mut Task<T>) {
    match *op {
        Op::Dense { x, y, ref layer, parts, .. } => layers::tangent(t, x, y, layer, parts),
        Op::PairInput { u, v, y, act, .. } => pairs::input_tangent(t, u, v, y, act),
        Op::Kinds { y, n_basis } => kinds::tangent(t, y, n_basis),
        Op::Radial { x, w, y, ref layer, n_basis } => Radial { x, w, y, layer, n_basis }.tangent(t),
        Op::Contract { w, y, n_basis } => pairs::contract_tangent(t, w, y, n_basis),
        Op::Sum { x, y } => pairs::sum_forward(t, x, y, Dot),
        Op::Turn { p, a, direction, s, y } => Turn { p, a, direction, s, y }.tangent(t),
        Op::Add { a, b, y } => atoms::add_forward(t, a, b, y, Dot),
        Op::Dot { a, b, y, size } => atoms::dot_forward(t, a, b, y, size, true),
        Op::Scale { q, u, y, size } => atoms::scale_forward(t, q, u, y, size, true),
        Op::SpreadInput { .. } | Op::SpreadTurn { .. } => {}
    }
}

/// dL of (value, change) pairs, backwards, and dL/dparams into the slot.
pub fn adjoint<T: Real>(op: &Op, t: &mut Task<T>) {
    match *op {
        Op::Dense { x, y, ref layer, parts, constant } => layers::adjoint(t, x, y, layer, parts, constant),
        Op::PairInput { u, y, z, act, .. } => pairs::input_adjoint(t, u, y, z, act),
        Op::Kinds { y, n_basis } => kinds::adjoint(t, y, n_basis),
        Op::Radial { x, w, y, ref layer, n_basis } => Radial { x, w, y, layer, n_basis }.adjoint(t),
        Op::Contract { w, y, n_basis } => pairs::contract_adjoint(t, w, y, n_basis),
        Op::Sum { x, y } => pairs::sum_back(t, x, y, Dl),
        Op::Turn { p, a, direction, s, y } => Turn { p, a, direction, s, y }.adjoint(t),
        Op::Add { a, b, y } => atoms::add_back(t, a, b, y, Dl),
        Op::Dot { a, b, y, size } => atoms::dot_back(t, a, b, y, size, true),
        Op::Scale { q, u, y, size } => atoms::scale_back(t, q, u, y, size, true),
        Op::SpreadInput { v, z } => pairs::spread_input(t, v, z, Dl),
        Op::SpreadTurn { p, s, y, .. } => {
            pairs::spread_turn(t, p, s, y, Dl, Value, Dl);
            if t.forces {
                pairs::spread_turn(t, p, s, y, Dl, Dot, De);
            }
        }
    }
}
