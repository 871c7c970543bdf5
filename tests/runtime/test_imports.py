"""What importing the runtime loads."""

import subprocess
import sys

HEAVY = ("torch", "cupy", "numpy", "pydantic", "jinja2", "typer", "rich", "tomlkit")
OURS = ("kernwright.specs", "kernwright.compiler")


def test_importing_the_runtime_and_its_ops_loads_nothing_heavy() -> None:
    code = (
        "import sys, kernwright.runtime, kernwright.families.hyper_connection.op\n"
        f"print([name for name in {HEAVY + OURS} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_explaining_a_shape_loads_nothing_heavy() -> None:
    code = (
        "import sys, pathlib\n"
        "from kernwright.runtime import bind\n"
        "from kernwright.table import FORMAT, Build, Candidate, FamilyEntry, Table, Workload\n"
        "from kernwright.families.hyper_connection.op import HyperConnection\n"
        "control = Candidate('control', 'replicated', 'exact', {'sm_70': Build('1' * 64, 'a.cu', '0' * 64)}, {},\n"
        "                    {'boundary': ()})\n"
        "fields = dict(dtype='float16', branches=4, hidden=64, low_rank=32, tokens=(1, 1), world_size=1,\n"
        "              eps=1e-6, norm_weight='shared')\n"
        "work = Workload('hyper_connection', 'small', 'label', fields, {}, (control,))\n"
        "families = (FamilyEntry('hyper_connection', ('boundary',)),)\n"
        "dispatch = bind(Table(FORMAT, pathlib.Path('.'), (work,), families))\n"
        "op = HyperConnection(dispatch)\n"
        "print(dispatch.explain_request('hyper_connection', fields, 'sm_70').chosen,\n"
        f"      [name for name in {HEAVY + OURS} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "control []"
