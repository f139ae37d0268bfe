from __future__ import annotations

import signal

import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script: Ctrl-C is tested too
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two test processes on two cores
