"""hopsum: gradients summed hop by hop inside the network."""
