"""The way of a reservation to the ledger: channels, the order worker, dead letters.

A channel carries bucket events; the worker writes them through the `OrderLedger` port and
acknowledges only what is committed. This room knows Redis (the outbox) but no SQL.
"""
