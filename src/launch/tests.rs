use super::*;

/// Detects from a list of `NAME=value`, separated by spaces.
fn detect(vars: &str) -> Result<Launch> {
    let table: Vec<(&str, &str)> = vars.split_whitespace().filter_map(|v| v.split_once('=')).collect();
    let env = |name: &str| table.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
    Launch::detect(&env, "node7")
}

/// `launcher rank/size local_rank/local_size`
fn summary(vars: &str) -> String {
    match detect(vars) {
        Ok(l) => format!("{} {}/{} {}/{}", l.launcher, l.rank, l.size, l.local_rank, l.local_size),
        Err(e) => e.message().to_string(),
    }
}

const TORCH: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29400 \
    TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=2";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=prterun-x-1@1 PMIX_RANK=1";
const HYDRA: &str = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_FD=5";
const HOROVOD: &str = "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 \
    HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=4711 HOROVOD_CONTROLLER=gloo";
const SRUN: &str = "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 \
    SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1";
const SBATCH: &str =
    "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=8";

#[test]
fn every_launcher_is_recognised_by_its_own_variables() {
    assert_eq!(summary(TORCH), "torchrun 3/4 1/2");
    assert_eq!(summary(OMPI), "mpirun (Open MPI) 1/3 1/3");
    assert_eq!(summary(HYDRA), "mpirun (Hydra) 2/4 0/2");
    assert_eq!(summary(HOROVOD), "horovodrun 1/2 1/2");
    assert_eq!(summary(SRUN), "srun 5/7 1/2");
    assert_eq!(summary(""), "none 0/1 0/1");
}

#[test]
fn the_meeting_places_and_job_names_are_kept() {
    let torch = detect(TORCH).unwrap();
    assert_eq!(torch.rendezvous, Some(Rendezvous::TorchStore { address: "n0".into(), port: 29400 }));
    assert_eq!((torch.job.as_str(), torch.restarts, torch.host.as_str()), ("abc", 2, "node7"));
    let horovod = detect(HOROVOD).unwrap();
    assert_eq!(horovod.rendezvous, Some(Rendezvous::HorovodHttp { address: "10.0.0.1".into(), port: 4711 }));
    assert_eq!(detect(OMPI).unwrap().job, "prterun-x-1@1");
    assert_eq!(detect(SRUN).unwrap().job, "9.0");
}

#[test]
fn the_innermost_launcher_wins() {
    let nested = |parts: &[&str]| summary(&parts.join(" "));
    assert_eq!(nested(&[SRUN, OMPI]), "mpirun (Open MPI) 1/3 1/3");
    assert_eq!(nested(&[SRUN, HYDRA]), "mpirun (Hydra) 2/4 0/2");
    assert_eq!(nested(&[SBATCH, TORCH]), "torchrun 3/4 1/2");
    assert_eq!(nested(&[SRUN, TORCH]), "torchrun 3/4 1/2");
    assert_eq!(nested(&[SBATCH, HOROVOD]), "horovodrun 1/2 1/2");
    assert_eq!(nested(&[OMPI, TORCH]), "torchrun 3/4 1/2");
    assert_eq!(nested(&["HOROVOD_CONTROLLER=mpi", OMPI]), "mpirun (Open MPI) 1/3 1/3");
}

#[test]
fn the_script_of_sbatch_and_a_shell_of_salloc_are_one_process() {
    assert_eq!(summary(SBATCH), "none 0/1 0/1");
    assert_eq!(summary("SLURM_JOB_ID=9 SLURM_NTASKS=8 SLURM_TASKS_PER_NODE=8"), "none 0/1 0/1");
    let interactive = format!("{SBATCH} SLURM_STEP_ID=4294967290");
    assert_eq!(summary(&interactive), "none 0/1 0/1");
}

#[test]
fn srun_with_pmi2_is_srun_and_not_hydra() {
    assert_eq!(summary(&format!("{SRUN} PMI_RANK=5 PMI_SIZE=7 PMI_FD=4")), "srun 5/7 1/2");
    let family = |more: &str| detect(&format!("{SRUN} {more}")).unwrap().mpi;
    assert_eq!(family("PMI_RANK=5 PMI_SIZE=7"), Some(MpiFamily::Mpich));
    assert_eq!(family("PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.9.0"), Some(MpiFamily::OpenMpi));
    assert_eq!(family(""), None);
}

#[test]
fn variables_set_by_hand_let_rank_zero_serve() {
    let launch = detect("RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=5000").unwrap();
    assert_eq!(launch.rendezvous, Some(Rendezvous::RankZero { address: "n0".into(), port: 5000 }));
    assert_eq!((launch.rank, launch.size, launch.local_size), (1, 2, 1));
}

#[test]
fn contradictory_or_missing_variables_are_errors_that_name_them() {
    let cases = [
        (TORCH.replace("RANK=3 ", "RANK=5 "), "launched by torchrun: RANK=5 is not below WORLD_SIZE=4"),
        (TORCH.replace("LOCAL_RANK=1", ""), "launched by torchrun: RANK is set, but LOCAL_RANK is not"),
        (TORCH.replace("29400", "x"), "launched by torchrun: MASTER_PORT=\"x\" is not a port (1 to 65535)"),
        (OMPI.replace("SIZE=3 OMPI", "SIZE=two OMPI"), "OMPI_COMM_WORLD_SIZE=\"two\" is not a whole number"),
        (OMPI.replace("LOCAL_SIZE=3", "LOCAL_SIZE=9"), "OMPI_COMM_WORLD_LOCAL_SIZE=9 is more than"),
        (HYDRA.replace("PMI_SIZE=4", ""), "PMI_RANK is set, but PMI_SIZE is not"),
        (HYDRA.replace("MPI_LOCALRANKID=0", ""), "PMI_RANK is set, but MPI_LOCALRANKID is not"),
        (HOROVOD.replace("HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1", ""), "HOROVOD_GLOO_RENDEZVOUS_ADDR is not"),
        (SRUN.replace("2(x3),1", "2(y3)"), "SLURM_STEP_TASKS_PER_NODE=\"2(y3)\" is not a list"),
        (SRUN.replace("NODEID=2", "NODEID=4"), "SLURM_NODEID=4, but SLURM_STEP_TASKS_PER_NODE lists 4 hosts"),
        ("WORLD_SIZE=4".to_string(), "launched by none: WORLD_SIZE=4 is set, but RANK is not"),
    ];
    for (vars, want) in cases {
        let found = summary(&vars);
        assert!(found.contains(want), "{vars}\n found: {found}\nwanted: {want}");
    }
}
