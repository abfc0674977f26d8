"""The real llama.cpp server, as a program: prints its address, and ends with its standard input."""

from __future__ import annotations

import importlib
import sys
from typing import Any

xllamacpp: Any = importlib.import_module("xllamacpp")
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.hostnames = ["127.0.0.1"]
parameters.port = 0
parameters.n_ctx = 2048
parameters.n_parallel = 1
parameters.cpuparams.n_threads = 1  # two would wait for each other on a busy machine
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
