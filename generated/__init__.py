"""Written by `kernwright generate`; see manifest.json."""
