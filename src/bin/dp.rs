//! `dp`: DeePMD-kit's command line, Phalanx underneath.

use phalanx::train::{RunOptions, Start};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let start = match args.get(3).map(String::as_str) {
        Some("--restart") => Start::Restart((&args[4]).into()),
        Some("--finetune") => Start::Finetune((&args[4]).into()),
        _ => Start::Fresh,
    };
    let options = RunOptions {
        input: (&args[2]).into(),
        start,
        output: "out.json".into(),
        skip_neighbor_stat: false,
        use_pretrain_script: false,
        ddp_conventions: false,
        profile: std::env::var("PROF").is_ok(),
        log_level: log::LevelFilter::Info,
        log_path: None,
        mpi_log: "workers".parse().unwrap(),
    };
    if let Err(e) = phalanx::train::main(&options) {
        eprintln!("error: {e}");
        std::process::exit(1)
    }
}
