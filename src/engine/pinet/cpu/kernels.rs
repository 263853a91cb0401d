//! Loops over vectors. Rows are short (16 numbers or so), so they are walked in chunks of fixed size, which the compiler
//! turns into whole vectors; long loops go over all rows of a block at once.

use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;
use crate::engine::pinet::activation::jet;
use crate::model::pinet::options::Act;

/// tanh to a few last bits. For float32 a quotient of two polynomials of x^2, fitted up to 9, where tanh rounds to 1: half
/// the operations of the general one.
#[inline(always)]
pub fn tanh<T: Real>(x: T) -> T {
    if size_of::<T>() != 4 {
        return x.tanh();
    }
    const P: [f64; 5] = [9.99999980e-01, 1.33810287e-01, 3.49559151e-03, 2.06091292e-05, 1.33547129e-08];
    const Q: [f64; 5] = [1.0, 4.67143444e-01, 2.58769958e-02, 3.28563994e-04, 7.77658207e-07];
    let most = T::from_f64(9.0);
    // Comparisons that leave what is not a number as it is.
    let x = if x > most { most } else { x };
    let x = if x < -most { -most } else { x };
    let square = x * x;
    let (mut p, mut q) = (T::from_f64(P[4]), T::from_f64(Q[4]));
    for k in (0..4).rev() {
        p = p.fma(square, T::from_f64(P[k]));
        q = q.fma(square, T::from_f64(Q[k]));
    }
    x * p / q
}

multiversion! {
    /// f = tanh(f)
    pub fn tanh_all<T: Real>(f: &mut [T]) {
        for x in f.iter_mut() {
            *x = tanh(*x);
        }
    }
}

/// Replaces pre-activations by act, and writes act' and act''.
pub fn jets<T: Real>(f: &mut [T], d: &mut [T], dd: &mut [T], act: Act) {
    for ((f, d), dd) in f.iter_mut().zip(d).zip(dd) {
        [*f, *d, *dd] = jet(act, f.to_f64()).map(T::from_f64);
    }
}

multiversion! {
    /// out = a (1 - f^2): through tanh
    pub fn through_tanh<T: Real>(out: &mut [T], a: &[T], f: &[T]) {
        let n = out.len();
        let (a, f) = (&a[..n], &f[..n]);
        for k in 0..n {
            out[k] = a[k] * (T::ONE - f[k] * f[k]);
        }
    }
}

multiversion! {
    /// a *= 1 - f^2
    pub fn scale_by_tanh_slope<T: Real>(a: &mut [T], f: &[T]) {
        let n = a.len();
        let f = &f[..n];
        for k in 0..n {
            a[k] = a[k] * (T::ONE - f[k] * f[k]);
        }
    }
}

multiversion! {
    /// Both adjoints through tanh: de_z = de f', dl_z = dl f' - 2 f y_dot de.
    pub fn both_through_tanh<T: Real>(dl_z: &mut [T], de_z: &mut [T], dl: &[T], de: &[T], f: &[T], y_dot: &[T]) {
        let n = dl_z.len();
        let (de_z, dl, de, f, y_dot) = (&mut de_z[..n], &dl[..n], &de[..n], &f[..n], &y_dot[..n]);
        for k in 0..n {
            let slope = T::ONE - f[k] * f[k];
            let bend = -(f[k] + f[k]) * y_dot[k];
            de_z[k] = de[k] * slope;
            dl_z[k] = dl[k].fma(slope, bend * de[k]);
        }
    }
}

multiversion! {
    /// out = a b
    pub fn multiply<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        let n = out.len();
        let (a, b) = (&a[..n], &b[..n]);
        for k in 0..n {
            out[k] = a[k] * b[k];
        }
    }
}

multiversion! {
    /// The tangent through an activation: bend = dd a, then a = d a.
    pub fn bend<T: Real>(a: &mut [T], bend: &mut [T], d: &[T], dd: &[T]) {
        let n = a.len();
        let (bend, d, dd) = (&mut bend[..n], &d[..n], &dd[..n]);
        for k in 0..n {
            bend[k] = dd[k] * a[k];
            a[k] = d[k] * a[k];
        }
    }
}

multiversion! {
    /// Both adjoints through an activation: de_z = de d, dl_z = dl d + de bend.
    pub fn both_through<T: Real>(dl_z: &mut [T], de_z: &mut [T], dl: &[T], de: &[T], d: &[T], bend: &[T]) {
        let n = dl_z.len();
        let (de_z, dl, de, d, bend) = (&mut de_z[..n], &dl[..n], &de[..n], &d[..n], &bend[..n]);
        for k in 0..n {
            de_z[k] = de[k] * d[k];
            dl_z[k] = dl[k].fma(d[k], bend[k] * de[k]);
        }
    }
}

/// Numbers of a chunk: one vector of float32, two of float64.
pub const CHUNK: usize = 16;

/// One statement for every element of rows of `n` numbers: in chunks of a length that the compiler knows, then the
/// rest. The first list names what is written, the second what is read.
macro_rules! each {
    ($n:expr, [$($out:ident),*], [$($x:ident),*], $k:ident, $body:expr) => {{
        let n = $n;
        let mut first = 0;
        while first + CHUNK <= n {
            $(let $out = &mut $out[first..first + CHUNK];)*
            $(let $x = &$x[first..first + CHUNK];)*
            for $k in 0..CHUNK {
                $body
            }
            first += CHUNK;
        }
        $(let $out = &mut $out[first..n];)*
        $(let $x = &$x[first..n];)*
        for $k in 0..n - first {
            $body
        }
    }};
}

multiversion! {
    /// y = tanh(y + b) for rows of the length of b
    pub fn tanh_rows<T: Real>(y: &mut [T], b: &[T]) {
        let n = b.len();
        for y in y.chunks_exact_mut(n) {
            each!(n, [y], [b], k, y[k] = tanh(y[k] + b[k]));
        }
    }
}

multiversion! {
    /// Row p of y is tanh(row i[p] of u plus row j[p] of v).
    pub fn tanh_gathered<T: Real>(y: &mut [T], u: &[T], v: &[T], i: &[u32], j: &[u32], n: usize) {
        for (y, (i, j)) in y.chunks_exact_mut(n).zip(i.iter().zip(j)) {
            let u = &u[*i as usize * n..][..n];
            let v = &v[*j as usize * n..][..n];
            each!(n, [y], [u, v], k, y[k] = tanh(u[k] + v[k]));
        }
    }
}

multiversion! {
    /// Row p of y is (row i[p] of u plus row j[p] of v) times 1 - f^2.
    pub fn tanh_slope_gathered<T: Real>(y: &mut [T], f: &[T], u: &[T], v: &[T], i: &[u32], j: &[u32], n: usize) {
        for ((y, f), (i, j)) in y.chunks_exact_mut(n).zip(f.chunks_exact(n)).zip(i.iter().zip(j)) {
            let u = &u[*i as usize * n..][..n];
            let v = &v[*j as usize * n..][..n];
            each!(n, [y], [f, u, v], k, y[k] = (u[k] + v[k]) * (T::ONE - f[k] * f[k]));
        }
    }
}

multiversion! {
    /// Row p of y is row i[p] of u plus row j[p] of v.
    pub fn add_gathered<T: Real>(y: &mut [T], u: &[T], v: &[T], i: &[u32], j: &[u32], n: usize) {
        for (y, (i, j)) in y.chunks_exact_mut(n).zip(i.iter().zip(j)) {
            let u = &u[*i as usize * n..][..n];
            let v = &v[*j as usize * n..][..n];
            each!(n, [y], [u, v], k, y[k] = u[k] + v[k]);
        }
    }
}

/// CHUNK numbers from `first` on, in registers.
#[inline(always)]
fn chunk<T: Real>(x: &[T], first: usize) -> [T; CHUNK] {
    let mut c = [T::ZERO; CHUNK];
    c.copy_from_slice(&x[first..first + CHUNK]);
    c
}

#[inline(always)]
fn add_chunk<T: Real>(sum: &mut [T; CHUNK], x: &[T], first: usize) {
    let x = &x[first..first + CHUNK];
    for l in 0..CHUNK {
        sum[l] += x[l];
    }
}

#[inline(always)]
fn fma_chunk<T: Real>(sum: &mut [T; CHUNK], a: T, x: &[T], first: usize) {
    let x = &x[first..first + CHUNK];
    for l in 0..CHUNK {
        sum[l] = a.fma(x[l], sum[l]);
    }
}

multiversion! {
    /// Every row of y is `row`.
    pub fn fill_rows<T: Real>(y: &mut [T], row: &[T]) {
        let n = row.len();
        let mut first = 0;
        while first + CHUNK <= n {
            let c = chunk(row, first);
            for y in y.chunks_exact_mut(n) {
                y[first..first + CHUNK].copy_from_slice(&c);
            }
            first += CHUNK;
        }
        if first < n {
            for y in y.chunks_exact_mut(n) {
                (first..n).for_each(|k| y[k] = row[k]);
            }
        }
    }
}

multiversion! {
    /// y = sum of the rows of x, n numbers each; added where `add`.
    pub fn sum_rows<T: Real>(y: &mut [T], x: &[T], n: usize, add: bool) {
        let y = &mut y[..n];
        if !add {
            y.fill(T::ZERO);
        }
        let mut first = 0;
        while first + CHUNK <= n {
            let mut sum = chunk(y, first);
            for x in x.chunks_exact(n) {
                add_chunk(&mut sum, x, first);
            }
            y[first..first + CHUNK].copy_from_slice(&sum);
            first += CHUNK;
        }
        if first < n {
            for x in x.chunks_exact(n) {
                (first..n).for_each(|k| y[k] += x[k]);
            }
        }
    }
}

multiversion! {
    /// y += the rows of x that `index` names.
    pub fn sum_gathered_add<T: Real>(y: &mut [T], x: &[T], index: &[u32], n: usize) {
        let y = &mut y[..n];
        let mut first = 0;
        while first + CHUNK <= n {
            let mut sum = chunk(y, first);
            for p in index {
                add_chunk(&mut sum, &x[*p as usize * n..][..n], first);
            }
            y[first..first + CHUNK].copy_from_slice(&sum);
            first += CHUNK;
        }
        if first < n {
            for p in index {
                let x = &x[*p as usize * n..][..n];
                (first..n).for_each(|k| y[k] += x[k]);
            }
        }
    }
}

multiversion! {
    /// y_c = sum_b w_(b c) e_b for each row: `c` channels, `b` radial functions.
    pub fn contract<T: Real>(y: &mut [T], w: &[T], e: &[T], c: usize, b: usize) {
        for ((y, w), e) in y.chunks_exact_mut(c).zip(w.chunks_exact(b * c)).zip(e.chunks_exact(b)) {
            let mut first = 0;
            while first + CHUNK <= c {
                let mut sum = [T::ZERO; CHUNK];
                for (e, w) in e.iter().zip(w.chunks_exact(c)) {
                    fma_chunk(&mut sum, *e, w, first);
                }
                y[first..first + CHUNK].copy_from_slice(&sum);
                first += CHUNK;
            }
            for k in first..c {
                y[k] = e.iter().enumerate().map(|(b, e)| *e * w[b * c + k]).sum();
            }
        }
    }
}

multiversion! {
    /// w = tanh(w + bias) and [`contract`] at one go.
    pub fn tanh_contract<T: Real>(y: &mut [T], w: &mut [T], bias: &[T], e: &[T], c: usize, b: usize) {
        for ((y, w), e) in y.chunks_exact_mut(c).zip(w.chunks_exact_mut(b * c)).zip(e.chunks_exact(b)) {
            let mut first = 0;
            while first + CHUNK <= c {
                let mut sum = [T::ZERO; CHUNK];
                for (l, e) in e.iter().enumerate() {
                    let at = l * c + first..l * c + first + CHUNK;
                    let (w, bias) = (&mut w[at.clone()], &bias[at]);
                    for k in 0..CHUNK {
                        w[k] = tanh(w[k] + bias[k]);
                        sum[k] = e.fma(w[k], sum[k]);
                    }
                }
                y[first..first + CHUNK].copy_from_slice(&sum);
                first += CHUNK;
            }
            for k in first..c {
                let mut sum = T::ZERO;
                for (l, e) in e.iter().enumerate() {
                    w[l * c + k] = tanh(w[l * c + k] + bias[l * c + k]);
                    sum = e.fma(w[l * c + k], sum);
                }
                y[k] = sum;
            }
        }
    }
}

multiversion! {
    /// w_dot *= 1 - w^2 and y_c = sum_b w_dot_(b c) e_b + w_(b c) f_b: the tangent of [`tanh_contract`].
    pub fn tanh_contract_tangent<T: Real>(y: &mut [T], w_dot: &mut [T], w: &[T], e: &[T], f: &[T], c: usize, b: usize) {
        let factors = e.chunks_exact(b).zip(f.chunks_exact(b));
        let rows = w_dot.chunks_exact_mut(b * c).zip(w.chunks_exact(b * c));
        for ((y, (w_dot, w)), (e, f)) in y.chunks_exact_mut(c).zip(rows).zip(factors) {
            let mut first = 0;
            while first + CHUNK <= c {
                let mut sum = [T::ZERO; CHUNK];
                for (l, (e, f)) in e.iter().zip(f).enumerate() {
                    let at = l * c + first..l * c + first + CHUNK;
                    let (w_dot, w) = (&mut w_dot[at.clone()], &w[at]);
                    for k in 0..CHUNK {
                        w_dot[k] = w_dot[k] * (T::ONE - w[k] * w[k]);
                        sum[k] = e.fma(w_dot[k], f.fma(w[k], sum[k]));
                    }
                }
                y[first..first + CHUNK].copy_from_slice(&sum);
                first += CHUNK;
            }
            for k in first..c {
                let mut sum = T::ZERO;
                for (l, (e, f)) in e.iter().zip(f).enumerate() {
                    let at = l * c + k;
                    w_dot[at] = w_dot[at] * (T::ONE - w[at] * w[at]);
                    sum = e.fma(w_dot[at], f.fma(w[at], sum));
                }
                y[k] = sum;
            }
        }
    }
}

multiversion! {
    /// y_c = sum_b w_(b c) e_b + v_(b c) f_b: the tangent of [`contract`].
    pub fn contract_two<T: Real>(y: &mut [T], w: &[T], e: &[T], v: &[T], f: &[T], c: usize, b: usize) {
        let factors = e.chunks_exact(b).zip(f.chunks_exact(b));
        let rows = w.chunks_exact(b * c).zip(v.chunks_exact(b * c));
        for ((y, (w, v)), (e, f)) in y.chunks_exact_mut(c).zip(rows).zip(factors) {
            let mut first = 0;
            while first + CHUNK <= c {
                let mut sum = [T::ZERO; CHUNK];
                let parts = w.chunks_exact(c).zip(v.chunks_exact(c));
                for ((e, f), (w, v)) in e.iter().zip(f).zip(parts) {
                    fma_chunk(&mut sum, *e, w, first);
                    fma_chunk(&mut sum, *f, v, first);
                }
                y[first..first + CHUNK].copy_from_slice(&sum);
                first += CHUNK;
            }
            for k in first..c {
                y[k] = (0..b).map(|l| e[l] * w[l * c + k] + f[l] * v[l * c + k]).sum();
            }
        }
    }
}

multiversion! {
    /// The adjoint of [`contract`]: dw_(b c) = dy_c e_b, de_b += sum_c dy_c w_(b c).
    pub fn contract_back<T: Real>(dw: &mut [T], de: &mut [T], dy: &[T], w: &[T], e: &[T], c: usize, b: usize) {
        let factors = e.chunks_exact(b).zip(de.chunks_exact_mut(b));
        let rows = dw.chunks_exact_mut(b * c).zip(w.chunks_exact(b * c));
        for ((dy, (dw, w)), (e, de)) in dy.chunks_exact(c).zip(rows).zip(factors) {
            let parts = dw.chunks_exact_mut(c).zip(w.chunks_exact(c));
            for ((e, de), (dw, w)) in e.iter().zip(de).zip(parts) {
                let mut sums = [T::ZERO; CHUNK];
                each!(c, [dw], [dy, w], k, {
                    dw[k] = dy[k] * *e;
                    sums[k] = dy[k].fma(w[k], sums[k]);
                });
                *de += sum_of(sums);
            }
        }
    }
}

multiversion! {
    /// dw_(b c) = dl_c e_b + de_c f_b
    pub fn contract_both_back<T: Real>(dw: &mut [T], dl: &[T], e: &[T], de: &[T], f: &[T], c: usize, b: usize) {
        let factors = e.chunks_exact(b).zip(f.chunks_exact(b));
        let rows = dl.chunks_exact(c).zip(de.chunks_exact(c));
        for ((dw, (dl, de)), (e, f)) in dw.chunks_exact_mut(b * c).zip(rows).zip(factors) {
            for ((e, f), dw) in e.iter().zip(f).zip(dw.chunks_exact_mut(c)) {
                each!(c, [dw], [dl, de], k, dw[k] = dl[k].fma(*e, de[k] * *f));
            }
        }
    }
}

multiversion! {
    /// dw_(b c) = dl_c e_b
    pub fn contract_outer<T: Real>(dw: &mut [T], dl: &[T], e: &[T], c: usize, b: usize) {
        for ((dw, dl), e) in dw.chunks_exact_mut(b * c).zip(dl.chunks_exact(c)).zip(e.chunks_exact(b)) {
            for (e, dw) in e.iter().zip(dw.chunks_exact_mut(c)) {
                each!(c, [dw], [dl], k, dw[k] = dl[k] * *e);
            }
        }
    }
}

multiversion! {
    /// An adjoint through [`contract`] and the tanh before it: z_(b c) = dy_c e_b (1 - w_(b c)^2).
    pub fn radial_back<T: Real>(z: &mut [T], dy: &[T], w: &[T], e: &[T], c: usize, b: usize) {
        let rows = z.chunks_exact_mut(b * c).zip(w.chunks_exact(b * c));
        for ((dy, (z, w)), e) in dy.chunks_exact(c).zip(rows).zip(e.chunks_exact(b)) {
            let parts = z.chunks_exact_mut(c).zip(w.chunks_exact(c));
            for (e, (z, w)) in e.iter().zip(parts) {
                each!(c, [z], [dy, w], k, z[k] = dy[k] * *e * (T::ONE - w[k] * w[k]));
            }
        }
    }
}

multiversion! {
    /// As [`radial_back`], and de_b += sum_c dy_c w_(b c).
    pub fn radial_back_both<T: Real>(z: &mut [T], de: &mut [T], dy: &[T], w: &[T], e: &[T], c: usize, b: usize) {
        let factors = e.chunks_exact(b).zip(de.chunks_exact_mut(b));
        let rows = z.chunks_exact_mut(b * c).zip(w.chunks_exact(b * c));
        for ((dy, (z, w)), (e, de)) in dy.chunks_exact(c).zip(rows).zip(factors) {
            let parts = z.chunks_exact_mut(c).zip(w.chunks_exact(c));
            for ((e, de), (z, w)) in e.iter().zip(de).zip(parts) {
                let mut sums = [T::ZERO; CHUNK];
                each!(c, [z], [dy, w], k, {
                    z[k] = dy[k] * *e * (T::ONE - w[k] * w[k]);
                    sums[k] = dy[k].fma(w[k], sums[k]);
                });
                *de += sum_of(sums);
            }
        }
    }
}

/// What both adjoints through a contraction and the tanh before it are made of.
#[derive(Clone, Copy)]
pub struct RadialAdjoint<'a, T> {
    pub dl: &'a [T],
    pub de: &'a [T],
    pub w: &'a [T],
    pub w_dot: &'a [T],
    pub e: &'a [T],
    pub e_dot: &'a [T],
}

multiversion! {
    /// Both adjoints before the tanh: with g = de_c e_b, de_z = g w', dl_z = (dl_c e_b + de_c f_b) w' - 2 w w_dot g.
    pub fn radial_adjoint<T: Real>(dl_z: &mut [T], de_z: &mut [T], a: RadialAdjoint<'_, T>, c: usize, b: usize) {
        let rows = dl_z.chunks_exact_mut(b * c).zip(de_z.chunks_exact_mut(b * c));
        for (r, (dl_z, de_z)) in rows.enumerate() {
            let (dl, de) = (&a.dl[r * c..(r + 1) * c], &a.de[r * c..(r + 1) * c]);
            for l in 0..b {
                let (e, f) = (a.e[r * b + l], a.e_dot[r * b + l]);
                let at = (r * b + l) * c;
                let (w, w_dot) = (&a.w[at..at + c], &a.w_dot[at..at + c]);
                let (dl_z, de_z) = (&mut dl_z[l * c..(l + 1) * c], &mut de_z[l * c..(l + 1) * c]);
                each!(c, [dl_z, de_z], [dl, de, w, w_dot], k, {
                    let slope = T::ONE - w[k] * w[k];
                    let g = de[k] * e;
                    de_z[k] = g * slope;
                    let h = dl[k].fma(e, de[k] * f);
                    dl_z[k] = h.fma(slope, -(w[k] + w[k]) * w_dot[k] * g);
                });
            }
        }
    }
}

/// The sum of a chunk, halves first.
#[inline(always)]
pub fn sum_of<T: Real>(sums: [T; CHUNK]) -> T {
    let mut s = sums;
    let mut n = CHUNK / 2;
    while n > 0 {
        for k in 0..n {
            s[k] += s[k + n];
        }
        n /= 2;
    }
    s[0]
}

/// The components of a tensor that a pair turns: p_j + a_i + d.
#[derive(Clone, Copy)]
pub struct Turned<'a, T> {
    pub p: Option<&'a [T]>,
    pub a: Option<&'a [T]>,
    pub d: &'a [T],
}

impl<T: Real> Turned<'_, T> {
    /// Component x of channel k.
    #[inline(always)]
    pub fn at(&self, x: usize, k: usize, n: usize) -> T {
        let of = |m: Option<&[T]>| m.map_or(T::ZERO, |m| m[x * n + k]);
        of(self.p) + of(self.a) + self.d[x]
    }
}

multiversion! {
    /// y_(x k) += t_(x k) s_k
    pub fn turn_add<T: Real>(y: &mut [T], t: Turned<'_, T>, s: &[T]) {
        let n = s.len();
        for (x, y) in y.chunks_exact_mut(n).enumerate() {
            (0..n).for_each(|k| y[k] = t.at(x, k, n).fma(s[k], y[k]));
        }
    }
}

multiversion! {
    /// ds_k += sum_x t_(x k) dy_(x k)
    pub fn turn_back_add<T: Real>(ds: &mut [T], t: Turned<'_, T>, dy: &[T]) {
        let n = ds.len();
        for (x, dy) in dy.chunks_exact(n).enumerate() {
            (0..n).for_each(|k| ds[k] = t.at(x, k, n).fma(dy[k], ds[k]));
        }
    }
}

multiversion! {
    /// dp_(x k) += s_k dy_(x k)
    pub fn spread_add<T: Real>(dp: &mut [T], s: &[T], dy: &[T]) {
        let n = s.len();
        for (dp, dy) in dp.chunks_exact_mut(n).zip(dy.chunks_exact(n)) {
            each!(n, [dp], [s, dy], k, dp[k] = s[k].fma(dy[k], dp[k]));
        }
    }
}
