"""Triton kernels of a decode step, one operation a file, each beside its torch reference."""
