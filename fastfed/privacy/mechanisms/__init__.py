"""Mechanisms: each one has its noise, a calibration to a budget, and its exact account."""
