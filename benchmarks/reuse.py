"""What shrinking saves by what is kept (`oracles.kept`): `python benchmarks/reuse.py`.

Each fault with a minimum (tests/quality/minima.py) is found and shrunk with what is kept and without, in turn, several
times over. Printed are the processor seconds of the shrinking alone, the least of each way, and how often drawn weights
and experts' answers of the reference were had again. Both ways have to end in the same scenario.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from difftest.shrinking.shrink import Shrinker, Shrunk
from oracles import kept
from oracles.kept import KEPT

sys.path.append(str(Path(__file__).parents[1] / "tests" / "quality"))
from minima import MINIMA, found

NAMES = ("w13", "w2", "experts")
MOST = kept.MOST


def shrunk(name: str, seed: int, *, keeping: bool) -> tuple[float, Shrunk]:
    """Processor seconds, and what came of it."""
    kept.MOST = MOST if keeping else 0
    _, engine, first, stream = found(name, seed)
    KEPT.forget()
    start = time.process_time()
    result = Shrinker(engine, first, lambda *_: None).shrink(stream)
    return time.process_time() - start, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--fault", action="append", choices=sorted(MINIMA), metavar="NAME", help="this one only; may be given again"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="[default: %(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total: Counter[tuple[str, bool]] = Counter()
    spent = {True: 0.0, False: 0.0}
    same = True
    print(f"{'fault':<38} {'runs':>5} {'kept s':>7} {'not s':>7} {'ratio':>5}  had again: {', '.join(NAMES)}")
    for name in options.fault or MINIMA:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.repeats):
            took, bare = shrunk(name, options.seed, keeping=False)
            seconds[False].append(took)
            took, result = shrunk(name, options.seed, keeping=True)
            seconds[True].append(took)
            same = same and result == bare
        asked = Counter(KEPT.asked)
        total += asked
        least = {keeping: min(took) for keeping, took in seconds.items()}
        spent = {keeping: spent[keeping] + least[keeping] for keeping in spent}
        print(_row(name, result.runs_hypothesis + result.runs_reducer, least, asked), flush=True)
    print(_row("all", 0, spent, total))
    print("Both ways end alike." if same else "The two ways do not end alike.")
    return 0 if same else 1


def _row(name: str, runs: int, seconds: dict[bool, float], asked: Counter[tuple[str, bool]]) -> str:
    shares = (f"{asked[each, True]}/{asked[each, True] + asked[each, False]}" for each in NAMES)
    ratio = seconds[True] / seconds[False]
    return f"{name:<38} {runs or '':>5} {seconds[True]:>7.3f} {seconds[False]:>7.3f} {ratio:>5.2f}  {', '.join(shares)}"


if __name__ == "__main__":
    sys.exit(main())
