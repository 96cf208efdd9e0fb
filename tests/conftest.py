"""Settings for all tests: Hypothesis draws the same examples every time and has no deadline of its own."""

from hypothesis import settings

settings.register_profile("waggle", deadline=None, derandomize=True, database=None)
settings.load_profile("waggle")
