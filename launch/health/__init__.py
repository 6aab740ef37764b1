"""What a node and a cluster have, what they lack, and what to do about it."""
