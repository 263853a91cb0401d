//! The energy of one atom, or what else its fitting net says, and derivatives.
//!
//! `e = fitting(D, extra)`, with the descriptors D one after another.

use super::env::Row;
use super::layer::{self, Trace};
use super::turned::Turned;
use super::{angles, attention, pairs};
use crate::model::dp::Dp;
use crate::model::dp::options::Form;
use crate::model::net::NetShape;
use std::ops::Range;
use std::sync::Arc;

/// One neighbour, or all slots of a type that look the same because nobody is seen in them, of an atom.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Type of the neighbour.
    pub neighbor: usize,
    /// Index of the embedding net.
    pub net: usize,
    pub row: Row,
    /// How many slots look like this: 1, or the number of those in which nobody is seen.
    pub weight: f64,
    /// Index of the pair; `None` where nobody is seen: that does not move.
    pub pair: Option<usize>,
}

/// Everything that the energy of one atom depends on.
#[derive(Debug, Clone)]
pub struct AtomView {
    pub center: usize,
    /// For each descriptor.
    pub entries: Vec<Vec<Entry>>,
    /// Inputs of the fitting net beside the descriptors.
    pub extra: Vec<f64>,
}

/// The descriptor of an atom, with what its derivatives need.
pub trait Described {
    /// Its numbers.
    fn value(&self) -> &[f64];

    /// dE/drow of each entry from dE/dD.
    fn backward(&mut self, de_d: &[f64]) -> Vec<Row>;

    /// The change of D with that of the rows.
    fn tangent(&mut self, row_dot: &[Row]) -> Vec<f64>;

    /// After [`Described::tangent`]: adds the gradient by the parameters, given the adjoints of D and of its change.
    fn gradient_add(&mut self, grad: &mut [f64], dl_d: &[f64], de_d: &[f64]);

    /// A, where more than D may come from its directions.
    fn matrix(&self) -> &[[f64; 4]] {
        unreachable!("outputs that turn with the atoms come from descriptors that have it")
    }

    /// Before [`Described::gradient_add`]: what is added to dL/dA.
    fn add_to_matrix(&mut self, _dl_a: Vec<[f64; 4]>) {
        unreachable!("outputs that turn with the atoms come from descriptors that have it")
    }
}

/// The descriptor of an atom by its form.
fn describe<'a>(
    model: &'a Dp,
    params: &'a [f64],
    center: usize,
    entries: &'a [Entry],
) -> Box<dyn Described + 'a> {
    match model.descriptor().form() {
        Form::Directions { .. } | Form::Distances { .. } => Box::new(pairs::forward(model, params, entries)),
        Form::Angles => Box::new(angles::forward(model, params, entries)),
        Form::Attention { .. } => Box::new(attention::forward(model, params, center, entries)),
    }
}

/// What the first pass gives.
pub struct FirstPass {
    /// Without the bias of the type.
    pub energy: f64,
    /// For each descriptor, `[n_entries]` dE/drow.
    pub de_row: Vec<Vec<Row>>,
}

struct Forward<'a> {
    parts: Vec<Box<dyn Described + 'a>>,
    fitting: Vec<Trace>,
    outputs: Vec<f64>,
    /// The fitting net at a descriptor of zero, where it is taken off.
    vacuum: Option<Vec<Trace>>,
}

/// `models` has one for each descriptor; the fitting nets of all are the same.
fn forward<'a>(models: &'a [Arc<Dp>], params: &'a [f64], view: &'a AtomView) -> Forward<'a> {
    let model = &models[0];
    let parts: Vec<Box<dyn Described + 'a>> = models
        .iter()
        .zip(&view.entries)
        .map(|(model, entries)| describe(model, params, view.center, entries))
        .collect();
    let mut x: Vec<f64> = parts.iter().flat_map(|part| part.value().iter().copied()).collect();
    let n_descriptor = x.len();
    x.extend(&view.extra);
    let (mut outputs, fitting) =
        layer::net_forward(&model.fitting[model.fitting_net(view.center)], params, &x);
    let vacuum = model.removes_vacuum(view.center).then(|| vacuum(model, params, view, n_descriptor));
    outputs[0] -= vacuum.as_ref().map_or(0.0, |(e, _)| *e);
    Forward { parts, fitting, outputs, vacuum: vacuum.map(|(_, traces)| traces) }
}

/// The energy of an atom whose descriptor is zero, which some types have taken off.
fn vacuum(model: &Dp, params: &[f64], view: &AtomView, n_descriptor: usize) -> (f64, Vec<Trace>) {
    let mut x = vec![0.0; n_descriptor];
    x.extend(&view.extra);
    let (e, mut traces) = layer::net_forward(&model.fitting[model.fitting_net(view.center)], params, &x);
    layer::net_tangent(
        &model.fitting[model.fitting_net(view.center)],
        params,
        &mut traces,
        &vec![0.0; x.len()],
    );
    (e[0], traces)
}

/// The fitting net of an atom.
fn fitting_of<'a>(models: &'a [Arc<Dp>], view: &AtomView) -> &'a NetShape {
    &models[0].fitting[models[0].fitting_net(view.center)]
}

/// Where the numbers of each descriptor stand among the inputs of the fitting net.
fn places(models: &[Arc<Dp>]) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |model: &Arc<Dp>| {
        let first = end;
        end += model.n_descriptor();
        first..end
    };
    models.iter().map(place).collect()
}

/// What the fitting net says of an atom, before the statistics enter.
pub fn outputs(models: &[Arc<Dp>], params: &[f64], view: &AtomView) -> Vec<f64> {
    let f = forward(models, params, view);
    f.turned(&models[0], view).map_or(f.outputs.clone(), |turned| turned.forward())
}

impl Forward<'_> {
    /// Where outputs turn with the atoms: how.
    fn turned<'a>(&'a self, model: &Dp, view: &AtomView) -> Option<Turned<'a>> {
        let (made, scale) = (model.output.made, model.options.fitting.net_scale(view.center));
        let a = || self.parts.iter().flat_map(|part| part.matrix().iter().copied()).collect();
        made.is_turned().then(|| Turned { made, scale, a: a(), x: &self.outputs })
    }
}

/// The energy of an atom and its gradient by the rows of the environment matrix.
pub fn first_pass(models: &[Arc<Dp>], params: &[f64], view: &AtomView) -> FirstPass {
    let mut f = forward(models, params, view);
    let de_x = layer::net_backward_input(fitting_of(models, view), params, &f.fitting, &[1.0]);
    let mut de_row = Vec::new();
    for (k, place) in places(models).into_iter().enumerate() {
        de_row.push(f.parts[k].backward(&de_x[place]));
    }
    FirstPass { energy: f.outputs[0], de_row }
}

/// Adds the gradient of `dl_e . e + de_e . (de/drow) . row_dot` by the parameters, e being the outputs of the fitting net; `dl_e` is by
/// [`outputs`].
pub fn second_pass(
    grad: &mut [f64],
    models: &[Arc<Dp>],
    params: &[f64],
    view: &AtomView,
    row_dot: &[Vec<Row>],
    (dl_e, de_e): (&[f64], &[f64]),
) {
    let mut f = forward(models, params, view);
    let fitting = fitting_of(models, view);
    let turned = f.turned(&models[0], view).map(|turned| turned.backward(dl_e));
    let (dl_e, dl_a) = turned.unwrap_or_else(|| (dl_e.to_vec(), Vec::new()));
    let mut dl_a = dl_a.into_iter().peekable();
    if dl_a.peek().is_some() {
        for part in &mut f.parts {
            let rows = part.matrix().len();
            part.add_to_matrix(dl_a.by_ref().take(rows).collect());
        }
    }

    // Tangent: rows -> D -> fitting net.
    let mut x_dot = Vec::new();
    for (k, part) in f.parts.iter_mut().enumerate() {
        x_dot.extend(part.tangent(&row_dot[k]));
    }
    x_dot.extend(vec![0.0; view.extra.len()]);
    layer::net_tangent(fitting, params, &mut f.fitting, &x_dot);

    // Reverse over (value, tangent): the tangent's adjoints are the energy's gradients of the first pass.
    let dl_x = layer::net_backward(grad, fitting, params, &f.fitting, &dl_e, de_e);
    if let Some(traces) = &f.vacuum {
        layer::net_backward(grad, fitting, params, traces, &[-dl_e[0]], &[0.0]);
    }
    let de_x = layer::net_backward_input(fitting, params, &f.fitting, de_e);
    for (k, place) in places(models).into_iter().enumerate() {
        f.parts[k].gradient_add(grad, &dl_x[place.clone()], &de_x[place]);
    }
}
