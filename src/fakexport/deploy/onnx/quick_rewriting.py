"""Try the rewrite rules of onnxscript only at nodes that can match, so that large graphs take seconds.

onnxscript tries each of about 100 rules at each node. For a rule with several outputs, each try lists all
nodes of the graph first, so the time grows with the square of its size: minutes for 10,000 nodes.

Seen on onnxscript 0.7. Source: `onnxscript/rewriter/_rewrite_rule.py:RewriteRule.try_rewrite`,
`_matcher.py:SimplePatternMatcher.match`. Can go when onnxscript compares the operator first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def rules_tried_where_they_match() -> Iterator[None]:
    """Enter a context in which a rule is not tried at a node that has another operator than its pattern."""
    from onnxscript.rewriter import RewriteRule

    stock = RewriteRule.try_rewrite
    operators: dict[RewriteRule, tuple[str, ...] | None] = {}

    def try_rewrite(rule: RewriteRule, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if rule not in operators:
            operators[rule] = _operator(rule)
        operator = operators[rule]
        if operator is not None and operator != (node.domain, node.op_type):
            return None
        return stock(rule, model, graph, node, **options)

    RewriteRule.try_rewrite = try_rewrite
    try:
        yield
    finally:
        RewriteRule.try_rewrite = stock


def _operator(rule: Any) -> tuple[str, ...] | None:
    """Return the domain and type of the node at which a rule matches; None if it could be any."""
    nodes = getattr(getattr(rule, "_target_pattern", None), "output_nodes", None)
    identifier = nodes[0].op_identifier() if nodes else None
    return None if identifier is None else identifier[:2]
