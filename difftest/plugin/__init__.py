"""The pytest plugin: difftest's options, case files as tests, and one summary of all shards. Imports no torch.

It is loaded in every pytest run of an environment that has difftest. So at import it reads `difftest.options` alone,
takes no option name that anybody else wants, and says and writes nothing where difftest was not asked for.

Case files (`*.case.json`) become tests when one is named on the command line, under the folder of `--cases`, or
everywhere with `difftest_cases = true` in the configuration file.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from difftest.options import OPTIONS, OptionSpec
from difftest.plugin.session import CASES_INI, SUFFIX, Session, dest, session_of

if TYPE_CHECKING:
    from difftest.plugin.items import CaseFile


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--difftest-NAME` for every option; `pytest_load_initial_conftests` adds the plain `--NAME`."""
    group = parser.getgroup("difftest", "differential testing (difftest)")
    for spec in OPTIONS:
        group.addoption(
            f"--difftest-{spec.name}",
            dest=dest(spec.name),
            help=spec.help.replace("%", "%%"),
            **_form(spec),
        )
    parser.addini(CASES_INI, type="bool", default=False, help=f"Collect every *{SUFFIX} as a test.")


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> None:
    """`--NAME` for every option whose name is free, now that all plugins and conftests have added theirs.

    Any earlier, a `--seed` or `--json` of ours would make another plugin's option of that name an error at start.
    """
    group = parser.getgroup("difftest")
    for spec in OPTIONS:
        if _is_free(parser, spec.flag):
            group.addoption(
                spec.flag,
                dest=dest(spec.name),
                **_form(spec),
                help=f"The same as --difftest-{spec.name}.",
            )


def _form(spec: OptionSpec) -> dict[str, Any]:
    """What argparse is told about the option's value. A switch that is not given is None, as all others are."""
    if spec.is_switch:
        return {"action": "store_const", "const": True}
    return {"action": "append" if spec.repeatable else "store", "metavar": spec.metavar}


def _is_free(parser: pytest.Parser, flag: str) -> bool:
    word = f"{flag}=0"
    try:
        _, unknown = parser.parse_known_and_unknown_args([word])
    except (Exception, SystemExit):  # known, and of a type or with choices that 0 does not fit
        return False
    return word in unknown


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session, or take it over from the process that the user started."""
    if Session.enter(config) and not hasattr(config, "workerinput"):
        from difftest.plugin.reporter import Reporter

        config.pluginmanager.register(Reporter(config), "difftest-reporter")


def pytest_unconfigure(config: pytest.Config) -> None:
    session = session_of(config)
    if session is not None and not hasattr(config, "workerinput"):
        session.leave()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the session to a worker of xdist: above all the base seed, which is made once."""
    session = session_of(node.config)
    if session is not None:
        session.hand_to(node.workerinput)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """A case file becomes a test where that was asked for; see the module's docstring."""
    session = session_of(parent.config)
    if session is None or not file_path.name.endswith(SUFFIX):
        return None
    named = parent.session.isinitpath(file_path)
    if not session.collects(file_path, named=named, everywhere=parent.config.getini(CASES_INI)):
        return None
    from difftest.plugin.items import CaseFile

    return CaseFile.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the item's result on its report, which xdist carries to the process that prints."""
    report = yield
    if call.when == "call" and session_of(item.config) is not None:
        from difftest.plugin.items import RESULT

        report.difftest = item.stash.get(RESULT, None)  # type: ignore[attr-defined]  # further attributes travel
    return report
