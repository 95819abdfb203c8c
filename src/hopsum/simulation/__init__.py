"""A cluster in virtual time: the real P4 program, agents and controller over modelled links."""
