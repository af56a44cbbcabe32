"""Scripts for Slurm and manifests for Kubernetes that run an evaluation or a training. Nothing is submitted."""
