"""A small process beside each rank: it shows that the rank lives, whatever the rank's Python is busy with.

Watchers are joined to the one of rank 0, the hub, over TCP. A rank that waits for others notes it in a page of shared
memory (``page``); its watcher tells the hub of a wait that lasts. The hub judges (``judge``): a rank whose process is
gone, whose host cannot be reached, or that left while others wait for it ends all; one that is merely late is reported
with its place in the script (``places``). All this uses the standard library alone and moves no data of the training.
"""
