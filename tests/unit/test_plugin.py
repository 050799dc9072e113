"""The pytest plugin, in sessions of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

# With it torch, which cannot be imported twice: an inner session forgets what it imported itself.
from difftest import campaign
from difftest.options import Options

pytest_plugins = ["pytester"]

KERNELS = Path(__file__).parent.parent / "cli" / "kernels.py"
BUDGET = ("--profile", "quick", "--examples", "16", "--seed", "7")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project beside kernels.py, where hypothesis and cache leave nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(kernels=KERNELS.read_text())
    return pytester


def suite(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest("--pyargs", "difftest", "-p", "no:cacheprovider", *BUDGET, *args)


def sections(done: pytest.RunResult, *titles: str) -> str:
    """Those parts of what the user sees, without what differs between two runs."""
    wanted, lines = False, []
    for line in done.stdout.str().splitlines():
        if line.startswith("==="):
            wanted = line.strip("= ") in titles
        if wanted:
            lines.append(line)
    shown = re.sub(r"-[0-9a-f]{8}\.case\.json", "-DIGEST.case.json", "\n".join(lines))
    return re.sub(r"\d+ scenarios; shrunk in \d+ runs", "N scenarios; shrunk in N runs", shown)


def candidate(name: str) -> tuple[str, str]:
    return "--candidate", f"kernels.py:{name}"


@pytest.fixture(scope="session")
def saved_case(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """An open case of kernels.py:Off."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("kernels.py").write_text(KERNELS.read_text())
        campaign.run(Options(candidates=("kernels.py:Off",), profile="quick", examples=1, seed=7), lambda _: None)
        (path,) = Path("cases").glob("*.case.json")
        return json.loads(path.read_text())


def write_case(saved_case, path: str, **changes: object) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps(saved_case | changes))


# --- somebody else's environment ------------------------------------------------------------------------------------


def test_neither_torch_nor_hypothesis_is_imported_for_others(project):
    project.makepyfile(
        """
        import sys

        def test_modules():
            assert "difftest.plugin" in sys.modules
            assert not {"torch", "difftest.ledger.cases", "strategies"} & set(sys.modules)
        """
    )
    done = project.runpytest_subprocess()
    done.assert_outcomes(passed=1)
    assert "difftest:" not in done.stdout.str()


def test_nothing_is_shown_or_written_for_others(project):
    project.makepyfile("def test_one(): pass")
    Path("cases").write_text("our own file of this name")
    Path("own.case.json").write_text("our own format")
    done = project.runpytest("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)
    assert "difftest:" not in done.stdout.str()
    assert "= difftest =" not in done.stdout.str()


@pytest.mark.parametrize("where", ["conftest", "plugin"])
def test_names_of_others_stay_theirs(where, project, monkeypatch):
    """Whoever registers --seed and --json, before or after us, has them; ours have the prefix."""
    options = """
        def pytest_addoption(parser):
            parser.addoption("--seed", type=int, choices=[1, 2])
            parser.addoption("--json", action="store_true")
        """
    test = """
        def test_options(pytestconfig):
            assert pytestconfig.getoption("seed") == 2
            assert pytestconfig.getoption("json") is True
            assert pytestconfig.getoption("difftest_seed") == "7"
            assert pytestconfig.getoption("difftest_json") is None
            assert pytestconfig.getoption("difftest_profile") == "quick"
        """
    project.makepyfile(**{"conftest" if where == "conftest" else "theirs": options}, test_options=test)
    if where == "plugin":
        monkeypatch.setenv("PYTEST_PLUGINS", "theirs")
        monkeypatch.setenv("PYTHONPATH", str(project.path))
    done = project.runpytest_subprocess("--seed", "2", "--json", "--difftest-seed", "7", "--profile", "quick")
    done.assert_outcomes(passed=1)


def test_help_shows_both_names(project):
    done = project.runpytest("--help")
    done.stdout.fnmatch_lines(["*differential testing (difftest)*", "*--difftest-seed=N*", "*--seed=N*same as*"])


# --- the suite ------------------------------------------------------------------------------------------------------


def test_the_suite_passes_and_says_what_ran(project, snapshot):
    done = suite(project, *candidate("Right"))
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["difftest: seed 7, profile quick, 16 scenarios, reference reference"])
    assert sections(done, "difftest") == snapshot
    assert done.ret == 0


def test_a_finding_fails_one_shard_with_its_report(project, snapshot):
    done = suite(project, *candidate("Rejects"))
    done.assert_outcomes(failed=1, xfailed=1)
    assert sections(done, "FAILURES", "difftest") == snapshot
    assert len(list(Path("cases").glob("*.case.json"))) == 1


def test_workers_run_the_scenarios_of_one_process(project):
    """A fresh seed that all share; one finding, told once; nothing of it depends on the number of processes."""
    shared = project.runpytest(
        "--pyargs",
        "difftest",
        "-p",
        "no:cacheprovider",
        "--profile",
        "quick",
        "--examples",
        "16",
        *candidate("Rejects"),
        "--cases",
        "shared",
        "--json",
        "shared.jsonl",
        "-n",
        "2",
        "--junitxml",
        "shared.xml",
        "--summary",
        "step.md",
    )
    shown = shared.stdout.str()
    (seed,) = re.findall(r"^difftest: seed (\d+), ", shown, re.MULTILINE)
    alone = suite(project, *candidate("Rejects"), "--seed", seed, "--cases", "alone", "--json", "alone.jsonl")
    alone.assert_outcomes(failed=1, xfailed=1)
    shared.assert_outcomes(failed=1, xfailed=1)
    assert scenarios("alone.jsonl") == scenarios("shared.jsonl")
    assert len(scenarios("alone.jsonl")) == 16
    assert len(list(Path("alone").iterdir())) == len(list(Path("shared").iterdir())) == 1
    assert f"\nseed: {seed} (again with: " in shown
    assert "scenarios: 16" in shown
    assert "kernels.py:Rejects: rejected 16 (100.0%)" in shown
    assert shown[shown.index("= difftest =") :].count("Reproduce with:") == 1
    assert Path("step.md").read_text().count("### kernels.py:Rejects rejected") == 1
    told = properties("shared.xml")
    assert [values["difftest.seed"] for values in told] == [seed, seed]
    (finding,) = (values for values in told if "difftest.bucket" in values)
    assert finding["difftest.bucket"].startswith("kernels-py-rejects.call.rejected.")
    assert finding["difftest.smallest"] == "M=0 H=32 I=32 E=1 K=1, swiglu"
    assert finding["difftest.seen"] == "RuntimeError: no kernel image is available"
    assert Path(finding["difftest.case"]).is_file()


def properties(path: str) -> list[dict[str, str]]:
    """Of each test in a JUnit XML."""
    tests = ElementTree.parse(path).getroot().iter("testcase")
    return [{each.attrib["name"]: each.attrib["value"] for each in test.iter("property")} for test in tests]


def scenarios(path: str) -> set[str]:
    events = map(json.loads, Path(path).read_text().splitlines())
    return {json.dumps(event["scenario"]) for event in events if event["event"] == "ScenarioFinished"}


def test_a_known_case_comes_first_and_is_expected_to_fail(project, saved_case):
    write_case(saved_case, "cases/a.case.json")
    done = suite(project, *candidate("Off"), "-v")
    done.stdout.fnmatch_lines(["*test_moe?a.case.json? XFAIL*", "*test_moe?shard-00? *", "cases: 1 still diverges"])
    assert done.parseoutcomes()["xfailed"] == 1


def test_everything_unsupported_is_no_success(project, snapshot):
    done = suite(project, *candidate("Declines"))
    done.assert_outcomes(passed=2)
    assert sections(done, "difftest") == snapshot
    assert done.ret == 1


def test_missing_candidates_are_skipped_with_the_reason(project):
    done = suite(project, *candidate("Absent"), "-rs")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(["SKIPPED*left out: kernels.py:Absent (not installed: pip install*"])


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("--examples", "0"), "--examples 0: must be an integer >= 1"),
        (("--difftest-seed", "x"), "--seed x: must be an integer in *"),
        (("--candidate", "cutlas"), "--candidate: oracle 'cutlas' is not known: use one of *"),
        (("--candidate", "gone.py:K"), "--candidate: oracle 'gone.py:K': there is no file gone.py"),
        (("--cases", "kernels.py/cases"), "--cases kernels.py/cases: *kernels.py is not a folder; name one *"),
        (("--json", "no/where"), "--json no/where: cannot be written (No such file or directory); *"),
        ((*candidate("Absent"), "--require", "kernels.py:Absent"), "--require kernels.py:Absent: not installed: *"),
    ],
)
def test_bad_input_is_one_line_before_any_test(args, error, project):
    done = project.runpytest("--pyargs", "difftest", *args)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {error}"])
    assert "Traceback" not in done.stderr.str() + done.stdout.str()


def test_the_suite_without_its_plugin_says_so(project):
    done = project.runpytest("--pyargs", "difftest", "-p", "no:difftest")
    assert done.ret != 0
    assert "with its plugin loaded" in done.stdout.str()


# --- case files as tests --------------------------------------------------------------------------------------------


def test_a_case_named_on_the_command_line_is_collected(project, saved_case):
    write_case(saved_case, "ledger/a.case.json")
    done = project.runpytest("ledger/a.case.json", "--junitxml", "a.xml")
    done.assert_outcomes(xfailed=1)
    done.stdout.no_fnmatch_line("difftest: seed *")  # nothing is drawn
    (told,) = properties("a.xml")
    assert told["difftest.status"] == "still diverges"
    assert told["difftest.bucket"] == saved_case["bucket"]


def test_a_folder_of_cases_is_not_collected_unasked(project, saved_case):
    write_case(saved_case, "ledger/a.case.json")
    assert project.runpytest("ledger").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_folder_of_cases_is_collected_with_cases(project, saved_case):
    write_case(saved_case, "ledger/a.case.json")
    project.runpytest("ledger", "--cases", "ledger").assert_outcomes(xfailed=1)


def test_all_cases_are_collected_by_configuration(project, saved_case):
    project.makeini("[pytest]\ndifftest_cases = true")
    write_case(saved_case, "ledger/a.case.json")
    write_case(saved_case, "cases/b.case.json", status="fixed")
    done = project.runpytest("--collect-only", "-q")
    done.stdout.fnmatch_lines(["cases/b.case.json::b", "ledger/a.case.json::a"])


def test_the_ledger(project, saved_case):
    """Open and diverging, fixed and diverging, damaged, not applicable; then open and agreeing."""
    write_case(saved_case, "ledger/open.case.json")
    write_case(saved_case, "ledger/fixed.case.json", status="fixed")
    write_case(saved_case, "ledger/elsewhere.case.json", applies_to={"arch": ["sm120"]})
    Path("ledger/torn.case.json").write_text('{"version"')
    done = project.runpytest("ledger", "--cases", "ledger", "-rsx")
    done.assert_outcomes(xfailed=1, failed=2, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "STILL DIVERGES: marked as fixed, but it is back: *",
            "  Reproduce with: difftest replay *fixed.case.json",
            "ERRORED: is not JSON, or is cut off, at line 1: *",
            "cases: *",
            "SKIPPED * NOT APPLICABLE: it is about sm120, this machine is *",
            "XFAIL ledger/open.case.json::open - *STILL DIVERGES: *",
        ]
    )
    Path("kernels.py").write_text(KERNELS.read_text().replace("(prepared) * 1.5", "(prepared)"))
    done = project.runpytest("ledger/open.case.json")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["FIXED: fixed, update the case: *"])
    assert "scenarios:" not in done.stdout.str()


def test_a_case_that_cannot_be_saved_is_printed_whole(project):
    done = suite(project, *candidate("TakesTheFolder"))
    lines = done.stdout.str().splitlines()
    assert lines[lines.index("the case:") - 1].startswith("not saved: ")
    assert json.loads(lines[lines.index("the case:") + 1])["outcome"]["verdict"] == "rejected"


def test_runxfail_shows_open_cases_as_failures(project, saved_case):
    write_case(saved_case, "a.case.json")
    project.runpytest("a.case.json", "--runxfail").assert_outcomes(failed=1)
