//! How the cost of a training step grows: `cargo bench --bench growth`.
//!
//! One thing at a time is changed in the stock water network on the bundled water data (or on the systems given as
//! arguments): atoms, neighbours, frames in a batch, sizes of the nets, threads, precision. `GROWTH=atoms` (or neighbours,
//! batch, fitting, embedding, threads) leaves the others out.

mod case;

use case::{Case, Nets, Variant};
use phalanx::engine::cpu::chebyshev::Plan;

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

fn main() {
    let systems: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let stock = Variant { frames: 4, ..Variant::stock() };
    let wanted = |name: &str| std::env::var("GROWTH").map_or(true, |only| only == name);
    println!("{} threads; ms/step are medians", stock.threads);
    println!(
        "                                  atoms  neighbours columns  frames  float64 ms  us/atom  float32 ms  prepare ms"
    );
    let row = |name: &str, variant: &Variant, batch: usize| {
        let case = Case::open(variant, &systems);
        let double = case.time::<f64>(Nets::Fresh, batch, 1.5);
        let single = case.time::<f32>(Nets::Fresh, batch, 1.0);
        let (n, prepare) = (case.frames[0].n_atoms(), case.prepare().iter().sum::<f64>());
        println!(
            "{name:<32} {n:>6} {:>11.0} {:>6} {batch:>7} {:>11.2} {:>8.1} {:>11.2} {:>11.2}",
            case.neighbors(),
            double.plan.as_ref().map_or(0, Plan::columns),
            1e3 * double.median,
            1e6 * double.median / (n * batch) as f64,
            1e3 * single.median,
            1e3 * prepare
        );
    };
    if wanted("atoms") {
        for copies in [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2], [4, 2, 2]] {
            let frames = if copies == [1, 1, 1] { 4 } else { 2 };
            row("atoms", &Variant { copies, frames, ..stock.clone() }, 1);
        }
    }
    if wanted("neighbours") {
        for (rcut, sel) in [
            (4.0, vec![16, 30]),
            (5.0, vec![30, 56]),
            (6.0, vec![46, 92]),
            (7.0, vec![76, 146]),
            (8.0, vec![110, 220]),
        ] {
            row(&format!("rcut {rcut} A, sel {sel:?}"), &Variant { rcut, sel, ..stock.clone() }, 1);
        }
    }
    if wanted("batch") {
        for batch in [1, 2, 4, 8, 16] {
            row("frames in a batch", &Variant { frames: 16, ..stock.clone() }, batch);
        }
    }
    if wanted("fitting") {
        for width in [60, 120, 240, 400] {
            row(&format!("fitting {width} x 3"), &Variant { fitting: vec![width; 3], ..stock.clone() }, 1);
        }
    }
    if wanted("embedding") {
        for embedding in [vec![10, 20, 40], vec![25, 50, 100], vec![32, 64, 128]] {
            row(&format!("embedding {embedding:?}"), &Variant { embedding, ..stock.clone() }, 1);
        }
    }
    if wanted("threads") {
        for threads in 1..=stock.threads {
            row(&format!("{threads} threads"), &Variant { threads, ..stock.clone() }, 1);
        }
    }
}
