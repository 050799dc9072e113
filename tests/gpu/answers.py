"""What one build of FlashInfer answers, in a process of its own: two builds cannot share one.

`python answers.py REQUEST ANSWERS`: a JSON list of [scenario, keep], and a file for torch.save with one entry each: the
output on the CPU, or the first line of the error. keep: whether SiTU's parameters are passed, or left to the kernel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from oracles.cutlass import Cutlass
from oracles.problem import build
from strategies.scenario import Scenario


def main(request: Path, answers: Path) -> None:
    oracle = Cutlass(tactics=True)
    found: list[torch.Tensor | str] = []
    for data, keep in json.loads(request.read_text()):
        prepared = oracle.prepare(build(Scenario.from_json(data), "cuda"))
        if not keep:
            for name in ("situ_beta", "situ_linear_beta"):
                prepared.arguments.pop(name)
        try:
            found.append(oracle(prepared).cpu())
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])
    torch.save(found, answers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
