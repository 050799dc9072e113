"""Checks that need no reference: a candidate against itself, and against what holds for every right implementation.

Each check asks the candidate about a variant of a problem that it has answered already, and compares the two answers.
Three criteria are in use, and each check's docstring argues for its own:

- *bit-equal*, where a right implementation does the very same arithmetic both times: same shapes, same rows in the same
  places, no value that enters an answer changed. It rests on one promise, that equal questions get equal answers. An
  oracle whose order of additions is not fixed (atomics) says so with an attribute `deterministic = False`; it is then
  held to the next criterion instead.
- *within two radii*, where a right implementation may add in another order (another batch size may mean another
  kernel): both answers lie within the enclosure's radius of the same value. Where the radius is 0 that is equality
  again. An oracle that declares `batch_invariant = True` promises bits instead, and is held to it.
- *exactly 0*, where nothing contributes. The sign of a zero is not looked at.

No check runs where the oracle's own `unsupported` declines the variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from difftest.judging import variants
from difftest.judging.compare import Breach, Judgement, judge, not_equal, pair, twice
from difftest.judging.guard import Declined, Guarded, Spans
from difftest.judging.outcome import Rate
from difftest.judging.poison import fill_free_memory, poisoned
from oracles.base import capability_of
from oracles.enclosure import ANY, FINITE, Enclosure
from oracles.kept import KEPT
from oracles.problem import Problem
from oracles.reference import enclose
from strategies.capability import Capability
from strategies.scenario import Scenario, SetWeight

RATE_RUNS = 8
"""Runs from which the rate of a nondeterministic failure is told."""

_WHOLE_LAYER = 1 << 22
"""Elements of w13 over all ranks up to which a rank's answer is compared with the whole layer's."""
_MAX_RANKS = 8
_GUARD_BYTES = 4096
_QUEUED_BYTES = 1 << 30
"""Answers of repeated calls that a GPU keeps until they are compared."""
_NON_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Skip:
    """A check that does not run. reason: in a few words that group well.

    precondition: True when the scenario has what the check is about, and something else is in its way; False when
    there is nothing to check.
    """

    reason: str
    precondition: bool = False


class Subject:
    """A candidate's answer to one problem, and the means to ask it again.

    output: [M, H]. reference: the other oracle, None when the recipe itself is the reference. device: where enclosures
    are computed; None, where the problem is. The methods that ask raise `Rejected`, `Malformed` or `Declined`.
    """

    def __init__(
        self,
        candidate: Guarded,
        reference: Guarded | None,
        problem: Problem,
        prepared: Any,
        output: torch.Tensor,
        spans: Spans,
        device: torch.device | None = None,
    ) -> None:
        self.candidate = candidate
        self.reference = reference
        self.problem = problem
        self.prepared = prepared
        self.output = output
        self.spans = spans
        self.device = device

    @cached_property
    def enclosure(self) -> Enclosure:
        """What a right candidate may answer to `problem`."""
        return self.enclosed(self.problem, self.candidate)

    @cached_property
    def allowed(self) -> Enclosure:
        """What the candidate may answer to agree with the reference."""
        other = self.reference
        if other is None:
            return self.enclosure
        # A copy: what the reference writes to its inputs is not the candidate's mistake.
        problem = variants.with_tensors(self.problem, variants.clone_tensors(self.problem))
        answer = other.call(other.prepare(problem), problem)
        return pair(self.enclosure, answer, self.enclosed(self.problem, other))

    def enclosed(self, problem: Problem, oracle: Guarded) -> Enclosure:
        """What a right implementation with the numerics of `oracle` may answer to `problem`."""
        with self.spans.measure("reference"):
            return enclose(problem, oracle.numerics, KEPT, self.device)

    @cached_property
    def local(self) -> torch.Tensor:
        """bool [M, K]: slots of the rank's own experts."""
        return self.problem.local_ids >= 0

    @cached_property
    def judged(self) -> torch.Tensor:
        """`output` with the rows that have no local expert set right: `no_local_expert` alone is about these."""
        lonely = ~self.local.any(1)
        return torch.where(lonely[:, None], 0.0, self.output) if bool(lonely.any()) else self.output

    def judge(self) -> Judgement:
        """Compare with the reference, but for the rows that `no_local_expert` is about."""
        allowed = self.allowed
        with self.spans.measure("compare"):
            return judge(self.judged, allowed, self.candidate.numerics)

    def at_once(self) -> dict[str, Breach | None]:
        """Breaches that need no further answer and no enclosure, by check."""
        return {"no_local_expert": no_local_expert(self)}

    def differs(self, output: torch.Tensor) -> Breach | None:
        """What of another answer to the same question is not the same."""
        return not_equal(output, self.output)

    def again(self) -> torch.Tensor:
        """The answer of another call on what was prepared."""
        answer: torch.Tensor = self.candidate.call(self.prepared, self.problem)
        return answer

    def ask(self, problem: Problem) -> torch.Tensor:
        """The answer to another problem."""
        self.candidate.require(problem.scenario)
        answer: torch.Tensor = self.candidate.call(self.candidate.prepare(problem), problem)
        return answer

    def with_output(self, output: torch.Tensor) -> Subject:
        """This subject with another answer to the same question."""
        twin = self._twin(self.problem, self.prepared, output)
        for name in ("enclosure", "allowed", "local"):
            if name in vars(self):
                setattr(twin, name, getattr(self, name))
        return twin

    def redrawn(self, number: int) -> Subject:
        """The subject of another draw of signs; see `variants.redrawn`."""
        problem = variants.redrawn(self.problem, number)
        prepared = self.candidate.prepare(problem)
        output = self.candidate.call(prepared, problem)
        return self._twin(problem, prepared, output)

    def _twin(self, problem: Problem, prepared: Any, output: torch.Tensor) -> Subject:
        return Subject(self.candidate, self.reference, problem, prepared, output, self.spans, self.device)

    @cached_property
    def replays(self) -> list[tuple[Problem, torch.Tensor]]:
        """The contents of each replay with its answer, the scenario's own first, from a capture of its own."""
        replay = self.candidate.replay
        assert replay is not None  # _skip_replay
        prepared = self.candidate.prepare(self.problem)
        found = [(self.problem, self.candidate.call(prepared, self.problem))]
        for number, change in enumerate(self.problem.scenario.execution.replays, 1):
            contents = variants.replayed(self.problem, change, number)
            self.candidate.require(contents.scenario)
            found.append((contents, replay(prepared, contents)))
        return found

    def same_arithmetic(self, got: torch.Tensor) -> Breach | None:
        """Compare with the answer to a question whose arithmetic is the very same."""
        if self.candidate.deterministic:
            return not_equal(got, self.output)
        return self._within(got)

    def same_value(self, got: torch.Tensor) -> Breach | None:
        """Compare with the answer to a question whose rows have the same value, perhaps in another order of sums."""
        return self.same_arithmetic(got) if self.candidate.batch_invariant else self._within(got)

    def _within(self, got: torch.Tensor) -> Breach | None:
        breaches = judge(got, twice(self.enclosure, self.output), self.candidate.numerics).breaches
        return breaches[0] if breaches else None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One reference-free check.

    every: in a campaign it runs for one of so many of the scenarios that it applies to, chosen by their hash.
    wanted: whether a scenario asks for it, and so always runs it. skip: why it does not apply, None when it does.
    run: the breach that it finds, None when all is well. `rate` of a breach makes it a nondeterminism.
    uses_first: whether it compares with the answer that was given before it, and so says nothing when that changes
    from call to call.
    by_radii: whether it judges by enclosures, and so says nothing new of an answer that is outside its own.
    """

    name: str
    every: int
    skip: Callable[[Any], Skip | None]
    run: Callable[[Any], Breach | None]
    wanted: Callable[[Any], bool] = lambda scenario: False  # noqa: ARG005
    uses_first: bool = True
    by_radii: bool = False


def _number(subject: Subject, count: int) -> int:
    """A number in [0, count), the scenario's own."""
    return int(subject.problem.scenario.digest, 16) % count


# --- determinism ---------------------------------------------------------------------------------------------------


def _skip_determinism(subject: Subject) -> Skip | None:
    return None if subject.candidate.deterministic else Skip("the oracle declares no fixed order")


def _determinism(subject: Subject) -> Breach | None:
    """The same call on the same prepared problem gives the same bits, `execution.repeats` times and at least twice.

    Every input, address range and launch is the same; only an order of additions that is not fixed, or state that a
    call leaves behind, can change a bit. The first is declared (`deterministic = False`), the second is a mistake.
    Calls on a GPU are queued without a wait between them, as far as their answers fit: a race between a kernel's own
    warps may need the pressure of the calls around it.
    """
    first, seen, done = None, 0, 0
    repeats = max(2, subject.problem.scenario.execution.repeats)
    queued = max(1, _QUEUED_BYTES // max(1, subject.output.nbytes)) if subject.output.is_cuda else 1
    while done < (wanted := repeats - 1 if first is None else max(repeats - 1, RATE_RUNS)):
        answers = [subject.again() for _ in range(min(queued, wanted - done))]
        done += len(answers)
        for answer in answers:
            breach = not_equal(answer, subject.output, signed_zero=True)
            if breach is not None:
                first, seen = first or breach, seen + 1
    return None if first is None else replace(first, rate=Rate(failures=seen, runs=done))


# --- memory --------------------------------------------------------------------------------------------------------


def _always(subject: Subject) -> Skip | None:  # noqa: ARG001
    return None


def _poison(subject: Subject) -> Breach | None:
    """What uninitialised memory holds does not matter: it is filled with one byte, then with its complement.

    Both runs prepare and call under the same conditions, and differ in bytes that a right implementation writes
    before it reads them; so they do the very same arithmetic. They are compared with each other, not with the run
    without poison. When they differ, the first byte must bring back the first answer, or the byte is not the cause.
    """
    byte = subject.problem.scenario.execution.poison

    def ask(fill: int) -> torch.Tensor:
        with poisoned(fill, subject.problem, subject.candidate.home(subject.problem)):
            return subject.ask(variants.with_poison(subject.problem, fill))

    first = subject.with_output(ask(byte))
    breach = first.same_arithmetic(ask(byte ^ 0xFF))
    if breach is not None and first.same_arithmetic(ask(byte)) is not None:
        return replace(breach, rate=Rate(failures=1, runs=2))
    return breach


def _skip_guard(subject: Subject) -> Skip | None:
    return None if subject.candidate.run_into is not None else Skip("the oracle has no run_into")


def _guard(subject: Subject) -> Breach | None:
    """`run_into(prepared, output)`, which an oracle may offer, writes all of `output` and nothing beside it.

    output: contiguous [M, H], full of the poison byte, between two bands of 4096 bytes of it in one allocation. Band
    and output are compared as bytes, and with the complement of the byte again: an element that was left unwritten
    differs between the two.
    """
    run_into = subject.candidate.run_into
    assert run_into is not None  # _skip_guard
    states, dtype = subject.problem.hidden_states, subject.problem.output_dtype
    size = states.numel() * dtype.itemsize
    byte, home = subject.problem.scenario.execution.poison, subject.candidate.home(subject.problem)
    answers = []
    for fill in (byte, byte ^ 0xFF):
        memory = torch.full((size + 2 * _GUARD_BYTES,), fill, dtype=torch.uint8, device=home)
        output = memory[_GUARD_BYTES : _GUARD_BYTES + size].view(dtype).view(states.shape)
        fill_free_memory(fill, subject.problem, home)
        run_into(subject.prepared, output)
        for side, band in (("before", memory[:_GUARD_BYTES]), ("after", memory[_GUARD_BYTES + size :])):
            touched = int((band != fill).sum())
            if touched:
                return Breach(kind="guard_band", detail=f"wrote {touched} bytes {side} the caller's output")
        answers.append(output.to(states.device, copy=True))
    return subject.with_output(answers[0]).same_arithmetic(answers[1]) or subject.same_value(answers[1])


# --- the batch -----------------------------------------------------------------------------------------------------


def _skip_rows(subject: Subject) -> Skip | None:
    return Skip("fewer than two rows") if subject.problem.tokens < 2 else None


def _split(subject: Subject) -> Breach | None:
    """Two parts of the batch give the rows of the whole.

    A row's value depends on that row and on the weights alone, so that one enclosure holds it in every batch. The
    number of rows of an expert changes, and with it perhaps the kernel: two radii, unless batch_invariant.
    """
    rows = subject.problem.tokens
    cut = 1 + _number(subject, rows - 1)
    parts = (torch.arange(cut), torch.arange(cut, rows))
    return subject.same_value(torch.cat([subject.ask(variants.take_rows(subject.problem, part)) for part in parts]))


def _permute(subject: Subject) -> Breach | None:
    """The rows in reverse give the answers in reverse.

    As many rows for each expert, but in other places: the rows of a tile's edge may take another path than those of
    its middle (on CPUs they do). Two radii, unless batch_invariant.
    """
    backwards = torch.arange(subject.problem.tokens - 1, -1, -1)
    return subject.same_value(subject.ask(variants.take_rows(subject.problem, backwards)).flip(0))


def _pad(subject: Subject) -> Breach | None:
    """Rows appended as serving does it (NaN in x, every slot masked) are exactly 0 and leave the others alone.

    A batch that is padded already is asked for without its padding too: NaN in these rows must not reach the others.
    The batch has another length, and so perhaps another kernel: two radii, unless batch_invariant.
    """
    live = subject.problem.scenario.shape.tokens
    if live and subject.problem.scenario.execution.padding:
        alone = subject.ask(variants.take_rows(subject.problem, torch.arange(live)))
        breach = subject.same_value(torch.cat((alone, subject.output[live:])))
        if breach is not None:
            return breach
    rows = subject.problem.tokens
    answer = subject.ask(variants.pad(subject.problem, 1 + _number(subject, 3)))
    extra = answer[rows:]
    breach = not_equal(extra, torch.zeros_like(extra))
    return subject.same_value(answer[:rows]) if breach is None else _at_row(breach, rows)


def _at_row(breach: Breach, first: int) -> Breach:
    assert breach.worst is not None  # not_equal names its element
    return replace(breach, worst=replace(breach.worst, token=first + breach.worst.token))


def _skip_empty(subject: Subject) -> Skip | None:
    return Skip("the batch is empty itself") if subject.problem.tokens == 0 else None


def _empty(subject: Subject) -> Breach | None:
    """No tokens give an answer of shape [0, H] (which `Subject.ask` demands) and no exception."""
    subject.ask(variants.take_rows(subject.problem, torch.arange(0)))
    return None


# --- routing -------------------------------------------------------------------------------------------------------


def _skip_foreign(subject: Subject) -> Skip | None:
    foreign = ~subject.local & _named(subject.problem)
    return None if bool(foreign.any()) else Skip("no id of another rank")


def _named(problem: Problem) -> torch.Tensor:
    """bool [M, K]: slots whose id names an expert of some rank."""
    return (problem.topk_ids >= 0) & (problem.topk_ids < problem.num_experts)


def _foreign(subject: Subject) -> Breach | None:
    """An id of another rank contributes exactly 0: it may be -1, or another foreign id, and nothing changes.

    The pairs of the rank's own experts stay as they are, but an implementation may sort them together with the
    others by an unstable sort, and so move them within their expert: two radii, unless batch_invariant. (Foreign ids
    are moved round by one, which keeps those of a row distinct.)
    """
    problem = subject.problem
    ids, device = problem.topk_ids, problem.topk_ids.device
    foreign = ~subject.local & _named(problem)
    breach = subject.same_value(subject.ask(variants.with_ids(problem, torch.where(foreign, -1, ids))))
    if breach is not None:
        return breach
    experts = torch.arange(problem.num_experts, dtype=ids.dtype, device=device)
    first = problem.first_expert
    others = torch.cat((experts[:first], experts[first + problem.experts_local :]))
    if len(others) < 2:
        return None
    following = experts.clone()
    following[others.long()] = others.roll(-1)
    moved = torch.where(foreign, following[ids.clamp(0, problem.num_experts - 1).long()], ids)
    return subject.same_value(subject.ask(variants.with_ids(problem, moved)))


def _idle_slots(subject: Subject) -> torch.Tensor:
    """bool [M, K]: slots that are masked or another rank's, padding rows apart (their weight is 0 in serving)."""
    idle = ~subject.local
    idle[subject.problem.scenario.shape.tokens :] = False
    return idle


def _skip_masked_weight(subject: Subject) -> Skip | None:
    return None if bool(_idle_slots(subject).any()) else Skip("every slot is local")


def _masked_weight(subject: Subject) -> Breach | None:
    """The router weight of a slot that is masked or another rank's may be anything, NaN included.

    It enters no answer, and no shape or place depends on it: bit-equal.
    """
    idle = _idle_slots(subject)
    return _first_supported(
        subject, [variants.with_weights(subject.problem, idle, weight) for weight in (torch.nan, 1e30)]
    )


def _first_supported(subject: Subject, choices: list[Problem]) -> Breach | None:
    """`same_arithmetic` with the first variant that the oracle promises to answer."""
    for position, choice in enumerate(choices):
        try:
            return subject.same_arithmetic(subject.ask(choice))
        except Declined:
            if position == len(choices) - 1:
                raise
    return None


def no_local_expert(subject: Subject) -> Breach | None:
    """A row with no local expert is exactly 0: a sum over nothing. Asks nothing, and so always runs."""
    return None if subject.judged is subject.output else not_equal(subject.output, subject.judged)


def _absent_experts(subject: Subject) -> list[int]:
    used = torch.zeros(subject.problem.experts_local, dtype=torch.bool, device=subject.local.device)
    used[subject.problem.local_ids[subject.local]] = True
    return (~used).nonzero().flatten().tolist()


def _skip_absent(subject: Subject) -> Skip | None:
    return None if _absent_experts(subject) else Skip("every local expert is used")


def _absent(subject: Subject) -> Breach | None:
    """Weights and scales of an expert that no token uses may be anything, scale 0xFF (NaN) included.

    They enter no answer, and no shape or place depends on them: bit-equal. An oracle that does not promise byte 0xFF
    gets 0xFE.
    """
    experts = _absent_experts(subject)
    return _first_supported(
        subject, [variants.with_expert_bytes(subject.problem, experts, byte) for byte in (0xFF, 0xFE)]
    )


# --- non-finite values ---------------------------------------------------------------------------------------------


def _wants_isolation(scenario: Scenario) -> bool:
    weights = (edit.weight for edit in scenario.routing.edits if isinstance(edit, SetWeight))
    values = (edit.value for edit in scenario.values.edits if edit.tensor == "hidden_states")
    return any(not math.isfinite(weight) for weight in weights) or any(value in _NON_FINITE for value in values)


def _dirty_rows(subject: Subject) -> torch.Tensor:
    """bool [M]: rows with a value that is not finite in x or in a router weight."""
    problem = subject.problem
    return ~(problem.hidden_states.isfinite().all(1) & problem.topk_weights.isfinite().all(1))


def _skip_isolation(subject: Subject) -> Skip | None:
    dirty = _dirty_rows(subject)
    if not bool(dirty.any()):
        return Skip("x and router weights are finite")
    if not bool((subject.local.any(1) & ~dirty).any()):
        return Skip("no other row has a local expert", precondition=True)
    return None


def _isolation(subject: Subject) -> Breach | None:
    """NaN and infinities of a row stay in it: made ordinary, they leave all other rows as they were, to the bit.

    No id changes, and so no shape and no row's place; and a value of one row enters no other row's answer.
    """
    dirty = _dirty_rows(subject)
    answer = subject.ask(variants.with_plain_rows(subject.problem, dirty))
    return subject.same_arithmetic(torch.where(dirty[:, None], subject.output, answer))


# --- expert parallelism --------------------------------------------------------------------------------------------


def _skip_ep_sum(subject: Subject) -> Skip | None:
    scenario = subject.problem.scenario
    shape, size = scenario.shape, scenario.parallel.ep_size
    if size == 1:
        return Skip("no expert parallelism")
    if subject.problem.recorded:
        return Skip("a recorded call has no weights of other ranks", precondition=True)
    if size > _MAX_RANKS or shape.experts * 2 * scenario.intermediate_local * shape.hidden > _WHOLE_LAYER:
        return Skip("the whole layer is too large to run", precondition=True)
    return None


def _ep_sum(subject: Subject) -> Breach | None:
    """The answers of all ranks sum to the answer of a rank that holds every expert.

    |sum y_r - y| <= sum radius_r + radius + |sum center_r - center|: each rank's answer is within the radius of its
    own enclosure, its last rounding included, and so is the whole's. The sum itself is made in float64, with room for
    its own rounding. The hard radii are used: a redraw would have to reach every rank.
    """
    problem, size = subject.problem, subject.problem.ep_size

    def on_rank(ep_size: int, ep_rank: int) -> Problem:
        with subject.spans.measure("materialise"):
            return variants.on_rank(problem, ep_size, ep_rank)

    whole = on_rank(1, 0)
    answer = subject.ask(whole)
    total = torch.zeros_like(subject.enclosure.center)
    center, hard, kinds = torch.zeros_like(total), torch.zeros_like(total), torch.zeros_like(subject.enclosure.kinds)
    magnitude = torch.zeros_like(total)
    for rank in range(size):
        mine = rank == problem.ep_rank
        other = problem if mine else on_rank(size, rank)
        output = (subject.output if mine else subject.ask(other)).double()
        enclosure = subject.enclosure if mine else subject.enclosed(other, subject.candidate)
        total, magnitude = total + output, magnitude + output.abs()
        center, hard, kinds = center + enclosure.center, hard + enclosure.hard, kinds | enclosure.kinds
    hard = hard + 2.0**-49 * magnitude.nan_to_num(0.0, 0.0, 0.0)
    kinds = torch.where((kinds == FINITE) & total.isfinite(), FINITE, ANY).to(torch.uint8)
    ranks = Enclosure(center=center, hard=hard, sharp=hard, kinds=kinds)
    enclosure = subject.enclosed(whole, subject.candidate)
    breaches = judge(
        total, pair(ranks, answer, replace(enclosure, sharp=enclosure.hard)), subject.candidate.numerics
    ).breaches
    return breaches[0] if breaches else None


# --- execution -----------------------------------------------------------------------------------------------------


def _wants_replay(scenario: Scenario) -> bool:
    return bool(scenario.execution.replays)


def _skip_replay(subject: Subject) -> Skip | None:
    execution = subject.problem.scenario.execution
    if execution.mode != "graph":
        return Skip("nothing is captured in eager mode")
    if not execution.replays:
        return Skip("the scenario asks for no further replay")
    if subject.candidate.replay is None:
        return Skip("the oracle has no replay", precondition=True)
    return None


def _skip_replay_eager(subject: Subject) -> Skip | None:
    skip = _skip_replay(subject)
    if skip is None and subject.candidate.eager is None:
        return Skip("the oracle has no eager twin", precondition=True)
    return skip


def _told(breach: Breach | None, subject: Subject, number: int) -> Breach | None:
    """`breach` with the replay that it is about; 0 is the call on the contents of the capture."""
    if breach is None:
        return None
    change = ("captured", *subject.problem.scenario.execution.replays)[number]
    return replace(breach, detail=f"replay {number} ({change}): {breach.detail}")


def _replay_eager(subject: Subject) -> Breach | None:
    """Each replay gives what the same call gives without a capture, whatever changed in place since.

    It is the same call on the same contents and sizes, and so the same arithmetic: bit-equal.
    """
    eager = subject.candidate.eager
    assert eager is not None  # _skip_replay_eager
    for number, (contents, output) in enumerate(subject.replays):
        plain = variants.eager(contents)
        eager.require(plain.scenario)
        want = eager.call(eager.prepare(plain), plain)
        if subject.candidate.deterministic:
            breach = not_equal(output, want, signed_zero=True)
        else:
            breach = _first(output, twice(subject.enclosed(contents, subject.candidate), want), subject)
        if breach is not None:
            return _told(breach, subject, number)
    return None


def _replay(subject: Subject) -> Breach | None:
    """Each replay is within the enclosure of its own contents."""
    for number, (contents, output) in enumerate(subject.replays[1:], 1):
        breach = _first(output, subject.enclosed(contents, subject.candidate), subject)
        if breach is not None:
            return _told(breach, subject, number)
    return None


def _first(output: torch.Tensor, enclosure: Enclosure, subject: Subject) -> Breach | None:
    breaches = judge(output, enclosure, subject.candidate.numerics).breaches
    return breaches[0] if breaches else None


def _skip_pdl(subject: Subject) -> Skip | None:
    capability = capability_of(subject.candidate.oracle)
    offered = isinstance(capability, Capability) and capability.pdl
    return None if offered else Skip("the oracle offers no choice of PDL")


def _pdl(subject: Subject) -> Breach | None:
    """Programmatic dependent launch lets kernels overlap, and changes no arithmetic: on and off are bit-equal."""
    return subject.same_arithmetic(
        subject.ask(variants.with_pdl(subject.problem, subject.problem.scenario.execution.pdl is False))
    )


_ALL = (
    Check(
        name="determinism",
        every=8,
        skip=_skip_determinism,
        run=_determinism,
        wanted=lambda scenario: scenario.execution.repeats > 1,
        uses_first=False,
    ),
    Check(name="poison", every=8, skip=_always, run=_poison, uses_first=False),
    Check(name="guard", every=4, skip=_skip_guard, run=_guard, uses_first=False),
    Check(name="split", every=8, skip=_skip_rows, run=_split, by_radii=True),
    Check(name="permute", every=8, skip=_skip_rows, run=_permute, by_radii=True),
    Check(
        name="pad",
        every=8,
        skip=_always,
        run=_pad,
        wanted=lambda scenario: scenario.execution.padding > 0,
        by_radii=True,
    ),
    Check(name="empty", every=16, skip=_skip_empty, run=_empty),
    Check(name="foreign", every=4, skip=_skip_foreign, run=_foreign, by_radii=True),
    Check(name="masked_weight", every=4, skip=_skip_masked_weight, run=_masked_weight),
    Check(name="absent", every=8, skip=_skip_absent, run=_absent),
    Check(name="isolation", every=8, skip=_skip_isolation, run=_isolation, wanted=_wants_isolation),
    Check(name="replay_eager", every=8, skip=_skip_replay_eager, run=_replay_eager, wanted=_wants_replay),
    Check(name="replay", every=8, skip=_skip_replay, run=_replay, wanted=_wants_replay, by_radii=True),
    Check(name="pdl", every=8, skip=_skip_pdl, run=_pdl),
    Check(name="ep_sum", every=32, skip=_skip_ep_sum, run=_ep_sum, by_radii=True),
)

CHECKS: dict[str, Check] = {check.name: check for check in _ALL}
"""The reference-free checks by name, in the order in which they run."""
