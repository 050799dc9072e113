"""The script of a report: calls of the kernel and a judge of its answers, in one file without difftest."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracles
from difftest.judging.outcome import ENDS_PROCESS, Outcome, Verdict
from difftest.ledger.replay import CLEAN_REPEATS
from difftest.report.parts import Module, defined_in, needed
from difftest.report.question import BY_DEFINITION, SETTINGS, Inquiry, inquiry
from difftest.report.render import render
from difftest.report.router_question import router_inquiry
from oracles import router_problem
from oracles.base import AnyOracle, Oracle, RouterOracle, runs_on
from oracles.numerics import Numerics, Quantizer
from oracles.problem import build
from oracles.reproductions.claims import CHECKS
from oracles.reproductions.routing_claims import ROUTER_CHECKS
from strategies.plain import AnyScenario
from strategies.router import RouterScenario
from strategies.scenario import Execution, Scenario

RACE_CALLS = 64
"""Calls of a script about answers that change, at least."""


class NoScript(ValueError):
    """No script can be made of the case. The message is one line that says why, and what there is instead."""


@dataclass(frozen=True)
class _Kernel:
    """The file and the function that call an oracle's kernel without difftest."""

    path: Path
    function: str

    @classmethod
    def of(cls, oracle: AnyOracle, spec: str) -> _Kernel:
        named: str | None = getattr(oracle, "reproduction", None)
        if named is None:
            raise NoScript(
                f"{spec} names no `reproduction`, a file.py:function that calls its kernel without difftest "
                "(see oracles.base.Oracle); the case file and `difftest replay` show the finding"
            )
        defines = next(part for part in type(oracle).__mro__ if "reproduction" in vars(part))
        file, _, function = named.rpartition(":")
        path = Path(inspect.getfile(defines)).parent / file
        if not path.is_file():
            raise NoScript(
                f"{spec}.reproduction = {named!r}: there is no file {path}; it is sought beside {defines.__name__}"
            )
        return cls(path, function)

    @property
    def module(self) -> Module:
        return Module(self.path)

    def beside(self, suffix: str) -> str:
        """The name of the function beside it; see `oracles.reproductions`."""
        name = self.function + suffix
        if name not in self.module.names:
            raise NoScript(
                f"{self.path.name} has no {name}, which a script of this check calls; `difftest replay` shows it"
            )
        return name

    def require(self, name: str, what: str) -> None:
        """Raise `NoScript` where its file does not look at p.NAME."""
        if f"p.{name}" not in self.path.read_text(encoding="utf-8"):
            raise NoScript(f"the case has {what}, and {self.path.name} does not look at p.{name}")


def claim_of(outcome: Outcome) -> str:
    """What a right kernel keeps and this one does not, in a sentence."""
    if outcome.verdict is Verdict.REJECTED or ends_process(outcome):
        return "A call that the kernel promises to answer has an answer."
    checks = ROUTER_CHECKS if isinstance(outcome.scenario, RouterScenario) else CHECKS
    function = checks.get(outcome.check)
    return "" if function is None else " ".join((function.__doc__ or "").split())


def script(outcome: Outcome, spec: str, title: str, summary: str, *, earlier: int = 0) -> str:
    """The text of `repro.py` for a finding of the oracle `spec`. earlier: cases that its process has to run before.
    Raises `NoScript`, and `OracleNotFound`."""
    if earlier:
        cases = f"{earlier} earlier case{'s' * (earlier != 1)}"
        raise NoScript(
            f"the finding needs {cases} in the same process, and a script would have its last call alone; the case "
            "file holds them all, and `difftest replay` shows it"
        )
    oracle = oracles.find(spec)
    kernel = _Kernel.of(oracle, spec)
    about = _about(outcome.scenario, oracle, kernel, outcome)
    claims = about.claims[-1]
    roots = [(kernel.module, name) for name in kernel.module.uses()]
    roots += [(about.definition, name) for name in about.roots]
    roots += [(claims, about.check), (about.claims[0], "Claim")]
    before = list(dict.fromkeys((about.definition, *kernel.module.helpers)))
    wanted = needed((*before, *about.claims), roots)
    chosen = {module: names for module, names in wanted.items() if names and module != kernel.module}
    imports = [line for module, names in chosen.items() for line in module.imports(module.uses(names))]
    parts = {
        "imports": _imports([*imports, *kernel.module.imports()]),
        "definition": _joined(module.text(chosen[module]) for module in before if module in chosen),
        "kernel": kernel.module.text(),
        "claims": _joined(module.text(chosen[module]) for module in about.claims if module in chosen),
    }
    packages = tuple(getattr(oracle, "packages", ()))
    text = render(
        "repro.py.j2",
        title=title,
        summary=summary,
        needs=needs(packages),
        packages=[name for name in packages if name != "torch"],
        check=about.check,
        given=about.given,
        answers=about.answers,
        tensors=about.tensors,
        constants=about.constants,
        device=runs_on(oracle),
        error=_error(outcome),
        inquiry=about.inquiry,
        function=kernel.function,
        **parts,
    )
    twice = [name for name, number in Counter(defined_in(text)).items() if number > 1]
    if twice:
        raise NoScript(f"{kernel.path.name} defines {', '.join(twice)}, a name that a script has another use for")
    return text


@dataclass(frozen=True)
class _About:
    """What a script has of the kind of its scenario.

    definition, claims: the modules of `oracles.reproductions`; the last of the claims has the check. roots: what of the
    definition is called beside what the kernel and the claims call. check: the function of the claims. constants: at
    the top of the script, with a word on each. given: further parts of the namespace that the function of the claims
    gets, as source. tensors: how a question becomes a namespace, and answers: shape and dtype of each part of an
    answer, as source.
    """

    definition: Module
    claims: tuple[Module, ...]
    roots: tuple[str, ...]
    check: str
    constants: dict[str, tuple[Any, str]]
    given: dict[str, str]
    tensors: str
    answers: str
    inquiry: Inquiry


@functools.singledispatch
def _about(scenario: AnyScenario, *_: object) -> _About:
    raise TypeError(f"{type(scenario).__name__}: has no script")


@_about.register
def _about_layer(scenario: Scenario, oracle: Oracle, kernel: _Kernel, outcome: Outcome) -> _About:
    check = outcome.check
    if check not in CHECKS:
        raise NoScript(f"no script shows check {check!r}; the case file and `difftest replay` do")
    default = Execution()
    for name in SETTINGS:
        value = getattr(scenario.execution, name)
        if value != getattr(default, name) and name != "poison":
            kernel.require(name, f"execution.{name} = {value!r}")
    if scenario.precision == "mxfp8xmxfp4" and oracle.numerics.hidden_quantizer == "none":  # else x is its exact value
        kernel.require("hidden_q", "precision = 'mxfp8xmxfp4'")
    problem = build(scenario)
    asked = inquiry(problem, oracle, check, sharp=outcome.kind == "implausible")
    given = {"slack": "unpacked({'slack': SLACK})['slack']" if asked.slack else "None"}
    constants: dict[str, tuple[Any, str]] = {}
    if check in BY_DEFINITION:
        constants["ROUNDING"] = rounding(oracle.numerics), "Where the kernel rounds, for the layer below."
        given = {
            "want": "[expected(p, ROUNDING) for p in questions]",
            "bounds": "[unpacked(entry) for entry in BOUNDS]",
        }
    if check == "determinism":
        constants["CALLS"] = _calls(outcome), "The answer changes from call to call."
        given = {"calls": "CALLS"}
    if check == "guard":
        given["into"] = f"lambda p, output: asked({kernel.beside('_into')}, p, output)"
    if check in ("replay", "replay_eager"):
        given["replays"] = f"lambda questions: each(asked({kernel.beside('_replays')}, questions), questions)"
    if check == "replay_eager":
        eager = _Kernel.of(oracle.eager, oracle.eager.name)  # type: ignore[attr-defined]  # the check asked for it
        if eager.path != kernel.path:
            raise NoScript(f"{eager.path} is not the file of {oracle.name}: a script holds one file of a kernel")
        given["eager"] = f"lambda p: answered({eager.function}, p)"
    return _About(
        definition=Module.of("expected"),
        claims=(Module.of("claims"),),
        roots=("expected",) if check in BY_DEFINITION else (),
        check=CHECKS[check].__name__,
        constants=constants,
        given=given,
        tensors=f"p.output_dtype = {problem.output_dtype}",
        answers="(p.hidden_states.shape, p.output_dtype)",
        inquiry=asked,
    )


@_about.register
def _about_router(scenario: RouterScenario, oracle: RouterOracle, _: _Kernel, outcome: Outcome) -> _About:
    check = outcome.check
    if check not in ROUTER_CHECKS:
        raise NoScript(f"no script shows check {check!r} of a router; the case file and `difftest replay` do")
    asked = router_inquiry(router_problem.build(scenario), oracle, check)
    constants: dict[str, tuple[Any, str]] = {}
    given: dict[str, str] = {}
    if check == "determinism":
        constants["CALLS"] = _calls(outcome), "The answer changes from call to call."
        given = {"calls": "CALLS"}
    elif check != "isolation":
        given = {"bounds": "[unpacked(entry) for entry in BOUNDS]"}
    return _About(
        definition=Module.of("routing"),
        claims=(Module.of("claims"), Module.of("routing_claims")),
        roots=(),
        check=ROUTER_CHECKS[check].__name__,
        constants=constants,
        given=given,
        tensors="",
        answers="((len(p.logits), p.top_k), torch.int32), ((len(p.logits), p.top_k), torch.float32)",
        inquiry=asked,
    )


def _calls(outcome: Outcome) -> int:
    rate = 1.0 if outcome.rate is None else float(outcome.rate)
    return max(RACE_CALLS, math.ceil(CLEAN_REPEATS / max(rate, 1e-3)) + 1)


def _error(outcome: Outcome) -> str:
    """How the message of a rejection begins, as far as it is the same at every size; "" for another finding."""
    if outcome.verdict is not Verdict.REJECTED:
        return ""
    return "OutOfMemoryError" if outcome.kind == "out of memory" else outcome.kind.split("#")[0]


def needs(packages: Iterable[str]) -> str:
    """What a script needs beside torch, in words."""
    return ", ".join(name for name in packages if name != "torch") or "nothing else"


def ends_process(outcome: Outcome) -> bool:
    """Whether the script is to be ended by what it shows."""
    return outcome.verdict in ENDS_PROCESS


_PLAIN_QUANTIZERS: dict[Quantizer, str] = {
    "none": "none",
    "q8_0": "q8_0",
    "q8_0_portable": "q8_0",
    "mxfp8": "mxfp8",
    "mxfp8_flushed": "mxfp8",
}
"""As the plain layer has them; the bounds hold what one code of a quantiser may do otherwise."""


def rounding(numerics: Numerics) -> dict[str, str]:
    """The rounding points as the plain layer names them."""
    return {
        "input": _PLAIN_QUANTIZERS[numerics.hidden_quantizer],
        "intermediate_quantizer": _PLAIN_QUANTIZERS[numerics.intermediate_quantizer],
        "weights": "none" if numerics.weights == "exact" else numerics.weights,
        "gemm1": numerics.gemm1_output,
        "bias": "before" if numerics.bias_before_rounding else "after",
        "biased": numerics.biased,
        "intermediate": numerics.intermediate,
        "gemm2": numerics.gemm2_output,
        "router_weight": numerics.router_weight,
        "weighted": numerics.weighted,
    }


def _joined(texts: Iterable[str]) -> str:
    return "\n\n\n".join(texts)


def _imports(lines: Sequence[str]) -> str:
    """The imports of a script, once each, sorted as ruff's isort does: the standard library's, then the others."""
    own = ["import base64", "import importlib.metadata", "import sys", "import zlib", "import torch"]
    plain, named = set[str](), defaultdict[str, set[str]](set)
    for line in [*own, "from types import SimpleNamespace", "from typing import Any", *lines]:
        match ast.parse(line).body[0]:
            case ast.Import(names=names):
                plain |= {ast.unparse(name) for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                named[module] |= {ast.unparse(name) for name in names}
    statements = [(name, f"import {name}") for name in sorted(plain)]
    statements += [
        (module, f"from {module} import {', '.join(sorted(names))}") for module, names in sorted(named.items())
    ]
    standard = [text for module, text in statements if module.partition(".")[0] in sys.stdlib_module_names]
    others = [text for module, text in statements if module.partition(".")[0] not in sys.stdlib_module_names]
    return "\n".join(standard) + "\n\n" + "\n".join(others)
