"""What holds of a kernel's answers, a function for each check of difftest: it asks the kernel, and makes claims.

`given` has the questions (see `oracles.reproductions`), the kernel as functions that answer one on the CPU, and what
the check judges by: `bounds` of each question's answer (low, high, kinds: what it may be, as bits finite 1, inf 2, -inf
4, NaN 8), `want` (the plain value of each), and `slack` [M, H], how far two answers may be apart (NaN where nothing is
claimed; None where they must be equal to the bit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode


class Claim(NamedTuple):
    """Of an answer `got` [M, N]: where it is `wrong`, what it should be (`want`), and in which interval."""

    what: str
    got: torch.Tensor
    want: torch.Tensor
    wrong: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def same(what: str, got: torch.Tensor, want: torch.Tensor, slack: torch.Tensor | None = None) -> Claim:
    """Two answers are equal to the bit (any NaN is the same), or no further apart than `slack`."""
    if slack is None:
        wrong = (got != want) & ~(got.isnan() & want.isnan())
        return Claim(what, got, want, wrong, want, want)
    far = ~((got.double() - want.double()).abs() <= slack)
    return Claim(what, got, want, far & want.isfinite() & slack.isfinite(), want - slack, want + slack)


def same_bits(what: str, got: torch.Tensor, want: torch.Tensor) -> Claim:
    """As `same`, and +0 is not -0."""
    claim = same(what, got, want)
    return claim._replace(wrong=claim.wrong | ((got == 0) & (want == 0) & (got.signbit() != want.signbit())))


def inside(what: str, got: torch.Tensor, want: torch.Tensor, bounds: dict[str, torch.Tensor]) -> Claim:
    """Each value is one that a right kernel may give."""
    value, low, high, kinds = got.double(), bounds["low"], bounds["high"], bounds["kinds"]
    kind = torch.where(value.isfinite(), 1, torch.where(value.isnan(), 8, torch.where(value > 0, 2, 4)))
    within = value.isfinite() & (value >= low) & (value <= high)
    hidden = (kinds & 1 == 0) & (kinds & kind == 0) & (value.isfinite() | (kinds & (kinds - 1) == 0))
    return Claim(what, got, want, torch.where(kinds == 1, ~within, hidden), low, high)


# --- one answer ----------------------------------------------------------------------------------------------------


def reference(given: SimpleNamespace) -> Iterator[Claim]:
    """The answer is what the definition of the layer says, up to the roundings of the kernel."""
    yield inside("the answer", given.kernel(given.questions[0]), given.want[0], given.bounds[0])


def inputs(given: SimpleNamespace) -> Iterator[Claim]:
    """The kernel leaves its inputs alone."""
    p = given.questions[0]
    before = {name: tensor.clone() for name, tensor in vars(p).items() if isinstance(tensor, torch.Tensor)}
    given.kernel(p)
    for name, tensor in before.items():
        yield same(name, *(t.cpu().flatten(1).double() for t in (getattr(p, name), tensor)))


def empty(given: SimpleNamespace) -> Iterator[Claim]:
    """A batch of no tokens has an answer, of no rows."""
    for p in given.questions:
        got = given.kernel(p)
        if not len(got):
            yield same("the answer to no tokens", got, got)


# --- the same question again ---------------------------------------------------------------------------------------


def determinism(given: SimpleNamespace) -> Iterator[Claim]:
    """The same call gives the same bits."""
    first = given.kernel(given.questions[0])
    for call in range(1, given.calls):
        yield same_bits(f"call {call + 1}", given.kernel(given.questions[0]), first)


class Filled(TorchFunctionMode):
    """Memory that torch hands out uninitialised is full of one byte."""

    def __init__(self, byte: int) -> None:
        super().__init__()
        self._byte = byte

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if function in (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty):
            result.untyped_storage().fill_(self._byte)
        return result


@contextmanager
def poisoned(p: SimpleNamespace) -> Iterator[None]:
    """While it lasts, uninitialised memory holds the byte p.poison: what torch.empty returns, and blocks that the
    allocator gives to native code."""
    (tokens, hidden), slots, inner = p.hidden_states.shape, p.topk_ids.shape[1], 2 * p.w2.shape[2]
    sizes = {tokens * hidden, tokens * slots * hidden, tokens * slots * 2 * inner, tokens * slots * inner}
    device = p.hidden_states.device
    blocks = [
        torch.full((count * width,), p.poison, dtype=torch.uint8, device=device)
        for count in sorted(sizes)
        for width in (2, 4)
        for _ in range(4)
    ]
    blocks.reverse()
    del blocks
    with Filled(p.poison):
        yield


def poison(given: SimpleNamespace) -> Iterator[Claim]:
    """What uninitialised memory holds does not matter."""
    answers = []
    for p in given.questions:
        with poisoned(p):
            answers.append(given.kernel(p))
    yield same("with the other byte", answers[1], answers[0], given.slack)


def guard(given: SimpleNamespace) -> Iterator[Claim]:
    """A kernel that writes into the caller's output writes all of it, and nothing beside it."""
    answers = []
    for p in given.questions:
        states, band = p.hidden_states, 4096
        size = states.numel() * p.output_dtype.itemsize
        memory = torch.full((size + 2 * band,), p.poison, dtype=torch.uint8, device=states.device)
        output = memory[band : band + size].view(p.output_dtype).view(states.shape)
        given.into(p, output)
        answers.append(output.cpu())
        for side, part in (("before", memory[:band]), ("after", memory[band + size :])):
            yield same(f"bytes {side} the output", part.cpu()[None], torch.full_like(part.cpu()[None], p.poison))
    yield same("with the other byte", answers[1], answers[0], given.slack)


# --- the batch -----------------------------------------------------------------------------------------------------


def split(given: SimpleNamespace) -> Iterator[Claim]:
    """The two parts of a batch give the rows of the whole."""
    whole, *parts = map(given.kernel, given.questions)
    yield same("the parts, one after the other", torch.cat(parts), whole, given.slack)


def permute(given: SimpleNamespace) -> Iterator[Claim]:
    """The rows in reverse give the answers in reverse."""
    whole, backwards = map(given.kernel, given.questions)
    yield same("in reverse, and turned round", backwards.flip(0), whole, given.slack)


def pad(given: SimpleNamespace) -> Iterator[Claim]:
    """Rows that pad a batch (NaN in x, every slot masked) are 0 and leave the others alone."""
    whole, *alone, padded = map(given.kernel, given.questions)
    for live in alone:  # the batch was padded already
        rows = len(live)
        yield same("without the padding", live, whole[:rows], None if given.slack is None else given.slack[:rows])
    rows = len(whole)
    yield same("the padding", padded[rows:], torch.zeros_like(padded[rows:]))
    yield same("with padding", padded[:rows], whole, given.slack)


# --- what may be anything ------------------------------------------------------------------------------------------


def unchanged(given: SimpleNamespace) -> Iterator[Claim]:
    """What is different in the further questions is no part of the answer."""
    first, *others = map(given.kernel, given.questions)
    for number, other in enumerate(others, 2):
        yield same(f"question {number}", other, first, given.slack)


def isolation(given: SimpleNamespace) -> Iterator[Claim]:
    """NaN and infinities of a row stay in it: made ordinary, they leave all other rows as they were."""
    first, other = map(given.kernel, given.questions)
    p = given.questions[0]
    clean = (p.hidden_states.isfinite().all(1) & p.topk_weights.isfinite().all(1)).cpu()[:, None]
    yield same("rows beside them", torch.where(clean, other, first), first, given.slack)


# --- expert parallelism --------------------------------------------------------------------------------------------


def ep_sum(given: SimpleNamespace) -> Iterator[Claim]:
    """The answers of all ranks sum to the answer of a rank that holds every expert."""
    mine, whole, *others = map(given.kernel, given.questions)
    total = sum((other.double() for other in others), mine.double())
    yield same("the sum over the ranks", total, whole.double(), given.slack)


# --- captured graphs -----------------------------------------------------------------------------------------------


def replay(given: SimpleNamespace) -> Iterator[Claim]:
    """Each replay answers what it finds in x, ids and router weights, as the definition of the layer says."""
    answers: list[torch.Tensor] = given.replays(given.questions)
    for number, got in enumerate(answers):
        yield inside(f"replay {number}", got, given.want[number], given.bounds[number])


def replay_eager(given: SimpleNamespace) -> Iterator[Claim]:
    """Each replay answers what the same call answers without a capture."""
    answers: list[torch.Tensor] = given.replays(given.questions)
    for number, (p, got) in enumerate(zip(given.questions, answers, strict=True)):
        want = given.eager(p)
        yield (
            same_bits(f"replay {number}", got, want)
            if given.slack is None
            else same(f"replay {number}", got, want, given.slack)
        )


CHECKS: dict[str, Callable[[SimpleNamespace], Iterator[Claim]]] = {
    "prepare": reference,
    "call": reference,
    "process": reference,
    "no_local_expert": reference,
    "reference": reference,
    "inputs": inputs,
    "empty": empty,
    "determinism": determinism,
    "poison": poison,
    "guard": guard,
    "split": split,
    "permute": permute,
    "pad": pad,
    "foreign": unchanged,
    "masked_weight": unchanged,
    "absent": unchanged,
    "pdl": unchanged,
    "isolation": isolation,
    "ep_sum": ep_sum,
    "replay": replay,
    "replay_eager": replay_eager,
}
"""By the check of difftest whose finding they show."""
