"""The launcher of the toy engine: N processes that see variables of an MPI launcher."""

import os
import subprocess
import sys
import tempfile

size, command = int(sys.argv[1]), sys.argv[2:]
with tempfile.TemporaryDirectory() as folder:
    variables = {**os.environ, "TOY_FOLDER": folder, "OMPI_COMM_WORLD_SIZE": str(size)}
    ranks = [subprocess.Popen(command, env={**variables, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(size)]
    sys.exit(max(rank.wait() for rank in ranks))
