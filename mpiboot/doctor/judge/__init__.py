"""What was seen in a pod, judged: an area each. Pure."""
