"""Workers and parameter servers: protocol state machines, numbers, packet paths.

The core takes frames and time and returns frames and deadlines; it has no socket, thread or clock:

    worker = Worker(plan, index, network, WorkerOptions())      # hopsum.host_agent.worker, .stream
    call = worker.submit(tensor, now)        # float32 or int32, any shape; `out=` for in place
    worker.receive(frames, now)              # numpy uint8 (n, frame length), of any sender
    worker.tick(now)                         # at `worker.deadline` (seconds, or None)
    for frames in worker.take_output(): ...  # batches to send, in order; yours to keep
    worker.done(call), worker.result(call)   # None until complete; raise JobFailed
    worker.adopt(plan, now)                  # a newer epoch
    worker.failure, worker.statistics, worker.idle

    server = Server(plan, tree_number, network)                 # hopsum.host_agent.server
    server.receive(frames, now); server.take_output(); server.tick(now); server.deadline
    server.adopt(plan)                       # a restarted server: a new Server of a new epoch
    server.missing()                         # the oldest open fragment, and who is missing
    ServerSet([server, ...])                 # several servers; hopsum.host_agent.server_set

    Loop(port, [worker, server]).turn()      # receive, tick, send; hopsum.host_agent.io.loop

Several calls may be open at once; all workers make the same ones in the same order.
"""
