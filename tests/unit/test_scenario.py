from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from draws import WHOLE, draws
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import (
    AssignExpert,
    DuplicateSlot,
    Execution,
    InvalidScenario,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    StrayId,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)
from strategies.scenario import FORMAT_VERSION, expert_factor

FULL = Scenario(
    shape=Shape(tokens=5, hidden=64, intermediate=128, experts=8, top_k=2),
    parallel=Parallel(ep_size=2, ep_rank=1),
    activation=SwigluOai(alpha=1.0, beta=0.0, limit=math.inf, per_expert=True),
    precision="mxfp8xmxfp4",
    output_dtype="float16",
    layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=1, routed_scaling_factor=2.5),
    routing=Routing(
        rule="skewed",
        seed=7,
        edits=(
            MaskSlot(token=0, slot=1),
            MaskRow(token=1),
            AssignExpert(token=2, slot=0, expert=7),
            DuplicateSlot(token=3, slot=1, source=0),
            SetWeight(token=4, slot=0, weight=math.nan),
            StrayId(token=4, slot=1, expert_id=8),
        ),
    ),
    values=Values(
        rule="wide",
        seed=9,
        x_exponent=-3,
        scale_low=100,
        scale_high=130,
        edits=(
            ValueEdit(tensor="hidden_states", index=(4, 63), value="min_subnormal"),
            ValueEdit(tensor="w13_scale", index=(7, 127, 1), value=255),
            ValueEdit(tensor="w2_scale", index=(0, 63, 1), value=0),
        ),
    ),
    execution=Execution(
        mode="graph",
        replays=("empty_expert", "same"),
        padding=3,
        padding_rows="routed",
        tactic=1,
        pdl=False,
        fused_finalize=True,
        busy=True,
        repeats=2,
        poison=255,
    ),
)


def through_json(scenario: Scenario) -> Scenario:
    return Scenario.from_json(json.loads(json.dumps(scenario.to_json())))


def at(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def paths(data: Any, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value but its root."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for key, value in items for path in ((*here, key), *paths(value, (*here, key)))]


class TestJson:
    @pytest.mark.parametrize("profile", ["quick", "real"])
    def test_drawn_scenarios_round_trip(self, profile: str) -> None:
        for scenario in draws(profile, 300, WHOLE):
            read = through_json(scenario)
            assert read == scenario
            assert hash(read) == hash(scenario)
            assert read.digest == scenario.digest
            assert read.to_json() == scenario.to_json()

    def test_every_kind_of_field_round_trips(self) -> None:
        assert through_json(FULL) == FULL

    def test_defaults_are_left_out_but_for_the_shape(self) -> None:
        assert Scenario().to_json() == {
            "version": FORMAT_VERSION,
            "shape": {"tokens": 1, "hidden": 32, "intermediate": 32, "experts": 1, "top_k": 1},
        }

    def test_what_is_left_out_has_its_default(self) -> None:
        assert Scenario.from_json({"version": 1}) == Scenario()

    def test_non_finite_numbers_are_strings(self) -> None:
        data = FULL.to_json()
        assert data["activation"]["limit"] == "inf"
        assert data["routing"]["edits"][4]["weight"] == "nan"
        json.dumps(data, allow_nan=False)

    def test_an_integer_stands_for_a_float(self) -> None:
        data = {"version": 1, "activation": {"kind": "situ", "beta": 4, "linear_beta": 25}}
        assert Scenario.from_json(data) == Scenario(activation=Situ())

    @pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.5, [1]])
    def test_another_version_is_refused(self, version: object) -> None:
        with pytest.raises(InvalidScenario, match=r"^version = .*must be 1, the only version"):
            Scenario.from_json(Scenario().to_json() | {"version": version})

    def test_a_missing_version_is_refused(self) -> None:
        with pytest.raises(InvalidScenario, match=r"^version = None"):
            Scenario.from_json({"shape": {}})

    @pytest.mark.parametrize("data", [None, [], "scenario", 1, math.nan])
    def test_anything_but_an_object_is_refused(self, data: object) -> None:
        with pytest.raises(InvalidScenario, match=r"^scenario = .*: must be a JSON object"):
            Scenario.from_json(data)

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (("shape",), None, "shape = None: must be an object"),
            (("shape", "tokens"), -1, "shape.tokens = -1: must be an integer >= 0"),
            (("shape", "tokens"), 1.0, "shape.tokens = 1.0: must be an integer"),
            (("shape", "tokens"), True, "shape.tokens = True: must be an integer"),
            (("shape", "hidden"), 48, "shape.hidden = 48: must be a multiple of 32"),
            (("shape", "intermediate"), 0, "shape.intermediate = 0: must be an integer >= 32"),
            (("shape", "experts"), "8", "shape.experts = '8': must be an integer"),
            (("shape", "top_k"), 9, "shape.top_k = 9: must be an integer in [1, 8]"),
            (("shape", "width"), 1, "shape.width = 1: must be left out: the fields are tokens, hidden"),
            (("parallel", "ep_size"), 3, "parallel.ep_size = 3: must be a divisor of shape.experts = 8"),
            (("parallel", "ep_rank"), 2, "parallel.ep_rank = 2: must be an integer in [0, 1]"),
            (("activation",), "situ", "activation = 'situ': must be an object"),
            (("activation", "kind"), "gelu", "activation.kind = 'gelu': must be one of swiglu, swiglu_oai, situ"),
            (("activation", "kind"), ["situ"], "activation.kind = ['situ']: must be one of"),
            (("activation", "alpha"), "one", "activation.alpha = 'one': must be a number"),
            (("activation", "alpha"), "inf", "activation.alpha = inf: must be a finite float"),
            (("activation", "alpha"), 1e39, "activation.alpha = 1e+39: must be a finite float in float32's range"),
            (("activation", "limit"), -7.0, "activation.limit = -7.0: must be a positive float"),
            (("activation", "limit"), "nan", "activation.limit = nan: must be a positive float"),
            (("activation", "per_expert"), 1, "activation.per_expert = 1: must be true or false"),
            (("precision",), "fp8", "precision = 'fp8': must be one of bf16xmxfp4, mxfp8xmxfp4"),
            (("output_dtype",), None, "output_dtype = None: must be one of bfloat16, float16"),
            (("layer", "biases"), True, "layer.biases = True: must be one of none, per_expert"),
            (("layer", "moe_tp_size"), 8, "layer.moe_tp_size = 8: must be such that shape.intermediate = 128 splits"),
            (("layer", "moe_tp_rank"), 2, "layer.moe_tp_rank = 2: must be an integer in [0, 1]"),
            (("layer", "routed_scaling_factor"), 0.0, "layer.routed_scaling_factor = 0.0: must be a positive"),
            (("routing", "rule"), "random", "routing.rule = 'random': must be one of uniform"),
            (("routing", "seed"), 2**32, "routing.seed = 4294967296: must be an integer in [0, 4294967295]"),
            (("routing", "edits"), {}, "routing.edits = {}: must be a list"),
            (("routing", "edits", 0), "mask", "routing.edits[0] = 'mask': must be an object"),
            (("routing", "edits", 0, "edit"), "mask", "routing.edits[0].edit = 'mask': must be one of mask_slot"),
            (("routing", "edits", 0, "token"), 5, "routing.edits[0].token = 5: must be an integer in [0, 4]"),
            (("routing", "edits", 1, "slot"), 0, "routing.edits[1].slot = 0: must be left out: the fields are token"),
            (("routing", "edits", 2, "expert"), 8, "routing.edits[2].expert = 8: must be an integer in [0, 7]"),
            (("routing", "edits", 3, "source"), 2, "routing.edits[3].source = 2: must be an integer in [0, 1]"),
            (("routing", "edits", 4, "weight"), 1e39, "routing.edits[4].weight = 1e+39: must be a float that float32"),
            (("routing", "edits", 4, "weight"), 10**400, "routing.edits[4].weight = 1000"),
            (("values", "rule"), 3, "values.rule = 3: must be one of normal"),
            (("values", "x_exponent"), 101, "values.x_exponent = 101: must be an integer in [-100, 100]"),
            (("values", "scale_low"), -1, "values.scale_low = -1: must be an integer in [0, 255]"),
            (("values", "scale_high"), 99, "values.scale_high = 99: must be an integer in [100, 255]"),
            (("values", "edits", 0, "tensor"), "w13", "values.edits.tensor = 'w13': must be one of hidden_states"),
            (("values", "edits", 0, "index"), 3, "values.edits[0].index = 3: must be a list"),
            (("values", "edits", 0, "index"), [0], "values.edits[0].index = (0,): must be 2 indices into hidden"),
            (("values", "edits", 0, "index", 1), 64, "values.edits[0].index[1] = 64: must be an integer in [0, 63]"),
            (("values", "edits", 1, "index", 2), 2, "values.edits[1].index[2] = 2: must be an integer in [0, 1]"),
            (("values", "edits", 0, "value"), 3, "values.edits.value = 3: must be one of nan"),
            (("values", "edits", 1, "value"), "nan", "values.edits.value = 'nan': must be an integer in [0, 255]"),
            (("execution", "mode"), "jit", "execution.mode = 'jit': must be one of eager, graph"),
            (("execution", "mode"), "eager", "execution.replays = ('empty_expert', 'same'): must be empty unless mode"),
            (("execution", "replays"), 2, "execution.replays = 2: must be a list"),
            (("execution", "replays", 0), "y", "execution.replays[0] = 'y': must be one of same, x, weights, ids"),
            (("execution", "padding_rows"), "nan", "execution.padding_rows = 'nan': must be one of masked, routed"),
            (("execution", "pdl"), 1, "execution.pdl = 1: must be true, false or null"),
            (("execution", "fused_finalize"), "yes", "execution.fused_finalize = 'yes': must be true, false or null"),
            (("routing", "edits", 5, "expert_id"), 7, "routing.edits[5].expert_id = 7: must be an int32 below -1 or"),
            (("routing", "edits", 5, "expert_id"), -1, "routing.edits[5].expert_id = -1: must be an int32 below -1"),
            (("routing", "edits", 5, "expert_id"), 2**31, "routing.edits[5].expert_id = 2147483648: must be an int32"),
            (("execution", "padding"), -1, "execution.padding = -1: must be an integer >= 0"),
            (("execution", "tactic"), -1, "execution.tactic = -1: must be an integer >= 0"),
            (("execution", "repeats"), 0, "execution.repeats = 0: must be an integer >= 1"),
            (("execution", "poison"), 256, "execution.poison = 256: must be an integer in [0, 255]"),
            (("routings",), {}, "routings = {}: must be left out: the fields are shape, parallel"),
        ],
    )
    def test_a_bad_field_is_named(self, path: tuple[str | int, ...], value: object, message: str) -> None:
        data = copy.deepcopy(FULL.to_json())
        at(data, path[:-1])[path[-1]] = value
        with pytest.raises(InvalidScenario) as caught:
            Scenario.from_json(data)
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            (("routing", "edits", 0, "token"), "routing.edits[0].token = None: must be given"),
            (("routing", "edits", 4, "weight"), "routing.edits[4].weight = None: must be given"),
            (("values", "edits", 2, "value"), "values.edits[2].value = None: must be given"),
            (("activation", "kind"), "activation.kind = None: must be one of"),
        ],
    )
    def test_a_missing_field_is_named(self, path: tuple[str | int, ...], message: str) -> None:
        data = copy.deepcopy(FULL.to_json())
        del at(data, path[:-1])[path[-1]]
        with pytest.raises(InvalidScenario) as caught:
            Scenario.from_json(data)
        assert str(caught.value).startswith(message)

    ODD = (None, True, -1, 0, 2, 1.5, 1e300, 10**400, math.nan, -math.inf, "", "nan", "0", [], {}, [[]], [{}], {"": 0})

    @given(st.sampled_from(paths(FULL.to_json())), st.sampled_from(ODD))
    @settings(database=None, deadline=None, max_examples=600)
    def test_damage_gives_a_scenario_or_names_what_is_wrong(self, path: tuple[str | int, ...], odd: object) -> None:
        data = copy.deepcopy(FULL.to_json())
        at(data, path[:-1])[path[-1]] = odd
        try:
            scenario = Scenario.from_json(data)
        except InvalidScenario as error:
            message = str(error)
            assert ": must be " in message
        else:
            assert through_json(scenario) == scenario


class TestIdentity:
    def test_nan_equals_itself(self) -> None:
        first, second = (
            Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=float(text)),)))
            for text in ("nan", "NaN")
        )
        assert first == second
        assert hash(first) == hash(second)
        assert len({first, second}) == 1

    def test_negative_zero_is_not_zero(self) -> None:
        first, second = (
            Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=weight),))) for weight in (0.0, -0.0)
        )
        assert first != second

    def test_another_type_is_not_equal(self) -> None:
        assert Scenario() != Scenario().to_json()

    def test_the_digest_is_pinned(self) -> None:
        # Saved cases are named by it: a change of this test breaks them.
        assert Scenario().digest == "17889638"
        assert FULL.digest == "f5ac6716"

    def test_every_drawn_scenario_has_its_own_digest(self) -> None:
        distinct = set(draws("quick", 300, WHOLE))
        assert len({scenario.digest for scenario in distinct}) == len(distinct)


class TestParts:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Scenario(shape=None), "shape = None: must be a Shape"),
            (lambda: Scenario(activation="swiglu"), "activation = 'swiglu': must be a Swiglu or SwigluOai or Situ"),
            (lambda: Scenario(layer={}), "layer = {}: must be a Layer"),
            (lambda: Routing(edits=[MaskRow(token=0)]), "routing.edits = [MaskRow(token=0)]: must be a tuple of"),
            (lambda: Routing(edits=({"token": 0},)), "routing.edits = ({'token': 0},): must be a tuple of MaskSlot or"),
            (
                lambda: Values(edits=(MaskRow(token=0),)),
                "values.edits = (MaskRow(token=0),): must be a tuple of ValueEd",
            ),
            (
                lambda: ValueEdit(tensor="hidden_states", index=[0, 0], value="nan"),
                "values.edits.index = [0, 0]: must be a tuple of integers",
            ),
            (lambda: Situ(beta=4), "activation.beta = 4: must be a positive finite float"),
            (
                lambda: Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=1),))),
                "routing.edits[0].weight = 1: must be a float",
            ),
        ],
    )
    def test_a_part_of_the_wrong_type_is_named(self, make: Any, message: str) -> None:
        with pytest.raises(InvalidScenario) as caught:
            make()
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize(
        ("parts", "where"),
        [
            ({"routing": Routing(edits=(MaskRow(token=0),))}, "routing.edits[0]"),
            ({"values": Values(edits=(FULL.values.edits[0],))}, "values.edits[0]"),
        ],
    )
    def test_no_token_is_edited_in_an_empty_batch(self, parts: dict[str, Any], where: str) -> None:
        with pytest.raises(InvalidScenario) as caught:
            Scenario(shape=Shape(tokens=0, hidden=64), **parts)
        assert str(caught.value).startswith(f"{where} = ")
        assert str(caught.value).endswith(": must be left out where shape.tokens = 0")

    def test_a_rank_holds_its_share(self) -> None:
        assert (FULL.experts_local, FULL.first_expert, FULL.intermediate_local) == (4, 4, 64)
        assert (Scenario().experts_local, Scenario().first_expert, Scenario().intermediate_local) == (1, 0, 32)

    def test_an_expert_factor_is_seldom_that_of_another_rank(self) -> None:
        factors = [expert_factor(expert) for expert in range(896)]
        assert factors[0] == 1.0
        assert set(factors) == {1 + step / 8 for step in range(8)}
        for offset in range(1, 449):
            same = sum(a == b for a, b in zip(factors, factors[offset:], strict=False))
            assert same < 0.25 * len(factors[offset:])

    def test_kinds_name_the_activations(self) -> None:
        assert [activation().kind for activation in (Swiglu, SwigluOai, Situ)] == ["swiglu", "swiglu_oai", "situ"]
