"""The processes of a job together: who is there, collectives on arrays, metrics, devices and files."""
