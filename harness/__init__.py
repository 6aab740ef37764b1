"""Test-and-repro harness for the DSA indexer of Megatron-LM; see docs/design.md for the layers."""

__version__ = "0.1.0"
