"""Whole jobs in a real Kubernetes, which KUBECONFIG names: see ``scripts/e2e``."""
