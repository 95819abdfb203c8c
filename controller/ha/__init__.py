"""High availability: several controllers of one cluster, of which one leads, by etcd."""
