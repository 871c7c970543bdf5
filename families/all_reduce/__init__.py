"""The producer-direct all-reduce over the GPUs of a host."""
