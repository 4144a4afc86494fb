"""What a sale, a reservation and an order are; outcomes; invariants.

Pure functions and frozen dataclasses. This room imports nothing of ours and does no I/O.
"""
