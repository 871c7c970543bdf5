"""From a schedule to kernels and launches, a module for each group of routes."""
