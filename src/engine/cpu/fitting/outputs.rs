//! Fitting nets whose output is no energy: several numbers of each atom, and a reverse pass without tangents.
//!
//! The hidden layers, their adjoints and the weight gradients are those of the energy. What belongs to tangents, `z_dot` and `de_y`,
//! is zero all the time here, and the halves of stacked buffers that would hold it are left alone.

use super::*;

/// Atoms whose outputs one task makes.
const ROWS: usize = 64;

impl<T: Real> Fitting<T> {
    /// Outputs of group `c` after [`Fitting::forward`], `[n, outputs]`.
    pub fn outputs(&self, c: usize) -> &[T] {
        // SAFETY: written by `&mut self` alone.
        unsafe { self.groups[c].outputs.read(0, self.groups[c].outputs.len()) }
    }

    /// Those of one atom of group `c`.
    pub fn outputs_of(&self, c: usize, atom: usize) -> &[T] {
        let width = self.nets[c].n_out();
        &self.outputs(c)[atom * width..(atom + 1) * width]
    }

    /// dL/doutput of group `c`, `[n, outputs]`, to be filled in before [`Fitting::output_adjoint`].
    pub fn dl_outputs(&mut self, c: usize) -> &mut [T] {
        let (last, n) = (self.n_hidden(), self.groups[c].outputs.len());
        &mut self.groups[c].layers[last].dz.all()[..n]
    }

    /// The linear output layer.
    pub(super) fn make_outputs(&mut self, pool: &Pool, params: &[T]) {
        let (this, last) = (&*self, self.n_hidden());
        for (group, net) in this.groups.iter().zip(&this.nets) {
            let shape = &net.layers[last];
            let (n_in, n_out) = (shape.n_in, shape.n_out);
            pool.run(group.n.div_ceil(ROWS), |t| {
                let (first, rows) = (t * ROWS, ROWS.min(group.n - t * ROWS));
                // SAFETY: the hidden layers wrote x; every task has rows of its own.
                let (x, out) = unsafe {
                    let x = group.layers[last].x.read(first * n_in, rows * n_in);
                    (x, group.outputs.part(first * n_out, rows * n_out))
                };
                match shape.b_range() {
                    Some(b) => {
                        out.chunks_exact_mut(n_out).for_each(|row| row.copy_from_slice(&params[b.clone()]))
                    }
                    None => out.fill(T::ZERO),
                }
                let a = Strided { data: x, row: n_in, col: 1 };
                product(out, n_out, Accumulate::Add, a, &params[shape.w_range()], n_out, rows, n_out, n_in);
            });
        }
    }

    /// dL/dz of the last hidden layer from [`Fitting::dl_outputs`]; [`Fitting::backward`] goes on from there.
    pub fn output_adjoint(&mut self, pool: &Pool, params: &[T]) {
        let last = self.n_hidden();
        assert!(last > 0, "a net without hidden layers is refused when it is read");
        for (group, net) in self.groups.iter_mut().zip(&self.nets) {
            let shape = &net.layers[last];
            group.output_t.resize(shape.n_in * shape.n_out);
            let w = &params[shape.w_range()];
            super::super::dense::transpose(group.output_t.all(), w, shape.n_in, shape.n_out);
        }
        let this = &*self;
        let tasks = &this.schedule.forward[last - 1];
        pool.run(tasks.len(), |t| this.output_adjoint_task(tasks[t], last, params));
    }

    fn output_adjoint_task(&self, task: Task, last: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (net, state) = (&self.nets[group], &self.groups[group]);
        let (shape, layer) = (&net.layers[last - 1], &state.layers[last - 1]);
        let (n, width, n_out) = (state.n, shape.n_out, net.layers[last].n_out);
        let start = row * width + col;
        let columns = Columns::new(shape, params, col, cols);
        let mut sums = Sums::default();
        // SAFETY: tasks are disjoint blocks; what they read is written by nobody meanwhile.
        unsafe {
            let dl_out = state.layers[last].dz.read(row * n_out, rows * n_out);
            let a = Strided { data: dl_out, row: n_out, col: 1 };
            let w_t = &state.output_t.read(0, n_out * width)[col..];
            product_into(
                layer.dl_y.at(start),
                width,
                Accumulate::Overwrite,
                a,
                w_t,
                width,
                rows,
                cols,
                n_out,
            );
            let extent = Extent { rows, cols, ld: width };
            rows::loss_adjoint(extent, layer.reverse(start), &columns.scale, [None, None], &mut sums);
            let chunk = row / row_chunk::<T>(last - 1, last);
            transpose_into(layer.dz_t.at(col * n + row), n, layer.dz.at(start), width, rows, cols);
            layer.keep_sums(&sums, chunk, width, col, cols);
        }
    }

    /// The gradient of the biases of the output layer.
    pub(super) fn output_bias_gradient(&self, group: usize, take: &impl Fn(usize, &[T])) {
        let (shape, state) = (&self.nets[group].layers[self.n_hidden()], &self.groups[group]);
        let Some(b) = shape.b else { return };
        // SAFETY: earlier stages wrote it.
        let dl_outputs = unsafe { state.layers[self.n_hidden()].dz.read(0, state.n * shape.n_out) };
        scratch(shape.n_out, |total: &mut [T]| {
            total.fill(T::ZERO);
            dl_outputs.chunks_exact(shape.n_out).for_each(|row| add(total, row));
            take(b, total);
        });
    }
}
