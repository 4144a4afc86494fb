"""How numbers of things are told to people."""

__all__ = ["counted"]


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 buyer``, ``2 buyers``, ``1,000 buyers``.

    Args:
        number: how many there are.
        one: the noun for one of them.
        many: the noun for any other number; default: ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
