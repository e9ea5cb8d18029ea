"""The pure core of the data network: what a pod has, and what follows from it."""
