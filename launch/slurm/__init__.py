"""Slurm: what a cluster is like, scripts for it, and the few commands that talk to it."""
