"""How an oracle is found by name, and what is said when it is not."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch

import oracles
from oracles.base import ENTRY_POINT_GROUP, Oracle, OracleNotFound, capability_of, get, missing_of, names
from oracles.grouped_mm import GroupedMM
from strategies.capability import Capability
from strategies.scenario import Scenario

WHOLE = """
from oracles.numerics import Numerics

class Zeros:
    name = "zeros"
    numerics = Numerics()

    def unsupported(self, scenario):
        return None

    def prepare(self, problem):
        return problem

    def __call__(self, prepared):
        return prepared.hidden_states * 0

def make():
    return Zeros()

instance = Zeros()

class NeedsMore(Zeros):
    def __init__(self, size):
        self.size = size

class Breaks(Zeros):
    def __init__(self):
        self.lookup = {}["absent"]

class BrokenAttribute(Zeros):
    def __init__(self):
        self.lookup = object().absent

class NoPrepare:
    name = "half"
    numerics = Numerics()

    def unsupported(self, scenario):
        return None

class WrongNumerics(Zeros):
    numerics = "bfloat16"

class WrongCapability(Zeros):
    capability = {"biases": False}

class NoName(Zeros):
    name = None

number = 7
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernel.py"
    path.write_text(WHOLE)
    return path


def refusal(spec: str) -> str:
    with pytest.raises(OracleNotFound) as caught:
        get(spec)
    message = str(caught.value)
    assert message.startswith(f"oracle {spec!r}")
    assert "\n" not in message
    return message.removeprefix(f"oracle {spec!r}")


def test_installed_oracles_are_found_by_name() -> None:
    assert {"ggml", "grouped-mm", "reference"} <= set(names())
    assert names() == sorted(names())
    oracle = get("grouped-mm")
    assert isinstance(oracle, GroupedMM)
    assert isinstance(oracle, Oracle)
    assert oracle.name == "grouped-mm"
    assert oracles.get("grouped-mm").name == "grouped-mm"


def test_module_and_attribute() -> None:
    assert isinstance(get("oracles.grouped_mm:GroupedMM"), GroupedMM)


@pytest.mark.parametrize("attribute", ["Zeros", "make", "instance"])
def test_file_and_attribute(kernel: Path, attribute: str) -> None:
    oracle = get(f"{kernel}:{attribute}")
    assert oracle.name == "zeros"
    problem = oracles.build(Scenario())
    assert torch.equal(oracle(oracle.prepare(problem)), torch.zeros(1, 32, dtype=torch.bfloat16))


def test_file_relative_to_the_working_directory(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernel.parent)
    assert get("my_kernel.py:Zeros").name == "zeros"


def test_two_files_of_one_name_are_two_oracles(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.py").write_text(WHOLE.replace('"zeros"', f'"{name}"'))
    first, second = (get(f"{tmp_path / name / 'kernel.py'}:Zeros") for name in ("first", "second"))
    assert (first.name, second.name) == ("first", "second")
    assert sys.modules[type(first).__module__] is not sys.modules[type(second).__module__]


def test_a_file_is_read_anew_each_time(kernel: Path) -> None:
    assert get(f"{kernel}:Zeros").name == "zeros"
    kernel.write_text(WHOLE.replace('"zeros"', '"a much longer name"'))
    assert get(f"{kernel}:Zeros").name == "a much longer name"


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["nonesuch", "", "grouped_mm", "kernel.py"])
def test_unknown_name(spec: str) -> None:
    known = ", ".join(names())
    assert refusal(spec) == f" is not known: use one of {known}, module:attribute or file.py:attribute"


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.py"
    assert refusal(f"{path}:Kernel") == f": there is no file {path}"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "folder.py"
    path.mkdir()
    assert refusal(f"{path}:Kernel") == f": there is no file {path}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nonesuch_module", "ModuleNotFoundError: No module named 'nonesuch_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_file_that_fails_to_load(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    before = set(sys.modules)
    assert refusal(f"{path}:Kernel") == f": {path} fails to load: {told}"
    assert set(sys.modules) == before


def test_file_with_a_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    assert refusal(f"{path}:Kernel").startswith(f": {path} fails to load: SyntaxError: ")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonesuch_module:Kernel", "ModuleNotFoundError: No module named 'nonesuch_module'"),
        (":Kernel", "ValueError: Empty module name"),
    ],
)
def test_module_that_cannot_be_imported(spec: str, message: str) -> None:
    assert refusal(spec) == f": module {spec.partition(':')[0]!r} cannot be imported: {message}"


def test_missing_attribute(kernel: Path) -> None:
    assert refusal(f"{kernel}:Absent") == f": {kernel} has no attribute 'Absent'"
    assert refusal(f"{kernel}:") == f": {kernel} has no attribute ''"
    assert refusal("oracles.grouped_mm:Absent") == ": oracles.grouped_mm has no attribute 'Absent'"


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("NeedsMore", "TypeError: NeedsMore.__init__() missing 1 required positional argument: 'size'"),
        ("Breaks", "KeyError: 'absent'"),
        ("BrokenAttribute", "AttributeError: 'object' object has no attribute 'absent'"),
    ],
)
def test_class_that_cannot_be_made(kernel: Path, attribute: str, told: str) -> None:
    assert refusal(f"{kernel}:{attribute}") == f": {attribute}() fails: {told}"


def test_what_an_oracle_lacks_is_named(kernel: Path) -> None:
    assert refusal(f"{kernel}:NoPrepare") == ": NoPrepare has no prepare, __call__: see oracles.base.Oracle"
    assert refusal(f"{kernel}:number") == (
        ": int has no name, numerics, unsupported, prepare, __call__: see oracles.base.Oracle"
    )


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("WrongNumerics", "numerics = 'bfloat16': must be of type Numerics"),
        ("WrongCapability", "capability = {'biases': False}: must be of type Capability"),
        ("NoName", "name = None: must be of type str"),
    ],
)
def test_attribute_of_a_wrong_type_is_named(kernel: Path, attribute: str, told: str) -> None:
    assert refusal(f"{kernel}:{attribute}") == f": {attribute}.{told}"


def test_entry_point_that_fails_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = importlib.metadata.EntryPoint("broken", "nonesuch_module:Kernel", ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints([broken]))
    assert refusal("broken") == (
        ": nonesuch_module:Kernel fails to load: ModuleNotFoundError: No module named 'nonesuch_module'"
    )


# --- the optional attributes ---------------------------------------------------------------------------------------


def test_capability_and_missing_have_defaults(kernel: Path) -> None:
    plain = get(f"{kernel}:Zeros")
    assert capability_of(plain) == Capability()
    assert missing_of(plain) is None
    assert capability_of(GroupedMM()) is GroupedMM.capability
    assert missing_of(GroupedMM()) is None


def test_capability_and_missing_are_read(kernel: Path) -> None:
    kernel.write_text(
        WHOLE
        + """
from strategies.capability import Capability

class Picky(Zeros):
    capability = Capability(biases=False)

    def missing(self):
        return "not installed: pip install picky"
"""
    )
    picky = get(f"{kernel}:Picky")
    assert not capability_of(picky).biases
    assert missing_of(picky) == "not installed: pip install picky"
