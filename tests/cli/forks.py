"""Runs modules as `python -P -m MODULE` does, each in a fork of one process that has imported what takes long.

Reads a JSON line [module, arguments, file for its output] for each, and answers with its exit code.
"""

import json
import os
import runpy
import sys

import torch  # noqa: F401

import difftest.campaign
import difftest.cli  # noqa: F401

for line in sys.stdin:
    module, arguments, output = json.loads(line)
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
