"""Authority rules: which callers may use a resource.

``rule`` is the data and its validity, ``manager`` the rules in force, ``slot`` the check in the
chain.
"""

from seckill.sentinel.authority.rule import AuthorityRule

__all__ = ["AuthorityRule"]
