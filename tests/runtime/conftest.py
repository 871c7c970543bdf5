"""Every test of the runtime reads the environment's settings anew."""

from harness.fake_cuda import fake_cuda  # noqa: F401  (a fixture)
from harness.settings import fresh_settings  # noqa: F401  (a fixture)
