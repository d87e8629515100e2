"""Settings of the property tests, for all tiers."""

from hypothesis import settings

# A busy machine is slow, which is no fault of what is tested.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
