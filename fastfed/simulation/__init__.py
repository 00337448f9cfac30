"""Simulation of experiments: their specs, drivers and engines, and `simulate`."""

from __future__ import annotations

from fastfed.simulation.experiment import Experiment, experiment_from_spec, load_experiment

__all__ = ["Experiment", "experiment_from_spec", "load_experiment"]
