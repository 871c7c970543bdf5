"""Torch references, one module a family: what serves where no kernel does, on any device."""
