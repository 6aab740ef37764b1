"""Records in the formats of other tools: job summaries, benchmark databases, golden values."""
