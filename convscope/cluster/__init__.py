"""Many runs: progress, status, matrices of combinations, batches without SLURM; no torch."""
