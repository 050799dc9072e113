"""What is drawn: within the capability, everything, in the proportions that find bugs, and it shrinks to the least."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from typing import get_args

import pytest
import torch
from draws import DEFAULT, WHOLE, draws, routed, share
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from oracles import build, formats
from oracles.numerics import Numerics
from oracles.reference import enclose
from strategies import (
    ACTIVATIONS,
    PROFILES,
    AssignExpert,
    Capability,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    Scenario,
    SetWeight,
    Situ,
    Swiglu,
    SwigluOai,
    scenarios,
)
from strategies.scenario import Replay

COUNT = 2000


def expert_parallel(profile: str) -> list[Scenario]:
    return [scenario for scenario in draws(profile, COUNT) if scenario.parallel.ep_size > 1]


def is_non_finite(scenario: Scenario) -> bool:
    """A NaN or an infinity goes in: in x, in a router weight or by a scale byte."""
    values = scenario.values
    weights = (edit.weight for edit in scenario.routing.edits if isinstance(edit, SetWeight))
    return (
        values.scale_high == 255
        or any(edit.value in ("nan", "inf", "-inf", 255) for edit in values.edits)
        or not all(map(math.isfinite, weights))
    )


def is_usual(scenario: Scenario) -> bool:
    """Normal content of a usual magnitude, nothing set by hand, no NaN in padding."""
    values = scenario.values
    usual_scale = values.scale_low > 60 and values.scale_high < 140
    return (
        values.rule == "normal"
        and usual_scale
        and abs(values.x_exponent) <= 2
        and not values.edits
        and not scenario.routing.edits
        and scenario.execution.padding_rows == "masked"
    )


class TestArguments:
    def test_an_unknown_profile_is_named(self) -> None:
        with pytest.raises(InvalidArgument, match=r"^profile = 'fast': must be one of quick, default, real$"):
            scenarios(profile="fast")

    def test_what_is_not_a_capability_is_named(self) -> None:
        with pytest.raises(InvalidArgument, match=r"^capability = 'quick': must be a Capability$"):
            scenarios("quick")  # type: ignore[arg-type]

    def test_a_scenario_is_read_without_hypothesis(self) -> None:
        code = "import sys, strategies; strategies.Scenario(); assert 'hypothesis' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        import strategies

        with pytest.raises(AttributeError, match="module 'strategies' has no attribute 'scenario_s'"):
            _ = strategies.scenario_s


def subsets(whole: frozenset[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(sorted(whole)), min_size=1)


CAPABILITIES = st.builds(
    Capability,
    hidden_multiple=st.sampled_from((32, 64, 96, 128, 256, 1024)),
    intermediate_multiple=st.sampled_from((32, 64, 128, 384)),
    activations=subsets(WHOLE.activations),
    precisions=subsets(WHOLE.precisions),
    output_dtypes=subsets(WHOLE.output_dtypes),
    modes=subsets(WHOLE.modes),
    tactics=st.integers(0, 60),
    **{
        name: st.booleans()
        for name in (
            "per_expert_activation",
            "expert_parallel",
            "moe_tp",
            "biases",
            "masked_slots",
            "duplicate_experts",
            "non_finite",
            "special_scale_bytes",
            "empty_batch",
            "padding",
            "stray_ids",
            "pdl",
            "fused_finalize",
            "busy",
        )
    },
)


class TestCapability:
    @given(CAPABILITIES, st.sampled_from(sorted(PROFILES)), st.data())
    @settings(max_examples=200, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def test_nothing_outside_is_drawn(self, capability: Capability, profile: str, data: st.DataObject) -> None:
        scenario = data.draw(scenarios(capability, profile=profile))
        assert capability.objection(scenario) is None

    @pytest.mark.parametrize("profile", sorted(PROFILES))
    def test_no_row_names_an_expert_twice_unless_promised(self, profile: str) -> None:
        for scenario in draws(profile, 150, Capability(duplicate_experts=False)):
            for row in routed(scenario).topk_ids.tolist():
                named = [expert for expert in row if expert >= 0]
                assert len(set(named)) == len(named)

    def test_a_kernel_that_promises_no_infinity_is_not_overflowed(self) -> None:
        for scenario in cheap(150, Capability(non_finite=False, special_scale_bytes=False)):
            assert enclose(build(scenario), Numerics()).center.isfinite().all()

    def test_a_graph_is_replayed_only_where_there_are_graphs(self) -> None:
        assert {scenario.execution.mode for scenario in draws("quick", COUNT)} == {"eager"}
        graphs = [s.execution for s in draws("quick", 600, WHOLE) if s.execution.mode == "graph"]
        assert {change for execution in graphs for change in execution.replays} == set(get_args(Replay))
        assert {len(execution.replays) for execution in graphs} >= {0, 1, 2, 3}
        assert 0.3 < len(graphs) / 600 < 0.7
        only = Capability(modes=frozenset({"graph"}))
        assert {scenario.execution.mode for scenario in draws("quick", 50, only)} == {"graph"}

    def test_every_precision_dtype_and_tactic_is_drawn(self) -> None:
        drawn = draws("quick", 600, WHOLE)
        assert {scenario.precision for scenario in drawn} == WHOLE.precisions
        assert {scenario.output_dtype for scenario in drawn} == WHOLE.output_dtypes
        assert {scenario.execution.tactic for scenario in drawn} == {None, 0, 1, 2, 3}

    def test_widths_are_multiples_of_the_units(self) -> None:
        capability = Capability(hidden_multiple=128, intermediate_multiple=64)
        drawn = draws("default", 400, capability)
        assert {scenario.shape.hidden for scenario in drawn} >= {128, 256, 384, 512, 640}
        assert {scenario.intermediate_local for scenario in drawn} >= {64, 128, 192, 256, 320, 448, 512, 576}


@pytest.mark.parametrize("profile", ["quick", "default"])
class TestDistribution:
    def test_draws_differ(self, profile: str) -> None:
        assert len(set(draws(profile, COUNT))) > 0.95 * COUNT

    def test_ranks_above_0_come_first(self, profile: str) -> None:
        assert len(expert_parallel(profile)) > 0.4 * COUNT
        assert share(expert_parallel(profile), lambda s: s.parallel.ep_rank > 0) >= 0.6
        last = share(expert_parallel(profile), lambda s: s.parallel.ep_rank == s.parallel.ep_size - 1)
        assert last >= 0.2

    def test_many_tables_hold_ids_of_other_ranks(self, profile: str) -> None:
        def holds_remote(scenario: Scenario) -> bool:
            problem = routed(scenario)
            return bool(((problem.topk_ids >= 0) & (problem.local_ids < 0)).any())

        assert share(expert_parallel(profile), holds_remote) >= 0.3

    def test_most_tables_hold_ids_of_this_rank(self, profile: str) -> None:
        assert share(draws(profile, COUNT), lambda s: bool((routed(s).local_ids >= 0).any())) >= 0.75

    def test_half_have_a_real_choice_of_experts(self, profile: str) -> None:
        assert share(draws(profile, COUNT), lambda s: s.shape.top_k >= 2 and s.shape.experts >= 4) >= 0.5

    def test_tokens_are_any_and_often_at_the_edge_of_a_tile(self, profile: str) -> None:
        tokens = Counter(scenario.shape.tokens for scenario in draws(profile, COUNT))
        assert set(tokens) == set(range(PROFILES[profile].tokens + 1))
        edges = [tile + offset for tile in (8, 16, 32, 64, 128) for offset in (-1, 0, 1)]
        assert 0.3 < sum(tokens[edge] for edge in edges) / COUNT < 0.7
        assert tokens[1] > 0.04 * COUNT
        assert 0 < tokens[0] < 0.05 * COUNT

    def test_widths_stand_at_and_beside_every_tile(self, profile: str) -> None:
        limit = PROFILES[profile].width
        expected = set(range(32, limit + 33, 32))
        assert {scenario.shape.hidden for scenario in draws(profile, COUNT)} >= expected
        assert {scenario.intermediate_local for scenario in draws(profile, COUNT)} >= expected
        odd = share(draws(profile, COUNT), lambda s: s.shape.hidden % 128 or s.intermediate_local % 128)
        assert 0.5 < odd < 1

    def test_every_routing_rule_and_edit_is_drawn(self, profile: str) -> None:
        rules = Counter(scenario.routing.rule for scenario in draws(profile, COUNT))
        assert set(rules) == {
            "uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties",
        }  # fmt: skip
        assert min(rules.values()) > 0.02 * COUNT
        edits = Counter(type(edit) for scenario in draws(profile, COUNT) for edit in scenario.routing.edits)
        assert set(edits) == {MaskSlot, MaskRow, AssignExpert, DuplicateSlot, SetWeight}
        assert min(edits.values()) > 0.05 * COUNT

    def test_every_router_weight_is_drawn(self, profile: str) -> None:
        weights = {
            str(edit.weight)
            for scenario in draws(profile, COUNT)
            for edit in scenario.routing.edits
            if isinstance(edit, SetWeight)
        }
        assert weights >= {"0.0", "-0.0", "1.0", "-1.0", "nan", "inf", "-inf", str(2.0**-149)}

    def test_a_row_names_an_expert_twice(self, profile: str) -> None:
        def repeats(scenario: Scenario) -> bool:
            rows = [[expert for expert in row if expert >= 0] for row in routed(scenario).local_ids.tolist()]
            return any(len(set(row)) < len(row) for row in rows)

        assert share(draws(profile, COUNT), repeats) > 0.03

    def test_every_activation_is_drawn(self, profile: str) -> None:
        kinds = Counter(scenario.activation.kind for scenario in draws(profile, COUNT))
        assert set(kinds) == set(ACTIVATIONS)
        assert min(kinds.values()) > 0.15 * COUNT
        drawn = {scenario.activation for scenario in draws(profile, COUNT)}
        assert drawn >= {Swiglu(), SwigluOai(), SwigluOai(per_expert=True), Situ(), Situ(per_expert=True)}
        assert len(drawn) > 10

    def test_every_value_rule_edit_and_extreme_is_drawn(self, profile: str) -> None:
        all_values = [scenario.values for scenario in draws(profile, COUNT)]
        rules = Counter(values.rule for values in all_values)
        assert set(rules) == {"normal", "integer", "index", "one_hot", "wide"}
        assert min(rules.values()) > 0.05 * COUNT
        edited = Counter((edit.tensor, edit.value) for values in all_values for edit in values.edits)
        specials = ("nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal")
        assert set(edited) == {
            *(("hidden_states", special) for special in specials),
            *((tensor, byte) for tensor in ("w13_scale", "w2_scale") for byte in (0, 1, 127, 254, 255)),
        }
        assert len({(values.scale_low, values.scale_high) for values in all_values}) > 20
        assert {values.scale_low for values in all_values} >= {0, 118}
        assert max(values.scale_high for values in all_values) == 255
        assert {values.x_exponent for values in all_values} >= {-100, -40, -8, -1, 0, 1, 8, 40, 100}

    def test_every_extra_of_layer_and_execution_is_drawn(self, profile: str) -> None:
        drawn = draws(profile, COUNT)
        layers = [scenario.layer for scenario in drawn]
        assert {layer.biases for layer in layers} == {"none", "per_expert"}
        assert {(layer.moe_tp_size, layer.moe_tp_rank) for layer in layers} >= {(1, 0), (2, 0), (2, 1), (4, 3)}
        assert {layer.routed_scaling_factor for layer in layers} >= {0.5, 1.0, 1.5, 2.0, 2.5}
        executions = [scenario.execution for scenario in drawn]
        assert {execution.padding for execution in executions} >= {0, 1, 2, 3, 7, 8}
        assert {execution.padding_rows for execution in executions} == {"masked", "routed"}
        assert {execution.repeats for execution in executions} == {1, 2, 3}
        assert {execution.poison for execution in executions} >= {0x00, 0xFF, 0x7F}
        assert share(drawn, lambda s: s.layer == type(s.layer)() and s.execution == type(s.execution)()) > 0.2

    def test_most_scenarios_are_finite_and_a_third_have_no_edit(self, profile: str) -> None:
        drawn = draws(profile, COUNT)
        assert 0.10 < share(drawn, is_non_finite) < 0.45
        assert 0.20 < share(drawn, lambda s: not s.routing.edits and not s.values.edits) < 0.60

    def test_a_weight_and_a_value_are_edited_in_one_live_slot(self, profile: str) -> None:
        def meet(scenario: Scenario) -> bool:
            live, first = routed(scenario).local_ids, scenario.first_expert
            weights = [edit for edit in scenario.routing.edits if isinstance(edit, SetWeight)]
            slots = {(edit.token, int(live[edit.token, edit.slot])) for edit in weights}
            tokens = {edit.index[0] for edit in scenario.values.edits if edit.tensor == "hidden_states"}
            experts = {edit.index[0] - first for edit in scenario.values.edits if edit.tensor != "hidden_states"}
            return any(expert >= 0 and (token in tokens or expert in experts) for token, expert in slots)

        edited = [s for s in draws(profile, COUNT) if s.values.edits and s.routing.edits]
        assert share(edited, meet) > 0.15

    def test_every_place_in_a_batch_is_edited(self, profile: str) -> None:
        tokens = [
            (edit.token, scenario.shape.tokens) for scenario in draws(profile, COUNT) for edit in scenario.routing.edits
        ]
        assert {token for token, _ in tokens} >= {0, 1, 2, 3, 7, 8, 15, 16, 17}
        several = [(token, size) for token, size in tokens if size > 2]
        assert 0.1 < sum(token == size - 1 for token, size in several) / len(several) < 0.7


def cheap(count: int, capability: Capability = DEFAULT) -> list[Scenario]:
    """Scenarios whose numbers are soon computed."""
    drawn = draws("quick", COUNT) if capability == DEFAULT else draws("quick", count, capability)
    return [s for s in drawn if s.shape.hidden * s.intermediate_local * s.experts_local < 2**17][:count]


class TestMagnitude:
    @staticmethod
    def gates(scenario: Scenario) -> torch.Tensor:
        """Finite gates of the experts that this rank runs, before the activation."""
        problem = build(scenario)
        found = [torch.empty(0, dtype=torch.float64)]
        for expert in set(problem.local_ids[problem.local_ids >= 0].tolist()):
            rows = problem.hidden_states[(problem.local_ids == expert).any(dim=1)].double()
            gate_weight = formats.mxfp4_dequantize(problem.w13[expert], problem.w13_scale[expert])
            found.append((rows @ gate_weight[: problem.intermediate].T).flatten())
        gates = torch.cat(found)
        return gates[gates.isfinite()]

    def test_most_gates_are_of_order_1_to_10(self) -> None:
        all_gates = [gates for scenario in cheap(250) if len(gates := self.gates(scenario))]
        medians = [gates.abs().median().item() for gates in all_gates]
        assert sum(0.3 < median < 30 for median in medians) / len(medians) > 0.6
        assert sum(median < 1e-6 or median > 1e6 for median in medians) / len(medians) > 0.02

    def test_the_clamp_of_swiglu_oai_is_reached(self) -> None:
        clamped = [(s, s.activation.limit) for s in cheap(400) if isinstance(s.activation, SwigluOai)]
        # Twice the limit: above that of every expert, its own factor included.
        reached = [bool((gates > 2 * limit).any()) for s, limit in clamped if len(gates := self.gates(s))]
        assert len(reached) > 50
        assert sum(reached) / len(reached) > 0.35

    def test_usual_content_overflows_nothing(self) -> None:
        usual = [scenario for scenario in cheap(1000) if is_usual(scenario)]
        assert len(usual) > 50
        for scenario in usual:
            center = enclose(build(scenario), Numerics()).center
            assert (center.abs() < 1e9).all()
