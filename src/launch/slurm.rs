//! Slurm's srun.
//!
//! Only a process that srun started is a rank. The script of sbatch, and a shell of salloc, also see SLURM_PROCID=0
//! and SLURM_NTASKS=N, but no step: a plain `dp train` there is one process.

use super::{MpiFamily, Place, vars::Vars};
use crate::error::Result;
use crate::{bail, err};

/// Steps from here on are Slurm's own (batch script, interactive shell, extern), not tasks of srun.
const FIRST_SPECIAL_STEP: usize = 0xffff_fff0;

pub fn detect(vars: &Vars) -> Result<Option<Place>> {
    let Some(step) = vars.count("SLURM_STEP_ID")? else { return Ok(None) };
    if step >= FIRST_SPECIAL_STEP || !vars.has("SLURM_PROCID") {
        return Ok(None);
    }
    let size_name = if vars.has("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let tasks_name = if vars.has("SLURM_STEP_TASKS_PER_NODE") {
        "SLURM_STEP_TASKS_PER_NODE"
    } else {
        "SLURM_TASKS_PER_NODE"
    };
    let node = vars.need_count("SLURM_NODEID", "SLURM_PROCID")?;
    let tasks = tasks_per_node(tasks_name, &vars.need_text(tasks_name, "SLURM_PROCID")?)?;
    let Some(&local_size) = tasks.get(node) else {
        bail!("SLURM_NODEID={node}, but {tasks_name} lists {} hosts", tasks.len());
    };
    let place = Place {
        rank: vars.need_count("SLURM_PROCID", "SLURM_STEP_ID")?,
        size: vars.need_count(size_name, "SLURM_PROCID")?,
        local_rank: vars.need_count("SLURM_LOCALID", "SLURM_PROCID")?,
        local_size,
        rendezvous: None,
        mpi: mpi_family(vars),
        job: format!("{}.{step}", vars.text("SLURM_JOB_ID").unwrap_or_default()),
        restarts: vars.count("SLURM_RESTART_COUNT")?.unwrap_or(0),
    };
    place.check(["SLURM_PROCID", size_name, "SLURM_LOCALID", tasks_name])?;
    Ok(Some(place))
}

/// What `srun --mpi=...` prepared: pmix for Open MPI, pmi2 for MPICH, none for nobody.
fn mpi_family(vars: &Vars) -> Option<MpiFamily> {
    match (vars.has("PMIX_RANK"), vars.has("PMI_RANK") || vars.has("PMI_FD")) {
        (true, _) => Some(MpiFamily::OpenMpi),
        (_, true) => Some(MpiFamily::Mpich),
        _ => None,
    }
}

/// `2(x3),1` means 2, 2, 2, 1.
fn tasks_per_node(name: &str, text: &str) -> Result<Vec<usize>> {
    let wrong = || err!("{name}={text:?} is not a list such as 2(x3),1");
    let mut tasks = Vec::new();
    for part in text.trim().split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(wrong)?),
            None => (part, "1"),
        };
        let count: usize = count.trim().parse().map_err(|_| wrong())?;
        let times: usize = times.parse().ok().filter(|&times| times <= 1 << 20).ok_or_else(wrong)?;
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Ok(tasks)
}
