"""One thread a process: the tests run side by side, and busy threads of one process slow the others down."""

import torch

torch.set_num_threads(1)
