"""A device that fails for good is taken out: what waited for it runs on the others, and the run says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

CARDS = Path(__file__).with_name("cards.py")
PROGRAM = """
import json, sys
from difftest.isolation.environment import WorkerFailed
from difftest.isolation.executors import Executors, Isolation
from strategies.scenario import Scenario, Shape

spec = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import warm

with (
    warm.server() as server,
    warm.processes(server),
    Executors([spec], Isolation(device="cpu")) as executors,
):
    executor = executors.of(spec, "reference")
    pending = [executor.submit(Scenario(shape=Shape(tokens=1 + n)), ()) for n in range(8)]
    told = []
    for one in pending:
        try:
            outcome = one.result()
        except WorkerFailed as error:
            told.append(str(error))
        else:
            told.append(f"{outcome.verdict} {outcome.kind}".strip())
    print(json.dumps([told, executors.lost_devices()]))
"""


def test_its_work_goes_on_on_the_others_as_long_as_there_is_one(tmp_path):
    """Each card breaks at its third case, for good: the first is replaced by the second, the second by none."""
    environment = {
        **os.environ,
        "DIFFTEST_DRILL": str(tmp_path),
        "TMPDIR": str(tmp_path),  # its leases are of cards that nobody else has
    }
    run = [sys.executable, "-c", PROGRAM, f"{CARDS}:Card", str(CARDS.parents[1])]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, lost = json.loads(done.stdout.splitlines()[-1])
    assert lost == {card: f"CUDA error: {card} fell off the bus" for card in ("GPU-a", "GPU-b")}
    assert (tmp_path / "answered").read_text().split() == ["GPU-a"] * 2 + ["GPU-b"] * 2
    none_left = "no device is left: " + "; ".join(f"{card}: {reason}" for card, reason in lost.items())
    crashed = "crashed launch failed"
    assert Counter(told) == {"agrees": 4, crashed: 2, none_left: 2}
    assert told[:3] == ["agrees", "agrees", crashed]
