"""Continual releases of running sums: trees, matrix factorisations, participation, calibration."""
