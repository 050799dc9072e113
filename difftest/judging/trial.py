"""One scenario, run in this process: ask, judge, confirm, and check what needs no reference."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from difftest import calibration
from difftest.calibration import Calibration
from difftest.explain.explanation import Explanation
from difftest.isolation import libraries
from difftest.isolation.introduction import Introduction, introduce
from difftest.isolation.sequence import Step
from difftest.judging import variants
from difftest.judging.ballots import Ballot
from difftest.judging.checks import RATE_RUNS, Check, Skip, Subject
from difftest.judging.compare import Breach
from difftest.judging.guard import Declined, Guarded, Malformed, Rejected, Spans
from difftest.judging.outcome import Agreement, Outcome, Rate, Verdict
from difftest.judging.subjects import AnySubject, build, checks_of
from difftest.judging.timing import Timing, Untimed, timed
from difftest.router.subject import RouterSubject
from oracles import base
from oracles.base import AnyOracle, Oracle
from oracles.problem import Problem
from oracles.reference import Reference
from oracles.router_problem import RouterProblem
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

_log = logging.getLogger(__name__)

STEPS = ("process", "unsupported", "prepare", "call", "inputs", "no_local_expert", "reference")
"""What `Outcome.check` may be besides a check of `difftest.judging.checks`: these always run."""

SMALL = 1 << 20
"""Products of an expert's first GEMM, over all (token, slot) pairs, up to which a core takes less time for an enclosure
than it takes for hundreds of launches on a GPU, where processes take turns (docs/speed.md)."""
MADE = 1 << 22
"""Elements of its own experts' weights and of its (token, slot) pairs, up to which a core makes and compares a
scenario's tensors as quickly as a GPU that others share."""

SEEN = 64
"""One of so many scenarios is made where the candidate works, whatever its size: only there is it seen to write to what
it was given, and not to what it made of that."""

REDRAWS = 3
"""A sharp-only breach becomes a finding when it repeats on so many redraws (docs/enclosures.md)."""

_Look = Callable[[Any], Sequence[Breach]]
"""A check, as what it finds wrong with what the candidate answered."""


@dataclass(frozen=True)
class Done:
    """A case that has run."""

    outcome: Outcome

    def result(self) -> Outcome:
        return self.outcome


class InProcess:
    """An executor (see `Executor`) in this process: right for oracles that cannot take the process with them."""

    isolated = False
    ahead = 0

    def __init__(
        self,
        candidate: AnyOracle | str,
        reference: AnyOracle | str,
        *,
        device: str = "cpu",
        by_size: bool = False,
        name: str | None = None,
    ) -> None:
        """device: where tensors are made and the reference computes. by_size: those of all but large scenarios are made
        on the CPU whatever `device` is, and small ones are enclosed there too, for a candidate that brings its tensors
        to a GPU. name: the candidate's in outcomes, where it is not its own. Raises `OracleNotFound` for an unknown
        spec."""
        self.spans = Spans()
        self.tally: Counter[tuple[str, str]] = Counter()
        self._device = torch.device(device)
        self._by_size = by_size
        self._candidate = self._guarded(candidate, name=name)
        other = self._guarded(reference, "reference")
        self.candidate, self.reference = self._candidate.name, other.name
        self.deterministic = self._candidate.deterministic
        self._introduction: Introduction | None = None
        # The recipe itself judges by its enclosure; any other oracle by its answer and both enclosures.
        self._other = None if isinstance(other.oracle, Reference) else other

    def _guarded(self, given: AnyOracle | str, role: str = "", name: str | None = None) -> Guarded:
        oracle, own = (base.find(given), given) if isinstance(given, str) else (given, given.name)
        guarded = Guarded(oracle, name or own, self.spans, role)
        known = calibration.find(oracle, name or own, self._device)
        if known is not None:
            guarded.numerics = known.applied(guarded.numerics)
        return guarded

    @property
    def introduction(self) -> Introduction:
        """What the candidate says of itself."""
        if self._introduction is None:
            self._introduction = introduce(self._candidate.oracle, self.candidate, str(self._device))
        return self._introduction

    def submit(self, scenario: AnyScenario, checks: Collection[str]) -> Done:
        """Run the scenario now."""
        return Done(self.run(scenario, checks))

    def run_afresh(self, _steps: Sequence[Step], scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """Run the scenario: this process cannot begin anew."""
        return self.run(scenario, checks)

    def before(self, _finding: Outcome) -> tuple[Step, ...]:
        """Nothing: what ran before is not taken down."""
        return ()

    def explain(self, smallest: Outcome, worst: Outcome) -> Explanation:
        """What a finding is due to."""
        from difftest.explain.explainer import explain  # which runs trials itself

        return explain(self._candidate.oracle, smallest, worst, device=str(self._device))

    def calibrate(self) -> Calibration:
        """See `Executor.calibrate`. The hard radius stays that of what the candidate declares."""
        with torch.no_grad():
            found = calibration.measure(self._oracle(), self.candidate, self._device)
        found.save(calibration.folder())
        self._candidate.numerics = found.applied(self._oracle().numerics)
        return found

    def libraries(self) -> Mapping[str, str]:
        """See `Executor.libraries`."""
        return libraries.loaded()

    def time(self, scenario: Scenario) -> Timing:
        """See `Executor.time`."""
        try:
            with torch.no_grad():
                return timed(self._oracle(), cast(Problem, build(scenario, self._device)))
        except RuntimeError as error:
            raise Untimed(str(error).splitlines()[0]) from error

    def _oracle(self) -> Oracle:
        """The candidate, which is no router."""
        return cast(Oracle, self._candidate.oracle)

    def close(self) -> None:
        """Nothing is held."""

    def run(self, scenario: AnyScenario, checks: Collection[str]) -> Outcome:
        """The outcome of `scenario`, with those of the reference-free `checks` that apply."""
        with self.spans.measure("total"), torch.no_grad():
            return _Trial(self, scenario).run(checks)

    def ballot(self, scenario: AnyScenario, path: Path) -> bool:
        """Write the candidate's ballot on `scenario` to `path`; False when it does not answer it, or a router's."""
        try:
            with torch.no_grad():
                subject, _ = self.ask(scenario)
                if not isinstance(subject, Subject):
                    return False
                Ballot.of(subject.judged, subject.enclosure).save(path)
        except (Declined, Rejected, Malformed):
            return False
        return True

    def _places(self, scenario: AnyScenario, checks: Collection[str]) -> tuple[torch.device, torch.device]:
        """Where its tensors are made, and where enclosures are computed."""
        if not self._by_size or not isinstance(scenario, Scenario):
            return self._device, self._device
        if _elements(scenario) > MADE or "inputs" in checks or int(scenario.digest, 16) % SEEN == 0:
            return self._device, self._device
        cpu = torch.device("cpu")
        return cpu, cpu if products(scenario) <= SMALL else self._device

    def ask(self, scenario: AnyScenario, checks: Collection[str] = ()) -> tuple[AnySubject, Breach | None]:
        """The candidate's answer to `scenario`, and a breach when it wrote to its inputs.

        checks: what the scenario is run for. Raises `Declined`, `Rejected` or `Malformed`.
        """
        self._candidate.require(scenario)
        if self._other is not None:
            self._other.require(scenario)
        place, enclosing = self._places(scenario, checks)
        with self.spans.measure("materialise"):
            problem = build(scenario, place)
        with self.spans.measure("checks"):
            before = variants.clone_tensors(problem)
        prepared = self._candidate.prepare(problem)
        output = self._candidate.call(prepared, problem)
        with self.spans.measure("checks"):
            changed = variants.changed_tensors(problem, before)
        breach = None
        if changed:
            problem = variants.with_tensors(problem, before)
            breach = Breach(kind="inputs_changed", detail=f"wrote to its inputs: {', '.join(changed)}")
        if isinstance(problem, RouterProblem):
            return RouterSubject(self._candidate, problem, prepared, output, self.spans), breach
        return Subject(self._candidate, self._other, problem, prepared, output, self.spans, enclosing), breach


def products(scenario: Scenario) -> int:
    """Of the first GEMM, about; on a rank its share."""
    shape = scenario.shape
    return shape.tokens * shape.top_k * shape.hidden * scenario.intermediate_local // scenario.parallel.ep_size


def _elements(scenario: Scenario) -> int:
    shape, inner = scenario.shape, scenario.intermediate_local
    weights = 3 * scenario.experts_local * shape.hidden * inner
    return weights + shape.tokens * shape.top_k * (shape.hidden + 2 * inner)


class _Trial:
    """One scenario on its way to an outcome."""

    def __init__(self, process: InProcess, scenario: AnyScenario) -> None:
        self._process = process
        self._scenario = scenario
        self._findings: list[Outcome] = []
        self._stats: Agreement | None = None
        self._one_offs = 0

    def run(self, checks: Collection[str]) -> Outcome:
        try:
            subject, changed = self._process.ask(self._scenario, checks)
        except Declined as declined:
            return self._outcome(Verdict.UNSUPPORTED, reason=declined.reason)
        except Rejected as rejected:
            self._rejected(rejected.step, rejected)
        except Malformed as malformed:
            self._found("reference", malformed.breach)
        else:
            self._examine_all(subject, changed, checks)
        stats = self._stats and replace(self._stats, one_offs=self._one_offs)
        if not self._findings:
            return self._outcome(Verdict.AGREES, stats=stats)
        first, *others = (replace(finding, stats=stats) for finding in self._findings)
        return replace(first, other_findings=tuple(others))

    def _examine_all(self, subject: AnySubject, changed: Breach | None, checks: Collection[str]) -> None:
        if changed is not None:
            self._found("inputs", changed)
        for name, at_once in subject.at_once().items():
            if at_once is not None:
                self._found(name, at_once)
        self._examine("reference", subject, self._judge, ask_again=changed is None)
        if changed is not None:
            return  # whoever writes to its inputs answers another question the next time
        diverges = any(finding.check == "reference" for finding in self._findings)
        for name, check in checks_of(self._scenario).items():
            if name in checks:
                with self._process.spans.measure("checks"):
                    said = "the answer diverges already" if diverges and check.by_radii else self._check(check, subject)
                self._process.tally[name, said] += 1

    def _judge(self, subject: AnySubject) -> Sequence[Breach]:
        """Compare with the reference."""
        judgement = subject.judge()
        self._stats = self._stats or judgement.stats
        return judgement.breaches

    def _check(self, check: Check, subject: AnySubject) -> str:
        """Run `check` where it applies. Returns "ran", or why it did not."""
        skip = check.skip(subject)
        if check.uses_first and any(finding.verdict is Verdict.NONDETERMINISTIC for finding in self._findings):
            skip = Skip("answers change from call to call", precondition=True)
        if skip is not None:
            return f"precondition: {skip.reason}" if skip.precondition else skip.reason

        def look(twin: AnySubject) -> Sequence[Breach]:
            breach = check.run(twin)
            return () if breach is None else (breach,)

        try:
            self._examine(check.name, subject, look, uses_first=check.uses_first)
        except Declined as declined:
            return f"declined: {declined.reason}"
        return "ran"

    def _examine(
        self, name: str, subject: AnySubject, look: _Look, *, uses_first: bool = False, ask_again: bool = True
    ) -> None:
        """Note what `look` finds and, where the candidate can be asked again, what of it stands."""
        try:
            breaches = look(subject)
            firm: Sequence[Breach] = [breach for breach in breaches if breach.kind != "implausible"]
            soft: Sequence[Breach] = [breach for breach in breaches if breach.kind == "implausible"]
            if not ask_again:
                soft = ()
            if ask_again and firm and all(breach.rate is None for breach in firm):
                firm = self._repeated(firm, subject, look, uses_first=uses_first)
            if soft:
                soft = self._redrawn(name, soft[0], {breach.kind for breach in breaches}, subject, look)
        except Rejected as rejected:
            self._rejected(name, rejected)
        except Malformed as malformed:
            self._found(name, malformed.breach)
        else:
            for breach in (*firm, *soft):
                self._found(name, breach)

    # --- confirmation ----------------------------------------------------------------------------------------------

    def _repeated(
        self, breaches: Sequence[Breach], subject: AnySubject, look: _Look, *, uses_first: bool
    ) -> Sequence[Breach]:
        """`breaches`, with their rate when new answers to the same question do not all show them.

        One new answer is enough when it is the same as before. uses_first: `look` compares with the first answer, and
        so means nothing when that changes.
        """
        kinds = {breach.kind for breach in breaches}
        failures = runs = 1
        steady = True
        while runs < (2 if steady else RATE_RUNS):
            runs += 1
            try:
                output: Any = subject.again()
                same = subject.differs(output) is None
                means = same or not (uses_first and subject.candidate.deterministic)
                shown = means and kinds <= {breach.kind for breach in look(subject.with_output(output))}
            except (Rejected, Malformed):
                same = shown = False
            failures += shown
            steady = steady and same and shown
        if failures == runs:
            return breaches
        return [replace(breach, rate=Rate(failures=failures, runs=runs)) for breach in breaches]

    def _redrawn(
        self, name: str, soft: Breach, known: Collection[str], subject: AnySubject, look: _Look
    ) -> Sequence[Breach]:
        """An implausible breach stands when it repeats on every redraw of signs; else it is a one-off.

        A kind of breach that is not yet `known` and that a redraw shows is a proof as good as on the scenario itself,
        of which the redraw is a function.
        """
        for number in range(REDRAWS):
            found = {breach.kind: breach for breach in look(subject.redrawn(number))}
            for kind in found.keys() - known:
                return [replace(found[kind], detail=f"{found[kind].detail} (after redraw {number} of signs)")]
            if soft.kind not in found:
                self._one_offs += 1
                _log.info(
                    "one-off in %s, %s, %s: %s", name, self._process.candidate, self._scenario.digest, soft.detail
                )
                return []
        return [replace(soft, detail=f"{soft.detail}, and so in {REDRAWS} redraws of signs")]

    # --- outcomes --------------------------------------------------------------------------------------------------

    def _found(self, check: str, breach: Breach) -> None:
        kind, detail = breach.kind, breach.detail
        if breach.rate is not None:
            detail = f"{breach.rate}: {detail}"
            # Whichever check of the candidate against itself sees a race, it is one race.
            if check not in ("reference", "determinism") and self._process.deterministic:
                check, kind, detail = "determinism", "not_bit_equal", f"{detail} (seen in {check})"
        verdict = Verdict.DIVERGES if breach.rate is None else Verdict.NONDETERMINISTIC
        fields = {"worst": breach.worst, "heat": breach.heat, "rate": breach.rate}
        self._add(self._outcome(verdict, check=check, kind=kind, detail=detail, **fields))

    def _rejected(self, check: str, rejected: Rejected) -> None:
        self._add(
            self._outcome(
                rejected.ended or Verdict.REJECTED,
                check="process" if rejected.ended else check,
                kind=rejected.kind,
                detail=rejected.detail,
                traceback=rejected.traceback,
            )
        )

    def _add(self, finding: Outcome) -> None:
        if finding.bucket not in {known.bucket for known in self._findings}:
            self._findings.append(finding)

    def _outcome(self, verdict: Verdict, **fields: Any) -> Outcome:
        process = self._process
        return Outcome(
            verdict=verdict,
            scenario=self._scenario,
            candidate=process.candidate,
            reference=process.reference,
            **fields,
        )
