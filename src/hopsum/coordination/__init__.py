"""Agree on the order of collectives: a balanced tree of controllers, then bit vectors ([004][]).

Pure data and state machines: messages and the time in, messages and the next deadline out.
"""
