"""The speed gate: measure on this machine whether the checkout is slower than a base commit.

``scripts/gate [BASE]`` runs the gate; CONTRIBUTING (Speed) describes its decisions.
"""
