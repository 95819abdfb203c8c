"""Options of planners as data: texts, defaults, and what a request makes of them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from hopsum.collectives.plan import PlanError
from hopsum.planning.model.options import OPTIONS, as_texts
from hopsum.planning.model.request import Method, PlanRequest, WeightSteps
from hopsum.planning.registry import PLANNERS, option_values, with_options

BLANK = PlanRequest(1, 1, (), ())


@pytest.mark.parametrize("planner", PLANNERS)
def test_defaults_as_texts_are_those_of_a_request(planner: str) -> None:
    for option in PLANNERS[planner].options:
        again = option.put(BLANK, option.default)
        assert option.text(again) == option.default
        assert option.meaning.endswith(".") and option.default in option.help
    values = option_values(BLANK, planner)
    assert option_values(with_options(BLANK, planner, values), planner) == values


@pytest.mark.parametrize(
    ("planner", "name", "given", "field", "value"),
    [
        ("multi-tree", "max-trees", "3", "max_trees", 3),
        ("multi-tree", "max-trees", "none", "max_trees", None),
        ("multi-tree", "max_trees", 3, "max_trees", 3),
        ("mtree", "min-rate", "1.5Mbit", "min_rate", 1_500_000),
        ("mtree", "tree-bandwidth", 0.5, "tree_bandwidth", Fraction(1, 2)),
        ("mtree", "keep", "90%", "keep", Fraction(9, 10)),
        ("mtree", "max-delay", "5ms", "max_delay", 0.005),
        ("multi-hop", "time-limit", 60, "time_limit", 60.0),
        ("multi-hop", "gap", "1%", "gap", 0.01),
    ],
)
def test_values_are_read_as_people_write_them(
    planner: str, name: str, given: object, field: str, value: object
) -> None:
    assert getattr(with_options(BLANK, planner, {name: given}).forest, field) == value


def test_options_are_where_planners_look() -> None:
    request = with_options(BLANK, "multi-hop", {"method": "exact", "max-aggregating": "2"})
    assert (request.method, request.max_aggregating) == (Method.EXACT, 2)
    steps = {"penalty": "4", "weight-steps": "32"}
    assert with_options(BLANK, "embedding", steps).embedding.weights == WeightSteps(32, 4)


@pytest.mark.parametrize(
    ("planner", "options", "message"),
    [
        ("multi-hop", {"keep": "1"}, "no such option, but mtree has; its options: max-height"),
        ("multi-hop", {"max-tree": "1"}, "has no such option; its options: "),
        ("multi-hop", {"method": "fast"}, "expected one of auto, heuristic, exact"),
        ("multi-hop", {"time-limit": "60"}, "60: expected a unit, such as 60ms or 60s"),
        ("multi-hop", {"gap": "-1"}, "gap: '-1'"),
        ("multi-tree", {"max-trees": "1.5"}, "expected a whole number"),
        ("multi-tree", {"max-trees": "99999999"}, "expected at most 65535"),
        ("multi-tree", {"max-height": "0"}, "max_height 0: expected 1 or more"),
        ("mtree", {"keep": "2"}, "keep: '2': expected above 0 to 1"),
        ("embedding", {"time-limit": "3s"}, "time-limit: 3s: expected at most 2s"),
        ("magic", {}, "there is no planner 'magic'"),
    ],
)
def test_what_a_planner_cannot_do_is_refused(
    planner: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        with_options(BLANK, planner, options)


def test_numbers_have_the_units_of_their_option() -> None:
    given = {"time_limit": 60, "min-rate": 1e6, "max_trees": 3, "gap": 0.01, "method": "exact"}
    texts = {"time-limit": "60s", "min-rate": "1Mbit/s", "max-trees": "3", "gap": "0.01"}
    assert as_texts(given) == {**texts, "method": "exact"}
    assert all(option.name == name for name, option in OPTIONS.items())
