"""Builds a Horovod wheel for the frameworks, compiler, MPI and GPU libraries of this environment."""
