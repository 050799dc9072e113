"""Parts of `oracles.reproductions`, put together to one script: whole modules, or of a module what is called for."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import oracles.reproductions

FOLDER = Path(oracles.reproductions.__file__).parent
_NOT_IMPORTED = ("__future__", "oracles.reproductions")
"""What a script has in its own text, or at its top."""


@dataclass(frozen=True)
class Module:
    """A module that goes into a script."""

    path: Path

    @classmethod
    def of(cls, name: str) -> Module:
        """The module `name` of `oracles.reproductions`."""
        return cls(FOLDER / f"{name}.py")

    @cached_property
    def _source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def _nodes(self) -> list[ast.stmt]:
        """Its statements, without its docstring."""
        nodes = ast.parse(self._source).body
        return nodes[1:] if nodes and isinstance(nodes[0], ast.Expr) else nodes

    @property
    def helpers(self) -> list[Module]:
        """The modules of `oracles.reproductions` that it imports from."""
        nodes = [node for node in self._nodes if isinstance(node, ast.ImportFrom)]
        modules = [node.module.rpartition(".") for node in nodes if node.module]
        return [Module.of(name) for package, _, name in modules if package == "oracles.reproductions"]

    @cached_property
    def names(self) -> frozenset[str]:
        """What it defines."""
        return frozenset(name for node in self._nodes for name in _defined(node))

    def uses(self, names: Iterable[str] | None = None) -> frozenset[str]:
        """Names that it reads, or that those of its definitions do that `names` need."""
        return frozenset().union(*(_read(node) for node in self._chosen(names)))

    def imports(self, used: Collection[str] | None = None) -> list[str]:
        """Its import statements, of the names that are `used`."""
        found = []
        for node in self._nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_NOT_IMPORTED):
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                brings = [name for name in node.names if used is None or _bound(name) in used]
                found += [ast.unparse(type(node)(**{**vars(node), "names": brings}))] if brings else []
        return found

    def text(self, names: Iterable[str] | None = None) -> str:
        """Its definitions, all as they stand in the file, or those that `names` need."""
        if names is None:
            first = next(node for node in self._nodes if not isinstance(node, ast.Import | ast.ImportFrom))
            return "\n".join(self._source.splitlines()[_line(first) - 1 :])
        lines = self._source.splitlines()
        pieces: list[str] = []
        for node in self._chosen(names):
            piece = "\n".join(lines[_line(node) - 1 : node.end_lineno])
            apart = "\n" if isinstance(node, ast.Expr) else "\n\n\n"  # a docstring stays at what it is about
            pieces.append((apart if pieces else "") + piece)
        return "".join(pieces)

    def _chosen(self, names: Iterable[str] | None) -> list[ast.stmt]:
        """The statements that define `names`, and what these read of the module, in the file's order."""
        nodes = [node for node in self._nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
        if names is None:
            return nodes
        wanted, left = set[str](), set(names)
        while left:
            wanted |= left
            left = {name for node in nodes if _defined(node) & wanted for name in _read(node)} & self.names - wanted
        chosen, keeps = [], False
        for node in nodes:
            keeps = keeps if isinstance(node, ast.Expr) else bool(_defined(node) & wanted)
            if keeps:
                chosen.append(node)
        return chosen


def _bound(name: ast.alias) -> str:
    return (name.asname or name.name).partition(".")[0]


def needed(modules: Sequence[Module], roots: Iterable[tuple[Module, str]]) -> dict[Module, set[str]]:
    """What of each module the `roots` need: a name is that of its own module, else of the first that defines it."""
    found: dict[Module, set[str]] = {module: set() for module in modules}
    left = list(roots)
    while left:
        module, name = left.pop()
        home = module if name in module.names else next((one for one in modules if name in one.names), None)
        if home is not None and name not in found.setdefault(home, set()):
            found[home].add(name)
            left += [(home, used) for used in home.uses([name])]
    return found


def defined_in(text: str) -> list[str]:
    """The names that a script defines, as often as it does."""
    return [name for node in ast.parse(text).body for name in _defined(node)]


def _line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _read(node: ast.stmt) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
