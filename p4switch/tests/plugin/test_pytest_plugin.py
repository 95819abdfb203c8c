"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import PROGRAMS, ROOT

pytest_plugins = ["pytester"]

KINDS = ("p4", "python")

FRAME = "0800000000fe0800000001010800450000190001000040fdabe40a000202c000020168656c6c6f"
SENT = "0800000004040800000000fe08004500001900010000 3ffdace40a000202c000020168656c6c6f"

ROUTER_TEST = f"""
import pytest

pytestmark = pytest.mark.p4("router.p4")

def test_router(switch):
    switch.add("routes", {{"hdr.ipv4.dst": "192.0.2.0/24"}}, "forward",
               next_hop="08:00:00:00:04:04", port=4)
    switch.send(1, "{FRAME}")
    switch.expect(4, "{SENT}")
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the router's program."""
    (pytester.path / "router.p4").write_text((PROGRAMS / "router.p4").read_text())
    return pytester


def test_a_router(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST)
    run.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


@pytest.mark.slow
def test_both_executors(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST)
    result = run.runpytest_inprocess("-p", "no:xdist", "--p4-executor", "both", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [f"*test_router?{name}? PASSED*" for name in ("interpreter", "native")]
    )


def test_another_frame_fails_and_says_what_happened(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST.replace('expect(4, "0800000004040', 'expect(4, "0800000004050'))
    result = run.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: port 4: nibble 11 is 4, expected 5*", "*hit hdr.ipv4.dst=*forward*"]
    )


def test_a_frame_that_nothing_expects_fails_the_test(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST.replace("    switch.expect(", "    print("))
    result = run.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*port 4: 1 frames were sent that nothing expected*"])


def test_a_missing_frame_fails(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST.replace("switch.expect(4", "switch.expect(5"))
    result = run.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*port 5: nothing was sent; frames wait at ports: 4 (1)*"])


def test_the_program_of_the_settings(run: pytest.Pytester) -> None:
    run.makepyfile(ROUTER_TEST.replace('pytest.mark.p4("router.p4")', "[]"))
    result = run.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*which P4 program? Mark the test with @pytest.mark.p4*"])
    run.makeini("[pytest]\np4_program = router.p4")
    run.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_errors_of_the_program_have_their_place(run: pytest.Pytester) -> None:
    (run.path / "router.p4").write_text("header h_t {\n  bit<8> f\n}\n")
    run.makepyfile(ROUTER_TEST)
    result = run.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*router.p4:2:11: error: expected ';' after*"])


def test_defines_and_options(run: pytest.Pytester) -> None:
    program = (PROGRAMS / "router.p4").read_text()
    (run.path / "router.p4").write_text("#ifndef GO\n#error GO is not defined\n#endif\n" + program)
    run.makepyfile(
        ROUTER_TEST.replace('"router.p4")', '"router.p4", defines={"GO": 1}, drop_port=17)')
        + "    assert switch.engine.options.drop_port == 17\n"
    )
    run.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_externs_of_the_programs_own(run: pytest.Pytester) -> None:
    text = (ROOT / "docs" / "externs.md").read_text()
    program, python = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[0] for kind in KINDS)
    (run.path / "own.p4").write_text(program)
    (run.path / "own.py").write_text(python)
    run.makepyfile(
        """
        import pytest

        @pytest.mark.p4("own.p4", externs="own.py")
        def test_average(switch):
            switch.send(0, "0000000a 0000")
            switch.expect(1, "0000000a 0002")
        """
    )
    run.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)
