"""Import this module in a training job and the recorder is switched on.

    import harness.repro.capture

It writes to ``DSA_HARNESS_CAPTURE``, else to ``dsa-capture`` in the working directory. Without a
change of code the environment does the same; ``docs/capture.md`` says how. Needs the standard
library and torch.
"""

from harness.repro.job.dsa_capture import switch_on

FOLDER = switch_on()
"""Where this process writes."""
