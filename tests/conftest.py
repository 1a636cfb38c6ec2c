"""What all tests share: hypothesis without a deadline, since a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("headway", deadline=None)
settings.load_profile("headway")
