"""How long imports and commands take: processor seconds of fresh processes, the median of five.

    python benchmarks/startup.py

Torch's own import is taken off what the dispatch module takes behind it.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

DISPATCH = """
import time, torch
start = time.process_time()
import kernwright.generated.dispatch
print(time.process_time() - start)
"""
COMMANDS = (["--help"], ["validate"], ["generate", "--check"])


def seconds_of(command: list[str]) -> float:
    """User and system time of a child, which other work on the machine doesn't stretch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each."""
    imports = [float(subprocess.check_output([sys.executable, "-c", DISPATCH])) for _ in range(5)]
    print(f"{1e3 * statistics.median(imports):8.0f} ms  import kernwright.generated.dispatch, after torch")
    for words in COMMANDS:
        command = [sys.executable, "-m", "kernwright", *words]
        median = statistics.median(seconds_of(command) for _ in range(5))
        print(f"{1e3 * median:8.0f} ms  kernwright {' '.join(words)}")


if __name__ == "__main__":
    main()
