"""Rules as a person writes them: in Python and in YAML, by name or index, with errors that name the place."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from leyden_milp_layer import (
    Disjunction,
    DisjunctiveProjection,
    Polyhedron,
    RuleFileError,
    RuleSet,
    all_of,
    any_of,
    at_least,
    at_most,
    binary,
    box,
    certify,
    equals,
    feature,
    halfspace,
    implies,
    integer,
    load_rules,
    output,
    parse_rules,
    total,
    violations,
    wins,
)

F64 = torch.float64


def satisfied(rules: RuleSet, y: list[float], x: list[float] | None = None) -> list[bool]:
    features = None if x is None else torch.tensor([x], dtype=F64)
    found = violations(rules, torch.tensor([y], dtype=F64), features)
    return (found.by_rule[0] <= 1e-9).tolist()


def test_a_rule_reads_as_a_person_says_it_by_name_or_index() -> None:
    by_name = RuleSet(
        2,
        0,
        10,
        rules=[implies(feature("load") > 0.8, at_least("pressure", 3.0))],
        outputs=["flow", "pressure"],
        features=["load"],
    )
    by_index = RuleSet(2, 0, 10, rules=[implies(feature(0) > 0.8, at_least(1, 3.0))])
    for rules in (by_name, by_index):
        layer = DisjunctiveProjection(rules)
        raw = torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=F64)
        projected = layer(raw, torch.tensor([[0.9], [0.8]]))
        assert projected.tolist() == [[1.0, 3.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("constraint", "inside", "outside"),
    [
        (at_least(0, 0.5), [0.5, 0, 0], [0.4, 0, 0]),
        (at_most(0, 0.5), [0.5, 0, 0], [0.6, 0, 0]),
        (equals(1, 0.5), [0, 0.5, 0], [0, 0.6, 0]),
        (box({0: (0.2, 0.4), 2: (0.5, 1.0)}), [0.3, 0, 0.5], [0.3, 0, 0.4]),
        (halfspace([1.0, 1.0, 0.0], 0.5), [0.2, 0.3, 1], [0.3, 0.3, 0]),
        (halfspace({2: 2.0}, 1.0), [0, 0, 0.5], [0, 0, 0.6]),
        (wins(1, 3, 0.3), [0.1, 0.5, 0.2], [0.3, 0.5, 0.2]),
        (wins(1, [1, 2], 0.3), [0.9, 0.5, 0.2], [0.9, 0.5, 0.3]),
        (output(0) - output(1) >= 0.2, [0.5, 0.3, 0], [0.5, 0.4, 0]),
        (2 * output(0) + output(1) <= 1.0 - output(2), [0.2, 0.2, 0.4], [0.2, 0.2, 0.5]),
        (1.0 - output(0) >= output(1) / 2, [0.5, 1.0, 0], [0.6, 1.0, 0]),
        ((output(0) + 1.0).equals(1.5), [0.5, 0, 0], [0.4, 0, 0]),
        (total() <= 1.0, [0.3, 0.3, 0.4], [0.3, 0.3, 0.5]),
        (total() - output(0) >= 0.5, [0, 0.2, 0.3], [0.9, 0.2, 0.2]),
        (all_of(at_least(0, 0.2), at_most(0, 0.4)), [0.3, 0, 0], [0.5, 0, 0]),
        (at_least(0, 0.2) & at_most(0, 0.4), [0.3, 0, 0], [0.1, 0, 0]),
        (at_most(0, 0.2) | at_least(0, 0.8), [0.9, 0, 0], [0.5, 0, 0]),
        (at_most(0, 0.2) | (at_least(0, 0.8) | equals(0, 0.5)), [0.5, 0, 0], [0.6, 0, 0]),
        ((at_most(0, 0.2) | at_least(0, 0.8)) & at_most(1, 0.1), [0.1, 0, 0], [0.1, 0.2, 0]),
        (at_most(1, 0.1) & (at_most(0, 0.2) | at_least(0, 0.8)), [0.9, 0, 0], [0.9, 0.2, 0]),
        (~box({0: (0.2, 0.8)}), [0.1, 0, 0], [0.5, 0, 0]),
        (implies(at_least(0, 0.5), at_least(1, 0.5)), [0.4, 0, 0], [0.6, 0.4, 0]),
        (implies(at_most(0, 0.2) | at_least(0, 0.8), at_least(1, 0.5)), [0.5, 0, 0], [0.9, 0.4, 0]),
        (implies(at_least(0, 0.5), at_least(1, 0.5), margin=0.1), [0.4, 0, 0], [0.45, 0.4, 0]),
        (binary(0), [1.0, 0, 0], [0.5, 0, 0]),
        (integer(0, 0, 1), [0.0, 0, 0], [0.5, 0, 0]),
        (Polyhedron([[1.0, 0, 0]], [0.5], A_eq=[[0, 1.0, 0]], b_eq=[0.25]), [0.5, 0.25, 0], [0.5, 0.3, 0]),
    ],
)
def test_every_word_means_what_it_says(constraint: Any, inside: list[float], outside: list[float]) -> None:
    rules = RuleSet(3, 0, 1, rules=[constraint])
    assert satisfied(rules, inside) == [True]
    assert satisfied(rules, outside) == [False]


@pytest.mark.parametrize(
    ("condition", "inside", "outside"),
    [
        (feature(0) > 1, [1.1, 0], [1.0, 0]),
        (feature(0) >= 1, [1.0, 0], [0.9, 0]),
        (feature(0) < feature(1), [1, 2], [2, 2]),
        (feature(0) <= 1, [1, 0], [1.1, 0]),
        ((feature(0) > 0) & (feature(1) > 0), [1, 1], [1, 0]),
        ((feature(0) > 0) | (feature(1) > 0), [1, 0], [0, 0]),
        (~(feature(0) > 0), [0, 0], [1, 0]),
        (~((feature(0) > 0) & (feature(1) > 0)), [0, 1], [1, 1]),
        (feature(0).equals(2), [2, 0], [1, 0]),
        (2 * feature(0) - feature(1) / 2 > 1, [1, 0], [1, 2]),
        (abs(-feature(0)) > 1, [-2, 0], [-1, 0]),
        (1 - feature(0) > 0.5, [0.4, 0], [0.6, 0]),
        (lambda x: x[0] > 1, [2, 0], [1, 0]),
        (lambda x: bool(x[0] > 1), [2, 0], [1, 0]),
    ],
)
def test_conditions_are_evaluated_for_every_sample(
    condition: Any, inside: list[float], outside: list[float]
) -> None:
    rules = RuleSet(1, 0, 1, rules=[implies(condition, at_least(0, 0.5))])
    active = rules.at(torch.tensor([inside, outside], dtype=F64), 2).active
    assert active[:, 0].tolist() == [True, False]


def test_bounds_and_coefficients_may_depend_on_features() -> None:
    slope = implies(feature(0) > 0, output(0) * feature(0) + output(1) >= feature(1) - 1, name="slope")
    rules = RuleSet(2, 0, 5, rules=[slope, at_most(0, lambda x: x[1])])
    assert satisfied(rules, [1.0, 0.5], [2.0, 3.5]) == [True, True]
    assert satisfied(rules, [1.0, 0.4], [2.0, 3.5]) == [False, True]
    assert satisfied(rules, [3.6, 0.5], [2.0, 3.5]) == [True, False]


def test_callables_give_rows_with_gradients_at_once_or_in_a_loop() -> None:
    scale = torch.tensor(0.5, dtype=F64, requires_grad=True)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return scale * x

    def awkward(x: torch.Tensor) -> torch.Tensor:
        return scale * x if float(x[0].detach()) > -9 else x  # vmap refuses it

    for function in (plain, awkward):
        rules = RuleSet(1, 0, 9, rules=[Disjunction([Polyhedron([[1.0]], function)])])
        raw = torch.full((3, 1), 8.0, dtype=F64)
        x = torch.tensor([[2.0], [4.0], [20.0]], dtype=F64, requires_grad=True)
        projected = DisjunctiveProjection(rules)(raw, x)
        assert projected[:, 0].tolist() == [1.0, 2.0, 8.0]
        gradients = torch.autograd.grad(projected.sum(), [scale, x])
        assert float(gradients[0]) == pytest.approx(6.0)
        assert gradients[1][:, 0].tolist() == [0.5, 0.5, 0.0]


def test_a_fault_of_a_callable_is_told_as_it_is() -> None:
    rules = RuleSet(1, 0, 1, rules=[at_most(0, lambda x: x[7])])
    with pytest.raises(IndexError):
        rules.at(torch.zeros(2, 1), 2)
    wrong = RuleSet(1, 0, 1, rules=[Disjunction([Polyhedron([[1.0]], lambda x: torch.zeros(2))], name="two")])
    with pytest.raises(
        ValueError, match=r"^rule 'two', disjunct 0: expected shape \(1,\) for a sample, got \(2,\)"
    ):
        wrong.at(torch.zeros(3, 1), 3)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: RuleSet(0, 0, 1), "n: expected a whole number of at least 1"),
        (lambda: RuleSet(2, 0, 1, outputs=["a"]), "outputs: expected 2 names, got 1"),
        (lambda: RuleSet(2, 0, 1, outputs=["a", "a"]), "outputs: expected different names"),
        (lambda: RuleSet(2, [0, 0, 0], 1), "lower: expected a number, or one for each of 2 outputs"),
        (
            lambda: RuleSet(2, 0, 1, rules=[at_least(2, 0)]),
            "rule 'rule 1', disjunct 0: output: expected an index",
        ),
        (lambda: RuleSet(2, 0, 1, rules=[at_least("a", 0)]), "rule 'rule 1', disjunct 0: output 'a'"),
        (
            lambda: RuleSet(2, 0, 1, rules=[at_least("presure", 0)], outputs=["flow", "pressure"]),
            "rule 'rule 1', disjunct 0: unknown output 'presure'; did you mean 'pressure'",
        ),
        (lambda: RuleSet(1, 0, 1, [Polyhedron([[1.0, 2.0]], [1.0])]), r"globals\[0\]: A: expected shape"),
        (lambda: RuleSet(1, 0, 1, [Polyhedron([[1.0]], [1.0, 2.0])]), r"globals\[0\]: b: expected 1 rows"),
        (lambda: RuleSet(1, 0, 1, rules=[at_least(0, float("nan"))]), "rule 'rule 1', disjunct 0: the bound"),
        (lambda: RuleSet(1, 0, 1, rules=[3]), r"rules\[0\]: expected a Disjunction, got int"),  # type: ignore[list-item]
        (
            lambda: RuleSet(1, 0, 1, rules=[any_of(at_least(0, 0), name="a")] * 2),
            "rules: two have the name 'a'",
        ),
        (lambda: Polyhedron([[1.0]]), "A: expected the matrix and its right-hand side together"),
        (lambda: Polyhedron(), "A: expected rows, got none"),
        (lambda: Polyhedron(lambda x: x, lambda x: x), "rows: expected the number of rows"),
        (lambda: Disjunction([]), "disjuncts: expected at least one polyhedron"),
        (lambda: Disjunction([3]), "disjuncts: expected polyhedra, got int"),  # type: ignore[list-item]
        (lambda: integer(0, 3, 1), "lo: expected at most hi=1, got 3"),
        (lambda: implies(equals(0, 0.5), at_least(1, 0)), "p: an equality has no closed complement"),
        (lambda: any_of(implies(feature(0) > 0, at_least(0, 0))), "choices: a rule with a condition"),
        (
            lambda: implies(feature(0) > 0, at_least(0, 0), margin=0.1),
            "margin: expected 0 where p is a condition",
        ),
        (lambda: implies(at_least(0, 0), at_least(0, 0), margin=-1), "margin: expected a finite number"),
        (lambda: RuleSet(1, 0, 1, rules=[wins(0, 1)]), "rule 'rule 1', disjunct 0: expected rows, got none"),
        (
            lambda: RuleSet(1, 0, 1, rules=[implies(feature("laod") > 0, at_least(0, 0))], features=["load"]),
            "rule 'rule 1', condition: unknown feature 'laod'; did you mean 'load'",
        ),
        (
            lambda: RuleSet(1, 0, 1, rules=[at_least(0, feature("laod"))], features=["load"]),
            "rule 'rule 1', disjunct 0: unknown feature 'laod'; did you mean 'load'",
        ),
        (
            lambda: RuleSet(1, 0, 1, rules=[implies(feature(-1) > 0, at_least(0, 0))]),
            "rule 'rule 1', condition: feature: expected an index of at least 0",
        ),
        (
            lambda: implies(Polyhedron(torch.ones(1, 1, requires_grad=True), [1.0]), at_least(0, 0)),
            "p: rows of callables or trained tensors have no complement",
        ),
    ],
)
def test_a_wrong_rule_is_named(build: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        build()


def test_a_chained_comparison_says_how_to_write_it() -> None:
    with pytest.raises(TypeError, match=r"write \(a < x\) & \(x < b\)"):
        _ = 0 < feature(0) < 1


def test_copies_and_pickles_have_the_same_rules_and_fingerprint() -> None:
    rules = load_rules("milp_layer/cooling")
    assert rules.fingerprint() == load_rules("milp_layer/cooling").fingerprint()
    assert rules.fingerprint() != load_rules("milp_layer/wine").fingerprint()
    for twin in (copy.deepcopy(rules), pickle.loads(pickle.dumps(rules))):
        assert twin.fingerprint() == rules.fingerprint()
    one, other = (
        RuleSet(1, 0, 1, rules=[at_most(0, function)]) for function in (lambda x: x[0], lambda x: -x[0])
    )
    assert one.fingerprint() != other.fingerprint()


def times(factor: float) -> Any:
    return lambda x: x[0] * factor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (implies(feature(0) > 1000001, at_least(0, 1)), implies(feature(0) > 1000002, at_least(0, 1))),
        (implies(feature(0) > 1, at_least(0, 1)), implies(feature(0) >= 1, at_least(0, 1))),
        (
            at_least(0, feature(0) / (feature(1) * feature(2))),
            at_least(0, feature(0) / feature(1) * feature(2)),
        ),
        (
            at_least(0, feature(0) / (feature(1) / feature(2))),
            at_least(0, feature(0) / feature(1) / feature(2)),
        ),
        (at_most(0, times(2.0)), at_most(0, times(3.0))),
        (
            at_most(0, partial(torch.mul, torch.tensor(2.0))),
            at_most(0, partial(torch.mul, torch.tensor(3.0))),
        ),
        (at_most(0, torch.tensor(2.0)), at_most(0, torch.tensor(3.0))),
        (at_least(0, torch.tensor(2.0)), at_most(0, torch.tensor(2.0))),
    ],
)
def test_rules_that_differ_have_different_fingerprints(one: Any, other: Any) -> None:
    found = [RuleSet(1, 0, 9, rules=[rule]).fingerprint() for rule in (one, other)]
    assert found[0] != found[1]
    assert RuleSet(1, 0, 9, rules=[one]).fingerprint() == found[0]


def test_a_level_that_is_trained_may_start_elsewhere() -> None:
    levels = [torch.tensor(value, requires_grad=True) for value in (0.2, 0.3)]
    one, other = (RuleSet(1, 0, 1, rules=[at_least(0, level)]).fingerprint() for level in levels)
    assert one == other


def test_an_expression_is_told_as_it_is_calculated() -> None:
    a, b, c = (feature(name) for name in "abc")
    for expression, text in (
        (a / (b * c), "a / (b * c)"),
        (a / b * c, "a / b * c"),
        (a - (b - c), "a - (b - c)"),
        (abs(a - 26) * 0.123456789, "abs(a - 26) * 0.123456789"),
    ):
        assert str(expression) == text


FILE = """\
outputs: [flow, pressure]
features: [load, heat]
lower: [0, 0]
upper: [10, 8]
globals:
  - flow + pressure <= 15
rules:
  - name: high load
    when: load > 0.8 and not heat > 50
    then: pressure >= 3 + 2 * (load - 0.8)
  - name: off or on
    any:
      - flow <= 0
      - [flow >= 2, pressure >= 1]
  - name: if it flows
    when: flow >= 5
    then: pressure >= 4
    margin: 0.5
"""


def test_a_rule_file_means_what_the_same_rules_in_python_mean() -> None:
    from_file = parse_rules(FILE)
    load, heat = feature("load"), feature("heat")
    flow, pressure = output("flow"), output("pressure")
    written = RuleSet(
        2,
        0,
        [10, 8],
        [flow + pressure <= 15],
        [
            implies((load > 0.8) & ~(heat > 50), pressure >= 3 + 2 * (load - 0.8), name="high load"),
            any_of(flow <= 0, (flow >= 2) & (pressure >= 1), name="off or on"),
            implies(flow >= 5, pressure >= 4, margin=0.5, name="if it flows"),
        ],
        outputs=["flow", "pressure"],
        features=["load", "heat"],
    )
    generator = torch.Generator().manual_seed(0)
    raw = 10 * torch.rand(60, 2, generator=generator, dtype=F64)
    x = torch.rand(60, 2, generator=generator, dtype=F64) * torch.tensor([2.0, 100.0])
    one, other = DisjunctiveProjection(from_file), DisjunctiveProjection(written)
    torch.testing.assert_close(one(raw, x), other(raw, x), rtol=0, atol=0)
    assert certify(written, one(raw, x), x).holds
    assert from_file.names == ("high load", "off or on", "if it flows")


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("pressure >= 3", "presure >= 3", 10, "then: unknown name 'presure'; did you mean 'pressure'?"),
        ("load > 0.8 and", "laod > 0.8 and", 9, "when: unknown name 'laod'; did you mean 'load'?"),
        ("when: load", "wenn: load", 9, "unknown key 'wenn'; did you mean 'when'?"),
        ("globals:", "global:", 5, "unknown key 'global'; did you mean 'globals'?"),
        ("upper: [10, 8]", "upper: [10, eight]", 4, "upper: expected a number, got 'eight'"),
        ("upper: [10, 8]", "upper: [10]", 4, "upper: expected a number, or one for each of 2 outputs"),
        ("upper: [10, 8]", "upper: .inf", 4, "upper: expected a"),
        ("flow <= 0", "flow * pressure <= 0", 13, "any: 'flow * pressure' is not linear in the outputs"),
        ("flow <= 0", "flow <", 13, "any: cannot be read: 'flow <'"),
        ("flow <= 0", "load <= 0", 13, "any: expected a comparison of outputs"),
        ("flow <= 0", "__import__('os')", 13, "any: unknown function '__import__'"),
        ("flow <= 0", "flow.real <= 0", 13, "any: 'flow.real' is not understood"),
        ("flow + pressure <= 15", "1 <= 15", 6, "globals: '1 <= 15' compares two numbers"),
        (
            "flow + pressure <= 15",
            "flow <= 1 or flow >= 2",
            6,
            "globals: expected comparisons without alternatives",
        ),
        ("name: off or on", "name: high load", 11, "name: a rule above is called 'high load' too"),
        ("    then: pressure >= 4\n", "", 15, "a rule needs either 'then' or 'any'"),
        ("margin: 0.5", "margin: big", 18, "margin: expected a number, got 'big'"),
        ("features: [load, heat]", "features: [load, flow]", 2, "features: 'flow' is an output too"),
        ("outputs: [flow, pressure]", "outputs: [flow, flow]", 1, "outputs: 'flow' stands there twice"),
        ("lower: [0, 0]\n", "", 1, "lower is missing"),
        ("rules:", "rules: 3\nmore:", 7, "rules: expected a list"),
        ("pressure >= 4", "pressure >= 1e999", 17, "then: expected a finite number, got inf"),
        ("flow <= 0", "flow <= load ** 2", 13, "any: 'load ** 2': expected one of + - * /"),
        ("margin: 0.5", "margin: -1", 18, "margin: expected a number of at least 0"),
        ("when: flow >= 5", "when: load >= 5", 18, "margin: expected a 'when' on outputs beside it"),
        (
            "when: flow >= 5",
            "when: flow >= 5 and load > 1",
            16,
            "when: 'and' joins conditions on features, or",
        ),
        ("when: flow >= 5", "when: flow == 5", 16, "when: an equality has no closed complement"),
        ("[load, heat]", "[load, lambda]", 2, "features: 'lambda' is no name"),
        ("[load, heat]", "200000", 2, "features: expected names, or how many there are, 1 to 10000"),
        ("name: off or on", "[a]: 3", 11, "a rule: expected one value, got a list or a mapping"),
        ("flow <= 0", "flow <= " + "+".join(["1"] * 20000), 13, "any: cannot be read: 'flow <= 1+1"),
    ],
)
def test_an_error_in_a_rule_file_names_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, text: str
) -> None:
    assert old in FILE
    path = tmp_path / "plant.yaml"
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(RuleFileError) as caught:
        load_rules(str(path))
    message = str(caught.value)
    if "more" in new:  # two faults: the unknown key comes first
        assert message.startswith(f"{path}:8: unknown key 'more'")
        return
    assert message.startswith(f"{path}:{line}: {text}"), message


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(RuleFileError, match=r"none.yaml: cannot be read: No such file"):
        load_rules(str(tmp_path / "none.yaml"))
    with pytest.raises(RuleFileError, match="rules:2: no YAML"):
        parse_rules("outputs: [a\nlower: 0")
    with pytest.raises(RuleFileError, match="the file is empty"):
        parse_rules("")
    with pytest.raises(RuleFileError, match="rules:1: the file: expected keys and values"):
        parse_rules("- a")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("outputs: 2 # é".encode("latin-1"))
    with pytest.raises(RuleFileError, match=r"latin\.yaml: cannot be read: it is no UTF-8 text"):
        load_rules(str(latin))


def test_what_is_found_when_rules_are_put_together_names_the_line_of_the_rule() -> None:
    top = "outputs: [a, b]\nlower: 0\nupper: 1\n"
    with pytest.warns(UserWarning, match="^plant:6: rule 'second': disjunct 0 is empty and is dropped"):
        parse_rules(
            f"{top}rules:\n  - {{name: first, then: a >= 0.5}}\n  - name: second\n    any: [a >= 2, b >= 0]",
            name="plant",
        )
    with pytest.warns(UserWarning, match="^plant:4: globals: bounds and global constraints have no common"):
        parse_rules(f"{top}globals: [sum() >= 3]\nrules:\n  - then: a >= 0.5", name="plant")


def test_functions_of_a_rule_file() -> None:
    rules = parse_rules(
        "outputs: 3\nfeatures: 2\nlower: 0\nupper: 3\nglobals: [sum() <= 8, 'sum(y0, y1) >= 0.5']\n"
        "rules:\n  - then: integer(y0, 0, 3)\n  - then: binary(y1)\n  - then: wins(y2, 0.5)\n"
        "  - when: max(x0, x1) > 1 or abs(x0) == 2\n    then: 0.5 <= y2 <= min(x0, 2.5)\n"
    )
    assert satisfied(rules, [1.0, 1.0, 2.0], [0.0, 0.0]) == [True, True, True, True]
    assert satisfied(rules, [1.5, 1.5, 1.9], [0.0, 0.0]) == [False, True, False, True]
    assert satisfied(rules, [1.0, 1.0, 2.0], [1.5, 0.0]) == [True, True, True, False]
    assert rules.at(torch.tensor([[-2.0, 0.0]]), 1).active[0, 3]
