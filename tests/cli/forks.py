"""Runs modules as `python -P -m MODULE` does, each in a fork of one process that has imported what takes long.

Reads a JSON line [module, arguments, file for its output] for each, and answers with its exit code.
"""

import atexit
import importlib
import json
import os
import runpy
import sys

code = 0
"""How this process ends."""


def leave() -> None:
    """Without freeing all that was imported, which takes a fork longer than most commands."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


atexit.register(leave)  # the first that is registered is called last

for name in ("torch", "difftest.campaign", "difftest.cli"):
    importlib.import_module(name)

for line in sys.stdin:
    module, arguments, output = json.loads(line)
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [module, *arguments]
        code = 1  # of an exception
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
            raise
        raise SystemExit(f"{module} says not how it ends")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
