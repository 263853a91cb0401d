//! A campaign of faults against the real `dp train`: ranks are killed and stopped, files are cut and changed, writes fail, strangers
//! call. Each trial has to end with the undisturbed curve, bit for bit, or with a clear refusal that loses nothing.
//!
//! What is random follows from a seed, which is printed: `PHALANX_FAULTS_SEED` chooses another. `tools/soak` runs the same trials
//! for hours, with other numbers of ranks and other launchers.

#[path = "../common/mod.rs"]
mod common;
mod campaign; // one job, its faults, and how it ended
mod chance; // random choices from a seed
mod meeting; // ranks that come late, pause, or are not of the job
mod strangers; // others at the ports of a job

use campaign::{Campaign, TRAININGS};
use chance::Chance;
use common::place::my_turn;
use std::time::{Duration, Instant};

/// Trials of each kind in CI.
const TRIALS: usize = if cfg!(debug_assertions) { 1 } else { 8 };

fn seed() -> u64 {
    let chosen = std::env::var("PHALANX_FAULTS_SEED").ok();
    chosen.map_or(20_261_116, |seed| seed.parse().expect("PHALANX_FAULTS_SEED is a whole number"))
}

/// A campaign and its choices; prints what is needed to do the same again.
fn begin(name: &str) -> (Campaign, Chance) {
    println!("{name}: PHALANX_FAULTS_SEED={}", seed());
    (Campaign::new(&TRAININGS[0], false), Chance::new(seed(), name))
}

#[test]
fn ranks_that_are_killed_or_stopped_go_on_to_the_undisturbed_curve() {
    let _turn = my_turn();
    let (campaign, mut chance) = begin("killed or stopped");
    for k in 0..TRIALS {
        println!("trial {k}: {}", campaign.strike_ranks(&mut chance));
    }
}

/// Several branches, ranks that share frames, best checkpoints, and optimisers whose state is more than moments.
#[test]
fn other_trainings_go_on_to_their_undisturbed_curves() {
    let _turn = my_turn();
    println!("other trainings: PHALANX_FAULTS_SEED={}", seed());
    for training in &TRAININGS[1..] {
        let campaign = Campaign::new(training, false);
        let mut chance = Chance::new(seed(), training.name);
        for k in 0..TRIALS.div_ceil(4) {
            println!("trial {k}: {}", campaign.strike_ranks(&mut chance));
        }
    }
}

#[test]
fn files_that_are_cut_or_changed_are_refused_or_do_no_harm() {
    let _turn = my_turn();
    let (campaign, mut chance) = begin("cut or changed");
    for k in 0..TRIALS {
        println!("trial {k}: {}", campaign.damage_a_file(&mut chance));
    }
}

#[test]
fn writes_that_fail_cost_no_more_than_the_steps_since_the_last_checkpoint() {
    let _turn = my_turn();
    let (campaign, mut chance) = begin("writes that fail");
    for k in 0..TRIALS.div_ceil(2) {
        println!("trial {k}: {}", campaign.let_writes_fail(&mut chance));
    }
}

#[test]
fn strangers_at_the_port_change_nothing() {
    let _turn = my_turn();
    let (campaign, mut chance) = begin("strangers");
    for k in 0..2 {
        println!("trial {k}: {}", campaign.invite_strangers(&mut chance));
    }
}

/// Not of CI: `tools/soak` runs it, for `PHALANX_SOAK_SECONDS`.
#[test]
#[ignore = "runs for hours: tools/soak"]
fn soak() {
    let seconds = std::env::var("PHALANX_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3600);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut chance = Chance::new(seed(), "soak");
    let campaigns: Vec<Campaign> = TRAININGS.iter().map(|training| Campaign::new(training, true)).collect();
    println!("soak for {seconds} s, PHALANX_FAULTS_SEED={}; launchers: {}", seed(), campaigns[0].launchers());
    let (mut trials, mut outcomes) = (0, std::collections::BTreeMap::<String, usize>::new());
    while Instant::now() < deadline {
        let began = Instant::now();
        let campaign = chance.one_of(&campaigns);
        let told = match chance.below(8) {
            0..=3 => campaign.strike_ranks(&mut chance),
            4 | 5 => campaign.damage_a_file(&mut chance),
            6 => campaign.let_writes_fail(&mut chance),
            _ => campaign.invite_strangers(&mut chance),
        };
        println!("trial {trials}: {told}; {:.1} s", began.elapsed().as_secs_f64());
        trials += 1;
        *outcomes.entry(told.rsplit(": ").next().unwrap_or_default().to_string()).or_default() += 1;
    }
    println!("{trials} trials, none failed:");
    for (outcome, count) in outcomes {
        println!("  {count:6}  {outcome}");
    }
}
