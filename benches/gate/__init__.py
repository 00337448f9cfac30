"""The gate: whether head is slower than a base commit, measured side by side on this machine.

``scripts/gate [BASE]`` runs it; CONTRIBUTING (Speed) says what it decides and how.
"""
