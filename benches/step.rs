//! How fast a training step is: `cargo bench --bench step`.
//!
//! The stock water network on the bundled water data (or on the systems given as arguments), float64 and float32,
//! batches of 1, 4 and 16 frames, with embedding nets as they are at the start, with trained ones, and by the net itself:
//! samples/s, GFLOP/s, share of the measured peak of
//! matrix products, and where the time goes. `STEP_BENCH="float64 fresh 4"` leaves the others out, `STEP_BENCH=prepare` all
//! but the preparation of a frame.

mod case;

use case::{Case, Nets, Variant, peak};
use phalanx::engine::cpu::real::Real;

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

fn main() {
    let systems: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let case = Case::open(&Variant::stock(), &systems);
    println!(
        "{} threads, {} atoms, {} parameters",
        case.threads,
        case.frames[0].n_atoms(),
        case.model.table.len()
    );
    if wanted("prepare") {
        let [list, slots, columns] = case.prepare().map(|seconds| 1e3 * seconds);
        let sum = list + slots + columns;
        println!(
            "a frame is prepared in {sum:.2} ms of one core: list {list:.2}, slots {slots:.2}, columns {columns:.2}"
        );
    }
    let peak = (peak::<f64>(case.threads), peak::<f32>(case.threads));
    println!("matrix products: {:.1} GFLOP/s float64, {:.1} float32", peak.0, peak.1);
    println!("precision  embedding  batch    ms/step  samples/s   GFLOP/s   of peak");
    for batch in [1, 4, 16] {
        for nets in [Nets::Fresh, Nets::Trained] {
            time::<f64>(&case, "float64", nets, batch, peak.0);
            time::<f32>(&case, "float32", nets, batch, peak.1);
        }
    }
    time::<f64>(&case, "float64", Nets::Direct, 1, peak.0);
}

/// Whether STEP_BENCH leaves this one in.
fn wanted(name: &str) -> bool {
    std::env::var("STEP_BENCH").map_or(true, |only| only == name)
}

fn time<T: Real>(case: &Case, precision: &str, nets: Nets, batch: usize, peak: f64) {
    let embedding = format!("{nets:?}").to_lowercase();
    if !wanted(&format!("{precision} {embedding} {batch}")) {
        return;
    }
    let timing = case.time::<T>(nets, batch, 2.0);
    let rate = case.flops(batch, timing.plan.as_ref()) / timing.median * 1e-9;
    println!(
        "{precision:<10} {embedding:<9} {batch:>6} {:>10.2} {:>10.1} {rate:>9.1} {:>8.0}%",
        timing.median * 1e3,
        batch as f64 / timing.median,
        100.0 * rate / peak
    );
    let plan = timing.plan.map_or("no series".to_string(), |plan| plan.to_string());
    println!("    {} ({plan}, best {:.2} ms)", timing.stages, timing.best * 1e3);
}
