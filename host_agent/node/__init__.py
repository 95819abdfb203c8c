"""An agent as a long-running process: one host in all jobs of a cluster ([002][]).

What the jobs of a host share, and how:

- The host itself: the controller places a job where agents are and the fewest jobs have a part
  (`hopsum.controller.jobs.job_placement`), and plans it on the residual bandwidth of every link,
  which the agents report (`hopsum.controller.telemetry.state`). Plans are reoptimised as that
  changes.
- The link: one process owns the interface. Every job has a send queue, and a level that the
  controller derives from its progress (`hopsum.controller.jobs.priorities`). Lower levels leave
  first; jobs of one level take turns of a few frames (`traffic_priority`), so they share the link
  equally. Frames carry the level, and the switches' queues follow it.
- The processor: packets of all jobs go through one loop that never waits. What takes long (making
  tensors, checking sums, steps of an optimiser) goes to the operation pool, where tasks wait in the
  order of their jobs' levels. What waits for other hosts has a thread of its own.
- Failure: what ends one job's member is reported to the controller, and touches no other
  (`member`).
"""
