"""Two runs beside each other: what moved in the environment, what moved in behaviour."""
