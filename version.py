"""The toolkit's version; kept apart so that the build can read it without importing anything else."""

VERSION = "0.1.0"
