"""What all planners share: graphs, requests, trees with rates, slots and the solver."""
