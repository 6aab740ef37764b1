"""Nights beside each other: an append-only store, trends, regressions, and who likely owns them."""
