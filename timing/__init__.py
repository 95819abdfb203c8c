"""How long a collective takes, by rates and not by packets: max-min fair flows on a network."""
