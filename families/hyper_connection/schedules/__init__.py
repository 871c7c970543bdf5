"""Models of the routes that have many options, and what their layouts need."""
