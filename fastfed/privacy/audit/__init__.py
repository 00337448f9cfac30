"""Audits of mechanisms: empirical lower bounds on epsilon, and attacks on released bits."""
