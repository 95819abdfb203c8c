"""An agent as a long-running process: the part of one host in all jobs of a cluster (002).

What the jobs of a host share, and how:

- The host itself: the manager places a job where agents are and the fewest jobs have a part
  (`controller.job_placement`), and plans it on what other jobs leave free of every link, by what
  the agents report (`controller.state`). Plans are looked at again as that changes.
- The link: one process owns the interface. Every job has a send queue, and a level that the manager
  takes from its progress (`controller.priorities`). Lower levels leave first; jobs of one level
  take turns of some frames (`traffic_priority`), so they share the link equally. Frames carry the
  level, and switches' queues do the same.
- The processor: packets of all jobs go through one loop that never waits. What takes long (making
  tensors, checking sums, steps of an optimiser) goes to the operation pool, where tasks wait in the
  order of their jobs' levels. What waits for other hosts has a thread of its own.
- Failure: what ends one job's member is told its manager, and touches no other (`members`).
"""
