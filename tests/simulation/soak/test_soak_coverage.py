"""`make soak-coverage` counts the calls and lines of hopsum's programs, and of no others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.soak_coverage import Reached, counting, ranges, read_counts, table

PROGRAM = """
import ctypes
from p4switch.packet_io.compile import FLAGS, compile_shared
text = '''#line 1 "hopsum/a.c"
int chosen(int x)
{
    if (x)
        return 1;
    return 2;
}
int idle(void) { return 0; }
#line 1 "another/b.c"
int uncounted(void) { return 0; }
'''
loaded = ctypes.CDLL(compile_shared("program", text, FLAGS))
for _ in range(3):
    loaded.chosen(1)
loaded.uncounted()
"""


@pytest.mark.skipif(shutil.which("gcov") is None, reason="gcov is not installed")
def test_calls_and_lines_of_two_processes_are_added(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=counting(tmp_path), check=True
        )
    counts = read_counts(tmp_path)
    assert {name: (each.calls, each.missed) for name, each in counts.items()} == {
        ("a.c", "chosen"): (6, [5]),
        ("a.c", "idle"): (0, [7]),
    }


def test_the_table_has_what_was_not_reached() -> None:
    reached = Reached(3)
    reached.lines.update({1: 3, 2: 0, 3: 0, 5: 0})
    text = "\n".join(table({("a.c", "chosen"): reached}, 20, 7))
    assert "`make soak-coverage SCHEDULES=20 SEED=7`" in text
    assert "1 are reached (25.0%)" in text
    assert text.endswith("| `chosen` in a.c | 4 | 1 | 3 | 2-3, 5 |")


def test_neighbours_are_a_range() -> None:
    assert ranges([1, 2, 3, 5]) == "1-3, 5"
