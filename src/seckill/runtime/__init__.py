"""Runs the parts: settings, data directory, embedded Redis, supervision, logs and metrics.

The only room that chooses real parts (``bootstrap.py``). Nothing here connects at import.
"""
