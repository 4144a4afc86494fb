"""The operators' side, under ``/admin``: for programs at ``/admin/api``.

Who may come in stands in guard.py, how a call is bounded in calls.py, and the rest is one file for
each thing that an operator works with.
"""
