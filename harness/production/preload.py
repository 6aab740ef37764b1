"""Everything a rank of a CPU run imports, for the forkserver to load once.

Imports only: a multi-threaded matmul here would deadlock the first matmul of a forked child, and
anything that asks CUDA for its devices would keep a forked child from using them.
"""

import warnings

with warnings.catch_warnings():
    # Megatron warns about each optional package that is absent; the record lists them once.
    warnings.simplefilter("ignore")
