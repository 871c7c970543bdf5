"""One hyper-connection boundary through the dispatch module: on a GPU if there is one, else on the CPU."""

import time

import torch
from kernwright.generated import dispatch

BRANCHES, HIDDEN, RANK = 4, 2560, 320
STATE = BRANCHES * HIDDEN
ROWS = 336  # RANK + BRANCHES, padded to a multiple of 16

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def tensor(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal values in FP16."""
    return (torch.randn(*shape) * scale).to(torch.float16).to(device)


arguments = {
    "residual": tensor(1, STATE),
    "block": tensor(1, HIDDEN),
    "injection": tensor(1, BRANCHES),
    "norm_weight": tensor(STATE, scale=0.1),
    "down_weight": tensor(ROWS, STATE, scale=STATE**-0.5),
    "up_weight": tensor(STATE, RANK, scale=RANK**-0.5),
}

print(dispatch.hyper_connection.explain(**arguments))
start = time.perf_counter()
x, block_input, injection_out = dispatch.hyper_connection(**arguments)
seconds = time.perf_counter() - start
print(f"x {tuple(x.shape)}, block_input {tuple(block_input.shape)}, injection_out {injection_out.tolist()}")
print(f"first call on {device}: {seconds:.2f} s; dispatched: {dispatch.stats()}")
