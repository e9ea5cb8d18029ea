"""What is seen of the data network: RDMA devices, what the platform says of them."""
