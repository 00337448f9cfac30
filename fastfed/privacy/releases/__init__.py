"""Continual releases of running sums: trees, factorisations, participation, and their noise."""
