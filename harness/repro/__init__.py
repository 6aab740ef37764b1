"""From a fault to something small that others can run: scripts, bundles, and what is affected."""
