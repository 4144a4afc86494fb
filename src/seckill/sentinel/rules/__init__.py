"""Rules as text: the JSON of Sentinel, its dashboard and Spring Cloud Alibaba, read and written.

``document`` finds the list of rules in a text, ``fields`` reads one value, ``kinds`` knows which
fields each kind of rule has. Reading never raises for a bad rule: it is named in the result by its
place, field and reason, and the others are read.
"""

from seckill.sentinel.rules.document import (
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    ITEM_COUNT_MAX,
)
from seckill.sentinel.rules.kinds import (
    KINDS,
    AnyRule,
    ParsedRules,
    format_rules,
    kind_named,
    parse_rules,
)

__all__ = [
    "DEPTH_MAX",
    "DOCUMENT_BYTES_MAX",
    "ITEM_COUNT_MAX",
    "KINDS",
    "AnyRule",
    "ParsedRules",
    "format_rules",
    "kind_named",
    "parse_rules",
]
