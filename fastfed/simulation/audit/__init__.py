"""Audits of whole protocols, run on the objects that users deploy."""
