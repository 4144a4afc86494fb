"""The order channel through Kafka: relay side, worker side, dead letters, what is under way.

The client library is C; each of its objects is owned by one thread here, and results reach the
event loop by ``call_soon_threadsafe``.
"""
