"""Mechanisms: each with its noise, its calibration from a budget, and its exact account."""
