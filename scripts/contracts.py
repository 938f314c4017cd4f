"""Import contracts that may name folders which do not exist yet.

import-linter lets a *layer* be optional, but stops with an error when another contract names a missing module. The
rules are written down before the folders they speak of, so these forms drop what is absent and judge the rest as
usual. That a rule bites once its folder exists is proven in ``tests/architecture/test_import_contracts.py``.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.domain.contract import Contract, ContractCheck

_KEPT = ContractCheck(kept=True)


def _keep_present(contract: Contract, field: str, graph: ImportGraph, *, ours_only: bool = False) -> int:
    """Drop from `field` the modules that the graph lacks; the number of those left.

    With `ours_only`, packages from outside are left alone: their absence means that nobody imports them.
    """
    kept = set()
    for expression in getattr(contract, field):
        name = str(expression)
        ours = name.partition(".")[0] == "everstep"
        if name in graph.modules or (ours_only and not ours):
            kept.add(expression)
    setattr(contract, field, kept)
    return len(kept)


class ForbiddenIfPresent(ForbiddenContract):
    """`forbidden`, over those of the named modules that exist."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        sources = _keep_present(self, "source_modules", graph)
        targets = _keep_present(self, "forbidden_modules", graph, ours_only=True)
        return super().check(graph, verbose) if sources and targets else _KEPT


class IndependenceIfPresent(IndependenceContract):
    """`independence`, over those of the named modules that exist."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        return super().check(graph, verbose) if _keep_present(self, "modules", graph) > 1 else _KEPT


class AcyclicIfPresent(AcyclicSiblingsContract):
    """`acyclic_siblings`, over those of the named packages that exist."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        return super().check(graph, verbose) if _keep_present(self, "ancestors", graph) else _KEPT
