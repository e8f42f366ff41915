"""CoDiLA's kernels and decoding inside other people's models and tools, one module each."""
