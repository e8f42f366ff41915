"""Triton kernels, one file per op. Importing a module of this package imports triton."""
