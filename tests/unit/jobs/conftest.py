"""Settings for the property tests: a busy machine is slow, which is no fault of what is tested."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
