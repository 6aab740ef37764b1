"""Gates of ``dsa-harness selftest``, from one process to a planted illegal address."""
