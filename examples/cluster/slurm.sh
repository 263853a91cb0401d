#!/usr/bin/env bash
# Trains input.json on two hosts with four GPUs each: sbatch slurm.sh
#SBATCH --job-name=phalanx
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --open-mode=append
# Two minutes before the end every rank is told; the run saves and ends with 143.
#SBATCH --signal=TERM@120
#SBATCH --requeue

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
# Ranks of several hosts meet through MPI: where the site's default is another, add --mpi=pmix or --mpi=pmi2 to srun.
status=0
srun --kill-on-bad-exit=1 dp train --resume auto --mpi-log=collect -l train.log input.json || status=$?
# 143: stopped by SIGTERM, and saved. The job goes back to the queue and goes on from there.
if [ "$status" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
