"""One experiment in virtual time: the real P4 program and the real agents over modelled links."""
