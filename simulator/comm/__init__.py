"""Collectives of a step: how one rank's operations reach the others, or stand for them where there are none."""
