"""The payment provider: the port that one is joined by, its signed news, and a sandbox of our own.

See ``docs/operate/payments.md``.
"""
