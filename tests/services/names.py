"""Names that no other test has, in whatever the tests share."""

import itertools
import uuid

__all__ = ["own_name"]

_RUN = uuid.uuid4().hex[:8]
_numbers = itertools.count(1)


def own_name() -> str:
    """Letters, digits and one hyphen; also fit for a server that outlives this run."""
    return f"t{_RUN}-{next(_numbers)}"
