"""Entry points: the torchrun script and the commands of ``dsa-harness``."""
