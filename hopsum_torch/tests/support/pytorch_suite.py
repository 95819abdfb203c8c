"""PyTorch's own tests of process groups, on this machine, with a backend of one's choice.

python -m tests.support.pytorch_suite BACKEND RANKS RESULTS [TEST ...], in the folder hopsum_torch,
with the ranks' agents in HOPSUM_TEST_AGENTS, separated by commas. RESULTS gets a JSON object of the
tests' outcomes by name: "passed", "skipped: ..." or "failed: ...". A TEST of the form 0/3 stands
for every third one from the first on.

What gloo is tested for, the backend is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import multiprocessing
import os
import re
import sys
import traceback
import unittest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = "torch.testing._internal.distributed.distributed_test"
CONDITIONS = (
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "{0}")'),
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "{0}")'),
    (r'require_backend_is_available\(\{"gloo"', 'require_backend_is_available({{"gloo", "{0}"'),
    (r"(?m)^    dist\.Backend\.GLOO,", '    dist.Backend.GLOO, "{0}",'),
)
"""Patterns of conditions that name gloo, and what is put for them."""
SECONDS = "100"
"""That a test may take."""


def load(backend: str, ranks: int) -> ModuleType:
    """Import PyTorch's tests with their conditions that name gloo extended to another backend."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(ranks), INIT_METHOD="env://")
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = SECONDS
    cases = importlib.import_module("torch.testing._internal.common_distributed").DistTestCases
    for named in (*cases.skip_collective.values(), *cases.backend_feature.values()):
        if "gloo" in named:
            named.add(backend)
    cases.backend_feature["plugin"].add(backend)
    found = importlib.util.find_spec(TESTS)
    assert found is not None
    assert found.origin is not None
    text = Path(found.origin).read_text()
    for condition, extended in CONDITIONS:
        text, changed = re.subn(condition, extended.format(backend), text)
        assert changed, condition
    module = importlib.util.module_from_spec(found)
    sys.modules[TESTS] = module
    # Without this module's `annotations`, which hooks are checked for.
    exec(compile(text, found.origin, "exec", dont_inherit=True), module.__dict__)
    return module


def suite(module: ModuleType, agents: list[str]) -> type[unittest.TestCase]:
    """Return the class of PyTorch's tests; each rank has an agent."""

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            # Forks: importing torch takes most of a rank's CPU time.
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **options: Any) -> None:
            os.environ["HOPSUM_AGENT"] = agents[rank]
            super()._run(rank, *arguments, **options)

    return Suite


class Outcomes(unittest.TestResult):
    """The outcomes by test."""

    def __init__(self) -> None:
        super().__init__()
        self.by_test: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        name = test.id().rpartition(".")[2]
        self.by_test[name] = outcome
        print(f"{name}: {outcome}"[:300], flush=True)

    def addSuccess(self, test: Any) -> None:
        """Note a test that has passed."""
        self._note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        """Note a test that has been skipped."""
        self._note(test, f"skipped: {reason}")

    def addFailure(self, test: Any, error: Any) -> None:
        """Note a test that has failed."""
        self._note(test, f"failed: {''.join(traceback.format_exception(*error))[-6000:]}")

    addError = addFailure


def chosen(tests: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the tests of these names, or the part of all tests that the only name stands for."""
    if not names:
        return tests
    first, slash, step = names[0].partition("/")
    return tests[int(first) :: int(step)] if slash else names


def main() -> None:
    """Run the tests of these names, or all."""
    backend, ranks, results, *names = sys.argv[1:]
    agents = os.environ.get("HOPSUM_TEST_AGENTS", "")
    module = load(backend, int(ranks))
    cases = suite(module, agents.split(",") if agents else ["none"] * int(ranks))
    logging.disable(logging.WARNING)
    outcomes = Outcomes()
    for name in chosen(unittest.defaultTestLoader.getTestCaseNames(cases), names):
        cases(name).run(outcomes)
    Path(results).write_text(json.dumps(outcomes.by_test, indent=1))


if __name__ == "__main__":
    main()
