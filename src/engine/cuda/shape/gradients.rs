//! The gradient of a batch: the products and sums that leave its pieces, and where the update finds them.

use super::super::layout::{self, Columns, Kind, Task, View};
use super::super::products::{Operands, ProductLaunch};
use super::{Builder, Moves};
use crate::gpu::DevicePtr;
use crate::model::net::LayerShape;

impl Builder<'_> {
    /// dW = [x; x_dot]^T [dl_z; de_z] of every hidden layer; pieces of all of them lie at `partial`.
    pub(super) fn weight_gradients(&self, partial: DevicePtr) -> Vec<ProductLaunch> {
        let mut tasks = Vec::new();
        for (c, group) in self.groups.iter().enumerate() {
            for l in 0..self.hidden() {
                let (shape, place) = (&self.model().fitting[c].layers[l], &self.network.places[c][l]);
                let m = &group.layers[l];
                let task = Task {
                    a: m.x,
                    lda: m.ldx as i32,
                    b: m.dz,
                    ldb: m.ldo as i32,
                    c: self.at(partial, place.w),
                    ldc: place.ldw as i32,
                    m: shape.n_in as i32,
                    n: shape.n_out as i32,
                    k: 2 * group.n as i32,
                    kind: Kind::Partial as i32,
                    split_stride: self.network.n_weights as u64,
                    ..Task::default()
                };
                let moves = Moves { times: 2, a_first: 2, b_first: 2, ..Moves::default() };
                tasks.push(self.moving(task, self.extent_of_group(c), moves));
            }
        }
        ProductLaunch::new(self.device(), Operands::Tn, &tasks, None)
    }

    /// Sums over rows of every layer; column o of piece p stands at `[p, o]` of `partial`. Also says, for each layer,
    /// where its sums start (bias or output weights, time step or output bias) and in how many pieces they are.
    pub(super) fn column_tasks(&self, partial: DevicePtr) -> (Vec<Columns>, Vec<[usize; 3]>, usize, usize) {
        let (mut tasks, mut places, mut end, mut block, mut most) = (Vec::new(), Vec::new(), 0, 0, 1);
        let double = |at: usize| partial + 8 * at as u64;
        for (c, group) in self.groups.iter().enumerate() {
            let rows_each = (group.n / 64).max(8);
            let chunks = group.n.div_ceil(rows_each).max(1);
            for (l, shape) in self.model().fitting[c].layers.iter().enumerate() {
                let m = &group.layers[l];
                let output = l == self.hidden();
                let cols = if output { shape.n_in } else { shape.n_out };
                let at = [end, end + cols];
                end += 2 * cols;
                let common = Columns {
                    rows: group.n as i32,
                    cols: cols as i32,
                    rows_each: rows_each as i32,
                    chunks: chunks as i32,
                    extent: self.extent_of_group(c),
                    first_block: block,
                    ..Columns::default()
                };
                tasks.push(if output {
                    Columns {
                        x: m.x,
                        x_dot: self.behind(m.x, group.n, m.ldx),
                        dl_e: self.at(self.batch.dl_e, group.first),
                        t: double(at[0]),
                        b: if shape.b.is_some() { double(at[1]) } else { 0 },
                        ld: m.ldx as i32,
                        ..common
                    }
                } else {
                    Columns {
                        dl_z: m.dz,
                        dl_y: m.dl_y,
                        f: m.f,
                        d: m.d,
                        de_y: m.de_y,
                        z_dot: m.z_dot,
                        b: if shape.b.is_some() { double(at[0]) } else { 0 },
                        t: if shape.idt.is_some() { double(at[1]) } else { 0 },
                        ld: m.ldo as i32,
                        ld_de_y: m.ld_de_y as i32,
                        activation: layout::activation(shape.activation).0,
                        ..common
                    }
                });
                places.push([at[0], at[1], chunks]);
                block += chunks as i32;
                most = most.max(chunks);
            }
        }
        for task in &mut tasks {
            task.stride = end as u64;
        }
        (tasks, places, block as usize, most * end)
    }

    /// Tells every view where the pieces of its gradient are.
    pub(super) fn sources(
        &self,
        weights: DevicePtr,
        splits: &[usize],
        columns: DevicePtr,
        places: &[[usize; 3]],
        stride: u64,
    ) -> Vec<View> {
        let mut views = self.network.views();
        let e = &self.series.embedding;
        let n_nets = e.n_nets as usize;
        for (n, view) in views[..n_nets].iter_mut().enumerate() {
            view.source = e.partial + 8 * (n * e.net_size as usize) as u64;
            view.stride = (n_nets * e.net_size as usize) as u64;
            view.n_pieces = 1;
        }
        let mut next = views[n_nets..].iter_mut();
        let hidden = self.hidden();
        for (c, net) in self.model().fitting.iter().enumerate() {
            for (l, shape) in net.layers.iter().enumerate() {
                let [first, second, chunks] = places[c * net.layers.len() + l];
                let from_columns = |view: Option<&mut View>, at: usize| {
                    let Some(view) = view else { return };
                    (view.source, view.stride) = (columns + 8 * at as u64, stride);
                    (view.n_pieces, view.is_double) = (chunks as i32, 1);
                };
                if l == hidden {
                    from_columns(next.next(), first);
                } else if let Some(view) = next.next() {
                    view.source = self.at(weights, self.network.places[c][l].w);
                    view.stride = self.network.n_weights as u64;
                    view.n_pieces = splits[c * hidden + l] as i32;
                }
                let is = |shape: &LayerShape| (shape.b.is_some(), shape.idt.is_some());
                let (has_b, has_idt) = is(shape);
                if has_b {
                    from_columns(next.next(), if l == hidden { second } else { first });
                }
                if has_idt {
                    from_columns(next.next(), second);
                }
            }
        }
        views
    }
}
