"""The script of each check's finding: it shows the mistake where there is one, and nothing where there is none."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import reproduced_oracles
import reproduced_routers
import torch
from findings import diverges, races

from difftest.judging.checks import CHECKS
from difftest.judging.outcome import Outcome, Verdict
from difftest.judging.trial import STEPS
from difftest.report import script
from difftest.report.question import question
from difftest.report.router_question import router_inquiry
from difftest.router.judge import judge_table
from difftest.router.subject import ROUTER_CHECKS
from difftest.stream import Stream
from oracles import router_problem
from oracles.problem import build
from oracles.reproductions import claims, routing_claims
from oracles.router_problem import RoutingTable
from oracles.router_reference import enclose
from oracles.router_torch import RouterTorch
from strategies import Parallel, Routing, Scenario, Shape, Values
from strategies.draw.router import router_scenarios
from strategies.plain import AnyScenario
from strategies.router import Logits, RouterScenario, RouterShape, Scores, SetRow
from strategies.scenario import Execution, ValueEdit

SHAPE = Shape(tokens=5, hidden=32, intermediate=32, experts=4, top_k=2)
PLAIN = Scenario(shape=SHAPE)
RANK = Scenario(shape=replace(SHAPE, experts=8), parallel=Parallel(ep_size=2, ep_rank=1))
WITH_NAN = Scenario(shape=SHAPE, values=Values(edits=(ValueEdit(tensor="hidden_states", index=(1, 3), value="nan"),)))
SPARSE = Scenario(shape=replace(SHAPE, tokens=1, top_k=1))
PADDED = replace(PLAIN, execution=Execution(padding=2))
GRAPH = replace(PLAIN, execution=Execution(mode="graph", replays=("x", "ids")))
LONELY = replace(RANK, routing=Routing(rule="remote_only"))


def finding(scenario: AnyScenario, check: str, who: str, **changes: Any) -> Outcome:
    file = reproduced_routers.FILE if isinstance(scenario, RouterScenario) else reproduced_oracles.FILE
    if check == "determinism":
        return replace(races(scenario, 2, 3), candidate=f"{file}:{who}")
    return diverges(scenario, check=check, candidate=f"{file}:{who}", **changes)


def ended(outcome: Outcome) -> int:
    """How the script of the finding ends, run here."""
    text = script.script(outcome, outcome.candidate, "title", "summary")
    for name in ("difftest", "oracles", "strategies"):
        assert f"import {name}" not in text
        assert f"from {name}" not in text
    space: dict[str, Any] = {"__name__": "repro"}
    exec(compile(text, "repro.py", "exec"), space)
    with torch.no_grad():
        code: int = space["main"]()
    return code


@pytest.mark.parametrize(
    ("check", "scenario", "mistake"),
    [
        ("reference", PLAIN, "doubled"),
        ("no_local_expert", LONELY, "first_row"),
        ("inputs", PLAIN, "changes_x"),
        ("empty", PLAIN, "flat_when_empty"),
        ("determinism", PLAIN, "counts_its_calls"),
        ("poison", PLAIN, "leaves_a_row"),
        ("guard", PLAIN, "beyond"),
        ("guard", PLAIN, "short"),
        ("split", PLAIN, "odd_batches"),
        ("permute", PLAIN, "first_row"),
        ("pad", PLAIN, "pads_with_ones"),
        ("pad", PADDED, "long_batches"),
        ("foreign", RANK, "foreign_leaks"),
        ("masked_weight", RANK, "every_weight"),
        ("absent", SPARSE, "every_scale"),
        ("isolation", WITH_NAN, "shares_a_scale"),
        ("ep_sum", RANK, "bias_on_every_rank"),
        ("pdl", PLAIN, "overlaps"),
        ("replay", GRAPH, "stale"),
        ("replay_eager", GRAPH, "stale"),
    ],
)
def test_a_script_shows_the_mistake_and_no_other(check: str, scenario: Scenario, mistake: str, capsys) -> None:
    assert ended(finding(scenario, check, "right")) == 0
    assert " 0 of " in capsys.readouterr().out
    assert ended(finding(scenario, check, mistake)) == 1
    shown = capsys.readouterr().out
    assert "expected" in shown or "MALFORMED" in shown


def test_every_check_has_a_script() -> None:
    # What an oracle says of itself is not its kernel's.
    assert set(claims.CHECKS) == (set(CHECKS) | set(STEPS)) - {"unsupported"}
    assert set(ROUTER_CHECKS) < set(routing_claims.ROUTER_CHECKS)


def rejected(scenario: AnyScenario, check: str, who: str, kind: str) -> Outcome:
    file = reproduced_routers.FILE if isinstance(scenario, RouterScenario) else reproduced_oracles.FILE
    return Outcome(
        verdict=Verdict.REJECTED,
        scenario=scenario,
        candidate=f"{file}:{who}",
        reference="reference",
        check=check,
        kind=kind,
        detail=kind,
    )


@pytest.mark.parametrize("scenario", [PLAIN, replace(PLAIN, shape=replace(SHAPE, tokens=0))], ids=["empty", "call"])
def test_a_rejection_is_shown_by_its_own_error(scenario: Scenario, capsys) -> None:
    check = "empty" if scenario.shape.tokens else "call"
    kind = "ValueError: need at least # row"
    assert ended(rejected(scenario, check, "needs_a_row", kind)) == 1
    assert "REJECTED: ValueError: need at least 1 row" in capsys.readouterr().out
    assert ended(rejected(scenario, check, "right", kind)) == 0
    assert ended(rejected(scenario, check, "needs_a_row", "RuntimeError: no kernel image")) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"execution": Execution(tactic=3)}, "execution.tactic = 3, and reproduced.py does not look at p.tactic"),
        ({"precision": "mxfp8xmxfp4"}, "precision = 'mxfp8xmxfp4', and reproduced.py does not look at p.hidden_q"),
    ],
)
def test_no_script_of_what_the_reproduction_does_not_look_at(change: dict[str, Any], told: str) -> None:
    with pytest.raises(script.NoScript, match=told):
        ended(finding(replace(PLAIN, **change), "reference", "right"))


def test_no_script_where_the_reproduction_takes_a_name_of_the_script(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oracles.grouped_mm import GroupedMM\n\n\nclass Mine(GroupedMM):\n    reproduction = 'calls.py:told'\n"
    )
    (tmp_path / "calls.py").write_text("def told(p):\n    return p.hidden_states\n")
    outcome = diverges(PLAIN, candidate=f"{tmp_path / 'mine.py'}:Mine")
    with pytest.raises(script.NoScript, match=r"calls\.py defines told, a name that a script has another use for"):
        ended(outcome)


# --- routers -------------------------------------------------------------------------------------------------------

ROUTED = RouterScenario(
    shape=RouterShape(tokens=4, experts=6, top_k=2),
    scores=Scores(scoring="softmax", bias="normal", renormalise=True),
    logits=Logits(seed=3),
)
EMPTY = replace(ROUTED, shape=replace(ROUTED.shape, tokens=0))
NAN_ROW = replace(ROUTED, logits=Logits(seed=3, edits=(SetRow(token=1, value=math.nan),)))


@pytest.mark.parametrize(
    ("check", "scenario", "mistake"),
    [
        ("reference", ROUTED, "forgets_the_bias"),
        ("reference", ROUTED, "twice"),
        ("reference", ROUTED, "nobody"),
        ("reference", ROUTED, "heavy"),
        ("determinism", ROUTED, "changes"),
        ("isolation", NAN_ROW, "leaks"),
        ("split", ROUTED, "alone"),
    ],
)
def test_a_routers_script_shows_the_mistake_and_no_other(check: str, scenario: RouterScenario, mistake: str) -> None:
    assert ended(finding(scenario, check, "right")) == 0
    assert ended(finding(scenario, check, mistake)) == 1


def test_a_routers_rejection_is_shown() -> None:
    kind = "RuntimeError: cannot reshape tensor of # elements into shape [#]"
    assert ended(rejected(EMPTY, "call", "needs_a_token", kind)) == 1
    assert ended(rejected(EMPTY, "call", "right", kind)) == 0


def test_the_claims_of_a_routers_script_are_those_of_the_check() -> None:
    """On drawn scenarios: a right table passes, and what the check objects to the script objects to."""
    seen = {"right": 0, "wrong": 0}
    oracle = RouterTorch()

    def visit(scenario: RouterScenario) -> None:
        problem = router_problem.build(scenario)
        table = oracle(problem)
        experts = scenario.shape.experts
        shifted = RoutingTable((table.topk_ids + 1) % experts, table.topk_weights)
        space = {name: getattr(scenario.shape, name) for name in ("top_k", "groups", "topk_groups")}
        space |= {name: getattr(scenario.scores, name) for name in ("scoring", "renormalise", "routed_scaling_factor")}
        p = SimpleNamespace(logits=problem.logits, bias=problem.bias, **space)
        bounds = {packed.name: unpacked(packed) for packed in router_inquiry(problem, oracle, "reference").bounds[0]}
        for who, answer in (("right", table), ("wrong", shifted)):
            found = bool(judge_table(answer, enclose(problem, oracle.numerics)).breaches)
            shown = any(bool(claim.wrong.any()) for claim in routing_claims.judged(p, tuple(answer), bounds))
            assert shown >= found
            assert not (who == "right" and shown)
            seen[who] += found
        seen["right"] += 1

    Stream(router_scenarios(RouterTorch.capability, profile="quick"), base_seed=3, shard=0, count=40).each(visit)
    assert seen["right"] == 40
    assert seen["wrong"] > 20


def unpacked(packed: Any) -> torch.Tensor:
    """As scripts do it."""
    content = bytearray(zlib.decompress(base64.b85decode("".join(packed.text.split()))))
    raw = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return raw.view(getattr(torch, packed.dtype)).view(packed.shape)


def test_a_question_holds_the_problem_to_the_bit() -> None:
    problem = build(RANK)
    asked = question(problem)
    for packed in asked.tensors:
        if "." not in packed.name:
            assert torch.equal(unpacked(packed), getattr(problem, packed.name))
    assert asked.values["w13_bias"] is None
