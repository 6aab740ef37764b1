"""Records in, documents out: what a run folder says, for a terminal, a log and a merge request.

Reports read the files of a run and nothing else, so any document can be rebuilt later, on another
machine, without torch.
"""
