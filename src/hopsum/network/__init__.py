"""Networks as data: hosts, switches and links, loaders, topologies by name, and routes."""
