"""Replaying a step, or a part of it, and timing it: on a GPU, on the CPU, or by prediction."""
