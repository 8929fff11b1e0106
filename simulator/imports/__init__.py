"""Readers of what users bring: model and quantisation configurations. No torch."""
