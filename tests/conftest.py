"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# A busy machine generates and runs examples slowly. That is no finding about the code: no deadline per example, and no
# health check that compares the time of the generation with a bound.
settings.register_profile("headgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headgate")

pytest_plugins = [
    "tests.support.aws_models",
    "tests.support.duration",
    "tests.support.suite_seconds",
    "tests.support.world.virtual_time",
]
