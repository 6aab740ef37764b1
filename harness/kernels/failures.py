"""Failures of a launch that no release raises as an exception: what happens instead of a result."""

from __future__ import annotations


class KernelHang(RuntimeError):  # noqa: N818 - what it stands for is no error of the caller
    """The kernel would never return: it waits for a barrier that nobody arrives at.

    A GPU shows a call that does not finish. The model raises instead, before any output is written.

    Attributes:
        kernel: Wrapper name.
        reason: What is waited for, and what in the call leads there.
    """

    def __init__(self, kernel: str, reason: str) -> None:
        """Say which kernel hangs and why."""
        super().__init__(f"{kernel} would hang: {reason}")
        self.kernel = kernel
        self.reason = reason


class CompileFailure(RuntimeError):  # noqa: N818 - named after what the compiler reports
    """The kernel of this call does not compile; the release fails at the first call that needs it.

    Attributes:
        kernel: Wrapper name.
        key: Values the compiled kernel would be cached under.
        first_error: First thing the compiler objects to.
    """

    def __init__(self, kernel: str, key: tuple[object, ...], first_error: str) -> None:
        """Say which kernel does not compile, for which key, and why."""
        super().__init__(f"{kernel} does not compile for {key}: {first_error}")
        self.kernel = kernel
        self.key = key
        self.first_error = first_error
