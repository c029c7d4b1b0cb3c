"""Engine ``mpi``: mpi4py over whatever MPI is there."""
