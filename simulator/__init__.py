"""CUDA-graph replay decode simulator: attributes the time of one tensor-parallel decode step to its components."""

__version__ = "0.1.0"
