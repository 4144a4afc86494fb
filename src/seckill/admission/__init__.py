"""The Redis side: admission, stock buckets, release, the fence.

Every script is a file in ``lua/``, every key name is made in ``keys.py``.
"""
