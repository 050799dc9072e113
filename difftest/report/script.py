"""The script of a report: a call of the kernel and a judge of its answer, in one file without difftest."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import oracles
from difftest.judging.outcome import Outcome, Verdict
from difftest.report.question import question
from difftest.report.render import render
from oracles import reproductions
from oracles.base import Oracle
from oracles.numerics import Numerics
from oracles.problem import build
from oracles.reference import enclose
from strategies.reading import layer

RACE_CALLS = 64
"""Calls of a script about answers that change, at least."""

_CHECKS = ("reference", "prepare", "call", "process", "determinism", "no_local_expert")
"""What one question can show; the other checks compare several."""


class NoScript(ValueError):
    """No script can be made of the case. The message is one line that says why, and what there is instead."""


def script(outcome: Outcome, title: str, summary: str) -> str:
    """The text of `repro.py` for a finding. Raises `NoScript`, and `OracleNotFound` for an unknown candidate."""
    oracle = oracles.get(outcome.candidate)
    kernel, candidate = _kernel(oracle, outcome.candidate)
    if outcome.check not in _CHECKS:
        raise NoScript(
            f"check {outcome.check!r} compares several answers of {outcome.candidate}: a script asks one question; "
            "the case file and `difftest replay` show it"
        )
    problem = build(layer(outcome.scenario))
    reference = _Module(Path(reproductions.__file__).parent / "expected.py")
    parts = [reference, _Module(kernel)]
    races = outcome.verdict is Verdict.NONDETERMINISTIC
    asked = question(problem, enclose(problem, oracle.numerics), sharp=outcome.kind == "implausible")
    packages = tuple(getattr(oracle, "packages", ()))
    return render(
        "repro.py.j2",
        title=title,
        summary=summary,
        needs=", ".join(packages) or "nothing else",
        imports=_imports(parts),
        rounding=rounding(oracle.numerics),
        calls=RACE_CALLS if races else 1,
        calls_why="The answer changes from call to call." if races else "The answer is the same every time.",
        reference=parts[0].body,
        kernel=parts[1].body,
        candidate=candidate,
        output_dtype=str(problem.output_dtype),
        packages=packages,
        values=asked.values,
        question=asked,
    )


def _kernel(oracle: Oracle, spec: str) -> tuple[Path, str]:
    """The file and the function that call the oracle's kernel without difftest."""
    named: str | None = getattr(oracle, "reproduction", None)
    if named is None:
        raise NoScript(
            f"{spec} names no `reproduction`, a file.py:function that calls its kernel without difftest "
            "(see oracles.base.Oracle); the case file and `difftest replay` show the finding"
        )
    defines = next(cls for cls in type(oracle).__mro__ if "reproduction" in vars(cls))
    file, _, function = named.rpartition(":")
    path = Path(inspect.getfile(defines)).parent / file
    if not path.is_file():
        raise NoScript(
            f"{spec}.reproduction = {named!r}: there is no file {path}; it is sought beside {defines.__name__}"
        )
    return path, function


def rounding(numerics: Numerics) -> dict[str, str]:
    """The rounding points as the plain reference names them."""
    return {
        "input": numerics.hidden_quantizer.removesuffix("_portable"),
        "bias": "before" if numerics.bias_before_rounding else "after",
        "gemm1": numerics.gemm1_output,
        "intermediate": numerics.intermediate,
        "intermediate_quantizer": numerics.intermediate_quantizer.removesuffix("_portable"),
        "gemm2": numerics.gemm2_output,
    }


@dataclass(frozen=True)
class _Module:
    """A module of `oracles.reproductions`, to be a part of a script."""

    path: Path

    def _tree(self) -> tuple[str, ast.Module]:
        source = self.path.read_text(encoding="utf-8")
        return source, ast.parse(source)

    @property
    def imports(self) -> list[str]:
        """Its imports, but for those of other such modules, which are in the script already."""
        source, tree = self._tree()
        nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        ours = ("__future__", "oracles.reproductions")
        return [
            ast.get_source_segment(source, node) or ""
            for node in nodes
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ours))
        ]

    @property
    def body(self) -> str:
        """Its text after docstring and imports."""
        source, tree = self._tree()
        first = next(
            node
            for node in tree.body
            if not isinstance(node, ast.Import | ast.ImportFrom)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        )
        return "\n".join(source.splitlines()[first.lineno - 1 :])


def _imports(parts: Sequence[_Module]) -> str:
    """The imports of a script, sorted as ruff's isort does for these: the standard library's, then the others."""
    own = {"import base64", "import importlib.metadata", "import sys", "import zlib", "import torch"}
    lines = own | {"from types import SimpleNamespace"} | {line for part in parts for line in part.imports}
    plain = sorted(line for line in lines if line.startswith("import "))
    return "\n".join(plain + sorted(lines - set(plain)))
