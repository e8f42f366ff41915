"""Kernels that were tried and are not part of the package, with the counts that decided."""
