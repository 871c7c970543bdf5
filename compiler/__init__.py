"""Compilation: NVRTC through CuPy, resources, the cubin cache, bundles; CuPy is loaded when something is compiled."""
