"""The data network: what a pod has, and what follows from it."""
