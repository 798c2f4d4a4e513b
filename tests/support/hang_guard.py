"""The bound of a wait that only a defect makes long.

A busy machine must not decide a test's verdict, so no test waits for a real process with a bound near what the wait
usually takes. This bound is a guard against hangs: below pytest-timeout's (pyproject.toml), so that the wait's own
message is the one that is shown.
"""

HANG_S = 600.0
