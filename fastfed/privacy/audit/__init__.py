"""Audits of mechanisms: empirical lower bounds on epsilon, and attacks on low bits of floats."""
